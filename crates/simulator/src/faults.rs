//! The kinds of faults injected into a world, and their times: a subset of the kinds drawn per
//! seed.
//!
//! ```text
//!   --faults ──► allowed kinds ──(each with a chance)──► kinds of this seed
//!                                         │
//!   safety phase  0 ────────────────────────────────────► horizon
//!                     inject ──duration──►     inject ──►         each drawn kind must have
//!                                                                 an effect, or the seed
//!                                                                 does not count
//! ```

use crate::{clock::MILLISECOND, network::Transport, random::Random};
use quintet_replica::Durability;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Which faults a campaign may draw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultSet {
    /// Delays, losses, resets, partitions, attacks.
    pub network: bool,
    /// Crashes, restarts, lost disks, pauses, slow replicas, clients that go away.
    pub crash: bool,
    /// Slow, full and failing disks, and bytes that go bad at rest. The loss of unsynced writes in
    /// a crash belongs to `crash`.
    pub disk: bool,
    /// Clocks with offset, drift and steps, and such as stop or lie.
    pub clock: bool,
    /// Links on which every frame takes long and some take far longer, without a bound, from the
    /// first moment to the last: nothing heals it, and whatever a protocol promises it must keep
    /// under it. Only protocols that continue without synchrony can; it is not part of
    /// [`Self::ALL`].
    pub asynchrony: bool,
    /// One replica is configured otherwise than the others in one value that all must share: they
    /// must refuse each other. It is not part of [`Self::ALL`].
    pub configuration: bool,
    /// Every seed sees the syncs of votes held, which [`Self::ALL`] draws for some of them. It is
    /// not part of [`Self::ALL`].
    pub held: bool,
    /// Every seed sees a leader crash that only clients heard. It is not part of [`Self::ALL`].
    pub orphaned: bool,
    /// Every seed ends the epoch, which [`Self::ALL`] does in some of them. It is not part of
    /// [`Self::ALL`].
    pub ended: bool,
}

impl FaultSet {
    /// No faults.
    pub const NONE: Self = Self {
        network: false,
        crash: false,
        disk: false,
        clock: false,
        asynchrony: false,
        configuration: false,
        held: false,
        orphaned: false,
        ended: false,
    };
    /// All that end.
    pub const ALL: Self = Self {
        network: true,
        crash: true,
        disk: true,
        clock: true,
        asynchrony: false,
        configuration: false,
        held: false,
        orphaned: false,
        ended: false,
    };
}

impl FromStr for FaultSet {
    type Err = String;

    /// `none`, `all`, or names of kinds separated by commas.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut set = Self::NONE;
        for name in text.split(',') {
            match name.trim() {
                "none" => {}
                "network" => set.network = true,
                "crash" => set.crash = true,
                "disk" => set.disk = true,
                "clock" => set.clock = true,
                "asynchrony" => set.asynchrony = true,
                "configuration" => set.configuration = true,
                "held" => set.held = true,
                "orphaned" => set.orphaned = true,
                "ended" => set.ended = true,
                "all" => {
                    set = Self {
                        asynchrony: set.asynchrony,
                        configuration: set.configuration,
                        held: set.held,
                        orphaned: set.orphaned,
                        ended: set.ended,
                        ..Self::ALL
                    }
                }
                other => {
                    return Err(format!(
                        "'{other}' is no kind of fault: none, network, crash, disk, clock, all (of \
                         these), asynchrony, configuration, held, orphaned, ended, or several \
                         separated by commas"
                    ));
                }
            }
        }
        Ok(set)
    }
}

impl fmt::Display for FaultSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::ALL {
            return f.write_str("all");
        }
        let names = [
            (self.network, "network"),
            (self.crash, "crash"),
            (self.disk, "disk"),
            (self.clock, "clock"),
            (self.asynchrony, "asynchrony"),
            (self.configuration, "configuration"),
            (self.held, "held"),
            (self.orphaned, "orphaned"),
            (self.ended, "ended"),
        ];
        let names: Vec<_> = names
            .iter()
            .filter(|(on, _)| *on)
            .map(|(_, name)| *name)
            .collect();
        f.write_str(if names.is_empty() { "none" } else { "" })?;
        f.write_str(&names.join(","))
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident $name:literal,)*) => {
        /// A kind of fault.
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize,
        )]
        #[serde(rename_all = "snake_case")]
        pub(crate) enum Kind { $($(#[$doc])* $kind,)* }

        impl Kind {
            /// All of them.
            #[cfg(test)]
            pub const ALL: &[Self] = &[$(Self::$kind,)*];

            /// Its name in reports.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)* }
            }
        }
    };
}

