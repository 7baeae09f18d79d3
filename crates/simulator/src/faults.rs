//! Which faults strike a world, and when: a subset of the kinds drawn per seed.
//!
//! ```text
//!   --faults ──► allowed kinds ──(each with a chance)──► kinds of this seed
//!                                         │
//!   safety phase  0 ────────────────────────────────────► horizon
//!                     strike ──duration──►     strike ──►         each drawn kind must have
//!                                                                 an effect, or the seed
//!                                                                 does not count
//! ```

use crate::{network::Transport, random::Random};
use quintet_replica::Durability;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Which faults a campaign may draw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultSet {
    /// Delays, losses, resets, partitions.
    pub network: bool,
    /// Crashes, restarts, pauses, slow replicas.
    pub crash: bool,
    /// Slow disks. What a crash loses of the unsynced writes belongs to `crash`.
    pub disk: bool,
    /// Clocks with offset, drift and steps.
    pub clock: bool,
}

impl FaultSet {
    /// No faults.
    pub const NONE: Self = Self {
        network: false,
        crash: false,
        disk: false,
        clock: false,
    };
    /// All of them.
    pub const ALL: Self = Self {
        network: true,
        crash: true,
        disk: true,
        clock: true,
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
                "all" => set = Self::ALL,
                other => {
                    return Err(format!(
                        "'{other}' is no kind of fault: none, network, crash, disk, clock, all, or \
                         several separated by commas"
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
    /// One replica crashes between two steps.
    Crash "crash",
    /// Several replicas crash at once.
    CrashSet "crash_set",
    /// A replica crashes while it carries out the effects of a step.
    CrashMidStep "crash_mid_step",
    /// A replica crashes when a write is durable and it has not been told.
    CrashBeforePersisted "crash_before_persisted",
    /// A replica crashes when it has voted and its vote is not durable yet, if it ever will be.
    CrashVoter "crash_voter",
    /// A replica crashes when it has handed a write over and sent nothing since.
    CrashAfterWrite "crash_after_write",
    /// A replica is asked to hand over and stops a little later.
    Stop "stop",
    /// A replica stands still and goes on.
    Pause "pause",
    /// A replica's processor is many times slower.
    SlowReplica "slow_replica",
    /// A disk is many times slower.
    SlowDisk "slow_disk",
    /// A synchronised clock is off from the start.
    ClockOffset "clock_offset",
    /// A clock runs too fast or too slowly.
    ClockDrift "clock_drift",
    /// A synchronised clock jumps.
    ClockStep "clock_step",
    /// A client goes away for good in the middle of an operation.
    ClientAbandons "client_abandons",
    /// A client goes away in the middle of an operation and comes back after long.
    ClientReturns "client_returns",
}

impl Kind {
    /// Whether a seed that drew it counts only if it had an effect. Not every protocol votes.
    pub const fn must_show(self) -> bool {
        !matches!(self, Self::CrashVoter)
    }
}

/// One strike of a fault.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Strike {
    pub kind: Kind,
    pub at: u64,
    pub duration: u64,
    /// How often it may still strike again because nobody noticed it.
    pub again: u8,
}

/// The faults of a seed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub kinds: Vec<Kind>,
    pub strikes: Vec<Strike>,
}

const MILLISECOND: u64 = 1_000_000;

impl Plan {
    /// Draws the kinds and strikes of a seed over the first `horizon` nanoseconds.
    pub fn draw(
        allowed: FaultSet,
        replicas: usize,
        transport: Transport,
        durability: Durability,
        horizon: u64,
        random: &mut Random,
    ) -> Self {
        let mut pool = Vec::new();
        if allowed.network {
            pool.extend([Kind::Delay, Kind::Loss, Kind::Reset, Kind::SlowLink]);
            if replicas >= 2 {
                pool.extend([Kind::PartitionFull, Kind::PartitionOneWay]);
            }
            if replicas >= 3 {
                pool.extend([Kind::PartitionBridge, Kind::PartitionChained]);
            }
            if replicas >= 4 {
                pool.push(Kind::PartitionRing);
            }
            if transport == Transport::Datagram {
                pool.push(Kind::Duplicate);
            }
        }
        if allowed.crash {
            pool.extend([
                Kind::Crash,
                Kind::CrashMidStep,
                Kind::Pause,
                Kind::SlowReplica,
            ]);
            pool.push(Kind::Stop);
            pool.extend([Kind::ClientAbandons, Kind::ClientReturns]);
            if durability == Durability::Disk {
                pool.extend([
                    Kind::CrashBeforePersisted,
                    Kind::CrashAfterWrite,
                    Kind::CrashVoter,
                ]);
            }
            if durability == Durability::Disk || replicas >= 5 {
                pool.push(Kind::CrashSet);
            }
        }
        // In memory durability the disk is hardly ever waited for.
        if allowed.disk && durability == Durability::Disk {
            pool.push(Kind::SlowDisk);
        }
        if allowed.clock {
            pool.extend([Kind::ClockOffset, Kind::ClockDrift, Kind::ClockStep]);
        }
        let share = random.between(150, 650);
        let mut kinds: Vec<Kind> = pool
            .iter()
            .copied()
            .filter(|_| random.chance(share))
            .collect();
        if kinds.is_empty() && !pool.is_empty() {
            kinds.push(pool[random.index(pool.len())]);
        }
        let mut strikes = Vec::new();
        // Faults that come close together find what single ones do not.
        let clusters: Vec<u64> = (0..random.between(1, 3))
            .map(|_| random.between(horizon / 50, horizon * 9 / 10))
            .collect();
        let clustered = [0, 500, 900][random.index(3)];
        for kind in &kinds {
            for _ in 0..random.between(1, 3) {
                let duration = match kind {
                    Kind::Crash
                    | Kind::CrashSet
                    | Kind::Stop
                    | Kind::CrashVoter
                    | Kind::CrashMidStep
                    | Kind::CrashBeforePersisted
                    | Kind::CrashAfterWrite => random.between(5, 1200),
                    Kind::ClientReturns => random.between(200, 4000),
                    Kind::Delay | Kind::Loss | Kind::Duplicate => random.between(300, 3000),
                    _ => random.between(50, 1500),
                } * MILLISECOND;
                let at = match kind {
                    Kind::ClockOffset => 0,
                    _ if random.chance(clustered) => {
                        clusters[random.index(clusters.len())] + random.below(200 * MILLISECOND)
                    }
                    _ => random.between(horizon / 50, horizon * 9 / 10),
                };
                strikes.push(Strike {
                    kind: *kind,
                    at,
                    duration,
                    again: if kind.must_show() { 12 } else { 2 },
                });
            }
        }
        Self { kinds, strikes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_faults_read_back() {
        for text in ["none", "network", "crash,clock", "all"] {
            let set: FaultSet = text.parse().unwrap();
            assert_eq!(set.to_string(), text);
        }
        assert!("flood".parse::<FaultSet>().unwrap_err().contains("flood"));
    }

    #[test]
    fn every_allowed_kind_is_drawn_by_some_seed() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..400 {
            let mut random = Random::new(seed);
            let plan = Plan::draw(
                FaultSet::ALL,
                5,
                Transport::Datagram,
                Durability::Disk,
                1_000_000_000,
                &mut random,
            );
            assert!(!plan.kinds.is_empty());
            assert!(plan.kinds.len() <= plan.strikes.len());
            seen.extend(plan.kinds);
        }
        assert_eq!(seen.len(), 25);
        let none = Plan::draw(
            FaultSet::NONE,
            5,
            Transport::Stream,
            Durability::Disk,
            9,
            &mut Random::new(1),
        );
        assert!(none.kinds.is_empty());
    }
}