kinds! {
    /// Some frames take much longer than others.
    Delay "delay",
    /// Frames are lost: in a stream that costs time, as datagrams they are gone.
    Loss "loss",
    /// Datagrams come twice.
    Duplicate "duplicate",
    /// A connection breaks with what is in flight.
    Reset "reset",
    /// Connections break right after a turn, before what it sent has left.
    ResetUnsent "reset_unsent",
    /// Two sides that cannot reach each other.
    PartitionFull "partition_full",
    /// One side cannot reach the other, which reaches it.
    PartitionOneWay "partition_one_way",
    /// Two sides, and one replica that reaches both.
    PartitionBridge "partition_bridge",
    /// Each replica reaches only its neighbours in a circle.
    PartitionRing "partition_ring",
    /// Each replica reaches only its neighbours in a row.
    PartitionChained "partition_chained",
    /// One link is many times slower.
    SlowLink "slow_link",
    /// Everything from and to a chosen set is late; the set may change over time.
    Attack "attack",
    /// One replica crashes between two steps.
    Crash "crash",
    /// Several replicas crash at once.
    CrashSet "crash_set",
    /// All replicas crash at once.
    CrashAll "crash_all",
    /// A replica crashes while it carries out the effects of a step.
    CrashMidStep "crash_mid_step",
    /// A replica crashes when a write is durable and it has not been told.
    CrashBeforePersisted "crash_before_persisted",
    /// A replica crashes when it has voted and its vote is not durable yet, if it ever will be.
    CrashVoter "crash_voter",
    /// A replica crashes when it has handed a write over and sent nothing since.
    CrashAfterWrite "crash_after_write",
    /// A replica crashes while it writes a snapshot, or before it is told that it is saved.
    CrashInSnapshot "crash_in_snapshot",
    /// A replica crashes while it receives a peer's state.
    CrashInTransfer "crash_in_transfer",
    /// A replica crashes again soon after it has started again.
    CrashInRecovery "crash_in_recovery",
    /// The leader crashes as soon as a client is answered, with what it has sent since.
    CrashAtAnswer "crash_at_answer",
    /// The leader stands still, another one takes over, and crashes soon.
    CrashNewLeader "crash_new_leader",
    /// A replica loses everything that it ever wrote. It must be refused.
    Wipe "wipe",
    /// A replica is asked to hand over and stops a little later.
    Stop "stop",
    /// A replica stands still and continues.
    Pause "pause",
    /// A replica stands still for long and continues with what has piled up.
    PauseLong "pause_long",
    /// A replica's processor is many times slower.
    SlowReplica "slow_replica",
    /// A disk is many times slower.
    SlowDisk "slow_disk",
    /// Single syncs take long, some of them longer than anybody waits for a replica: packets,
    /// suspicions and elections come in between.
    LateSync "late_sync",
    /// Votes wait for their disks until another replica stands: syncs are held across a suspicion,
    /// and some replicas that wait for them crash.
    HeldSync "held_sync",
    /// Clients hear the leader, the other replicas do not, and it crashes.
    OrphanedLeader "orphaned_leader",
    /// A sync fails: the replica must stop.
    SyncFails "sync_fails",
    /// A disk has no room for new files for a while.
    DiskFull "disk_full",
    /// Bytes of the journal go bad at rest.
    RotJournal "rot_journal",
    /// Bytes of one copy of the promises go bad, or of both.
    RotPromise "rot_promise",
    /// Bytes of a snapshot go bad at rest.
    RotSnapshot "rot_snapshot",
    /// A block of the journal was never written, though the disk said so.
    LostWrite "lost_write",
    /// A block of the journal was written to another place.
    MisdirectedWrite "misdirected_write",
    /// A synchronised clock is off from the start.
    ClockOffset "clock_offset",
    /// A clock runs too fast or too slowly.
    ClockDrift "clock_drift",
    /// A synchronised clock jumps.
    ClockStep "clock_step",
    /// A synchronised clock is minutes, hours or days off, from the start or from some moment on.
    ClockFar "clock_far",
    /// A synchronised clock stands still.
    ClockStops "clock_stops",
    /// A clock says that it is right while it is not.
    ClockLies "clock_lies",
    /// A client goes away permanently in the middle of an operation.
    ClientAbandons "client_abandons",
    /// A client goes away in the middle of an operation and comes back after long.
    ClientReturns "client_returns",
    /// A client comes back when its session has expired.
    ClientReturnsLate "client_returns_late",
}

impl Kind {
    /// Whether it can happen only to protocols that have a leader.
    pub const fn needs_leader(self) -> bool {
        matches!(self, Self::CrashVoter | Self::CrashNewLeader)
    }

    /// Whether what it waits for comes seldom, or what it damages may turn out not to matter.
    const fn is_rare(self) -> bool {
        matches!(
            self,
            Self::CrashVoter
                | Self::CrashNewLeader
                | Self::CrashInTransfer
                | Self::HeldSync
                | Self::OrphanedLeader
                | Self::RotJournal
                | Self::RotSnapshot
                | Self::LostWrite
                | Self::MisdirectedWrite
        )
    }

    /// Whether the affected replica never comes back: then the fault is injected once.
    const fn is_permanent(self) -> bool {
        matches!(self, Self::Wipe)
    }
}

/// The facts for which a seed's faults are drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ground {
    pub allowed: FaultSet,
    pub replicas: usize,
    pub transport: Transport,
    pub durability: Durability,
    /// It changes: `durability` is the weaker one.
    pub changes_durability: bool,
    /// The protocol brings back a replica whose journal was damaged.
    pub repairs: bool,
    /// Sessions expire within the safety phase.
    pub sessions_expire: bool,
    /// Faults are injected within the first that many nanoseconds.
    pub horizon: u64,
}

impl Ground {
    /// How many replicas may lose their data permanently, so that the rest can still lose one more
    /// for a while.
    const fn losses_max(&self) -> usize {
        match self.durability {
            Durability::Disk => self.replicas.saturating_sub(1) / 2,
            Durability::Memory => (self.replicas.saturating_sub(1) / 2).saturating_sub(1),
        }
    }

    /// The kinds that make sense here.
    pub fn pool(&self) -> Vec<Kind> {
        let (replicas, disk) = (self.replicas, self.durability == Durability::Disk);
        let mut pool = Vec::new();
        if self.allowed.network {
            pool.extend([Kind::Delay, Kind::Loss, Kind::Reset]);
            if replicas >= 2 {
                pool.extend([Kind::SlowLink, Kind::PartitionFull, Kind::PartitionOneWay]);
                pool.extend([Kind::Attack, Kind::ResetUnsent]);
            }
            if replicas >= 3 {
                pool.extend([Kind::PartitionBridge, Kind::PartitionChained]);
            }
            if replicas >= 4 {
                pool.push(Kind::PartitionRing);
            }
            if self.transport == Transport::Datagram {
                pool.push(Kind::Duplicate);
            }
        }
        // Of one or two memories none may be lost, not even for a while.
        let may_crash = disk || replicas >= 3;
        if self.allowed.crash {
            if may_crash {
                pool.extend([Kind::Crash, Kind::CrashMidStep, Kind::Stop]);
            }
            pool.extend([Kind::Pause, Kind::PauseLong, Kind::SlowReplica]);
            if may_crash {
                pool.extend([Kind::CrashInSnapshot, Kind::CrashInRecovery]);
            }
            pool.extend([Kind::ClientAbandons, Kind::ClientReturns]);
            if self.sessions_expire {
                pool.push(Kind::ClientReturnsLate);
            }
            if may_crash {
                pool.push(Kind::CrashAtAnswer);
            }
            if replicas >= 3 {
                pool.extend([Kind::CrashInTransfer, Kind::Wipe, Kind::CrashNewLeader]);
            }
            if disk {
                pool.extend([Kind::CrashBeforePersisted, Kind::CrashAfterWrite]);
                // Beside the leader that is silenced, one must stand and another vote for it.
                if replicas >= 3 {
                    pool.push(Kind::CrashVoter);
                }
            }
            if disk || self.changes_durability {
                pool.push(Kind::CrashAll);
            }
            if (disk && replicas >= 2) || replicas >= 5 {
                pool.push(Kind::CrashSet);
            }
        }
        // In memory durability only promises are on the disk.
        if self.allowed.disk {
            if may_crash {
                pool.push(Kind::RotPromise);
            }
            if disk {
                pool.extend([Kind::SlowDisk, Kind::LateSync]);
                pool.extend([Kind::SyncFails, Kind::DiskFull]);
                if replicas >= 3 && self.repairs {
                    pool.extend([Kind::RotJournal, Kind::RotSnapshot]);
                    pool.extend([Kind::LostWrite, Kind::MisdirectedWrite]);
                }
            }
        }
        if self.allowed.clock {
            pool.extend([Kind::ClockOffset, Kind::ClockDrift, Kind::ClockStep]);
            pool.extend([Kind::ClockStops, Kind::ClockLies, Kind::ClockFar]);
        }
        pool
    }
}

/// One injection of a fault.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Injection {
    pub kind: Kind,
    pub at: u64,
    pub duration: u64,
    /// How often it may still be injected again if it had no effect.
    pub again: u8,
}

/// The faults of a seed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub kinds: Vec<Kind>,
    pub injections: Vec<Injection>,
}

/// How often a fault without effect is injected again.
const AGAIN_MAX: u8 = 5;

/// Of 1,000 seeds, this many see syncs held.
const HELD_SHARE: u64 = 120;

impl Plan {
    /// Adds the syncs that are held, where they are drawn.
    pub fn draw_held(&mut self, ground: &Ground, random: &mut Random) {
        let lasts = (300, 1500);
        let (kind, allowed) = (Kind::HeldSync, ground.allowed);
        self.draw_apart(
            kind,
            (HELD_SHARE, allowed.held, allowed.disk),
            lasts,
            ground,
            random,
        );
    }

    /// Adds the leaders that only clients hear, where they are asked for.
    pub fn draw_orphaned(&mut self, ground: &Ground, random: &mut Random) {
        let lasts = (1, 1);
        let (kind, wanted) = (Kind::OrphanedLeader, ground.allowed.orphaned);
        self.draw_apart(kind, (0, wanted, false), lasts, ground, random);
    }

    /// Adds injections of a kind that is drawn apart, so that all else of a seed is as it would be
    /// without. It is there when it was asked for, or in a share of the seeds in which it fits.
    fn draw_apart(
        &mut self,
        kind: Kind,
        (share, wanted, fits): (u64, bool, bool),
        (shortest, longest): (u64, u64),
        ground: &Ground,
        random: &mut Random,
    ) {
        let (allowed, horizon) = (ground.allowed, ground.horizon);
        let drawn = random.chance(share);
        let fits = fits && allowed.network && allowed.crash && ground.replicas >= 3;
        if !(wanted || drawn && fits) {
            return;
        }
        self.kinds.push(kind);
        for _ in 0..random.between(1, 2) {
            self.injections.push(Injection {
                kind,
                at: random.between(horizon / 50, horizon * 7 / 10),
                duration: random.between(shortest, longest) * MILLISECOND,
                again: AGAIN_MAX,
            });
        }
    }

    /// Draws the kinds and injections of a seed.
    pub fn draw(ground: &Ground, random: &mut Random) -> Self {
        let (pool, horizon) = (ground.pool(), ground.horizon);
        // Some seeds see a few kinds, some see most of them.
        let share = [50, 100, 200, 350][random.index(4)];
        let mut kinds: Vec<Kind> = pool
            .iter()
            .copied()
            .filter(|_| random.chance(share))
            .collect();
        if kinds.is_empty() && !pool.is_empty() {
            kinds.push(pool[random.index(pool.len())]);
        }
        // Only that many replicas may be lost; which kinds get to do it is drawn.
        let mut losses = ground.losses_max();
        random.shuffle(&mut kinds);
        kinds.retain(|kind| {
            let stays = !kind.is_permanent() || losses > 0;
            losses -= usize::from(kind.is_permanent() && stays);
            stays
        });
        // The rest of the budget after a wiped replica may not be enough for others.
        let spare = (ground.replicas.saturating_sub(1) / 2).saturating_sub(1);
        if kinds.contains(&Kind::Wipe) {
            let memory = ground.durability == Durability::Memory;
            kinds.retain(|kind| match kind {
                Kind::CrashSet => !memory || spare >= 2,
                Kind::RotJournal | Kind::RotSnapshot | Kind::LostWrite | Kind::MisdirectedWrite => {
                    spare >= 1
                }
                _ => true,
            });
        }
        kinds.sort_unstable();
        let mut injections = Vec::new();
        // Faults that come close together find what single ones do not.
        let clusters: Vec<u64> = (0..random.between(1, 3))
            .map(|_| random.between(horizon / 50, horizon * 9 / 10))
            .collect();
        let clustered = [0, 500, 900][random.index(3)];
        let most = if kinds.len() > 8 { 2 } else { 3 };
        for kind in &kinds {
            let times = if kind.is_permanent() {
                1
            } else {
                random.between(1, most)
            };
            for _ in 0..times {
                let duration = match kind {
                    Kind::Crash
                    | Kind::CrashSet
                    | Kind::CrashAll
                    | Kind::Stop
                    | Kind::CrashVoter
                    | Kind::CrashMidStep
                    | Kind::CrashBeforePersisted
                    | Kind::CrashInSnapshot
                    | Kind::CrashInTransfer
                    | Kind::CrashInRecovery
                    | Kind::CrashAtAnswer
                    | Kind::CrashNewLeader
                    | Kind::CrashAfterWrite => random.between(5, 1200),
                    Kind::ClientReturns => random.between(200, 4000),
                    Kind::PauseLong => random.between(1500, 5000),
                    Kind::Delay | Kind::Loss | Kind::Duplicate | Kind::Attack | Kind::LateSync => {
                        random.between(300, 3000)
                    }
                    _ => random.between(50, 1500),
                } * MILLISECOND;
                let at = match kind {
                    Kind::ClockOffset => 0,
                    Kind::ClockFar if random.chance(300) => 0,
                    // There must be something to damage.
                    Kind::Wipe
                    | Kind::RotJournal
                    | Kind::RotPromise
                    | Kind::RotSnapshot
                    | Kind::LostWrite
                    | Kind::MisdirectedWrite => random.between(horizon / 4, horizon * 9 / 10),
                    _ if random.chance(clustered) => {
                        clusters[random.index(clusters.len())] + random.below(200 * MILLISECOND)
                    }
                    _ => random.between(horizon / 50, horizon * 9 / 10),
                };
                injections.push(Injection {
                    kind: *kind,
                    at,
                    duration,
                    again: if kind.is_rare() {
                        2 * AGAIN_MAX
                    } else {
                        AGAIN_MAX
                    },
                });
            }
        }
        Self { kinds, injections }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_faults_read_back() {
        for text in [
            "none",
            "network",
            "crash,clock",
            "all",
            "disk,configuration",
            "crash,held",
            "network,orphaned",
            "crash,ended",
        ] {
            let set: FaultSet = text.parse().unwrap();
            assert_eq!(set.to_string(), text);
        }
        assert!("flood".parse::<FaultSet>().unwrap_err().contains("flood"));
    }

    fn ground(allowed: FaultSet) -> Ground {
        Ground {
            allowed,
            replicas: 5,
            transport: Transport::Datagram,
            durability: Durability::Disk,
            changes_durability: false,
            repairs: true,
            sessions_expire: true,
            horizon: 1_000_000_000,
        }
    }

    #[test]
    fn every_allowed_kind_is_drawn_by_some_seed() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..400 {
            let mut random = Random::new(seed);
            let mut plan = Plan::draw(&ground(FaultSet::ALL), &mut random);
            plan.draw_held(&ground(FaultSet::ALL), &mut random);
            let orphaned = FaultSet {
                orphaned: true,
                ..FaultSet::ALL
            };
            plan.draw_orphaned(&ground(orphaned), &mut random);
            assert!(!plan.kinds.is_empty());
            assert!(plan.kinds.len() <= plan.injections.len());
            seen.extend(plan.kinds);
        }
        assert_eq!(seen.len(), Kind::ALL.len());
        let none = Plan::draw(&ground(FaultSet::NONE), &mut Random::new(1));
        assert!(none.kinds.is_empty());
    }

    #[test]
    fn fault_without_effect_on_few_replicas_is_not_drawn_for_them() {
        let ground = Ground {
            replicas: 2,
            ..ground(FaultSet::ALL)
        };
        assert!(ground.pool().contains(&Kind::Crash));
        assert!(!ground.pool().contains(&Kind::CrashVoter));
        let memory = Ground {
            durability: Durability::Memory,
            ..ground
        };
        let crashes = [Kind::Crash, Kind::Stop, Kind::CrashInRecovery];
        assert!(!crashes.iter().any(|kind| memory.pool().contains(kind)));
        let alone = Ground {
            replicas: 1,
            ..ground
        };
        assert!(ground.pool().contains(&Kind::SlowLink));
        assert!(!alone.pool().contains(&Kind::SlowLink));
    }
}
