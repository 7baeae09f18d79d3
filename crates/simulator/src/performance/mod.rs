//! The performance model: how fast a cluster would be, in virtual time, on a machine that a profile
//! describes.
//!
//! ```text
//!   clients ──request──► replica's turn: all that waits ──► Node (the real one) ──► outputs
//!      ▲                   │ costs CPU: per frame, byte, request, command …            │
//!      │                   ▼                                                           │
//!      │                 a core of a pool (shared by all, or its own)                  │
//!      └──reply── … ◄── frames ◄── links: delay, jitter, loss, bandwidth ◄─────────────┤
//!                       syncs  ◄── journal: one at a time, all that waits ◄────────────┘
//! ```
//!
//! Where the other world of this crate looks for histories that break a promise, this one only
//! asks for throughput and latency: no checkers, no drawn faults, and costs that were measured
//! instead of drawn. The code that runs in the replicas is the same, frame by frame. One
//! description gives one result, bit for bit: nothing but integers decides what happens when.

mod card;
mod clients;
mod cores;
mod journal;
mod part;
mod pattern;
mod profile;
mod proxy;
mod replica;
mod service;
mod world;

pub use card::Cards;
pub use pattern::Pattern;
pub use profile::{Costs, Placement, Profile};

use quintet_replica::{
    Durability, Entry, FULL_BATCH_BYTES, FULL_BATCH_REQUESTS, Level, links::Links,
};
use std::{collections::BTreeMap, time::Duration};

/// How the clients ask.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// Clients, one request each in progress in a closed loop.
    pub clients: usize,
    /// Requests per second of all clients together, at random moments (Poisson); `None` for a
    /// closed loop.
    pub rate: Option<u64>,
    /// Bytes per value.
    pub value_size: usize,
    /// The most requests that a replica orders together; 0 for as many as there are.
    pub batch: usize,
    /// A batch of that many bytes of values is full, and need not wait for those before it.
    pub batch_bytes: usize,
    /// The same for that many requests.
    pub batch_requests: usize,
    /// Of a thousand requests, that many are reads.
    pub reads: u64,
    /// The consistency of reads.
    pub level: Level,
    /// At which replicas the clients are, taking turns; frontends of their own are numbered behind
    /// the replicas.
    pub at: Vec<u16>,
    /// Machines with a frontend and no replica: proxies, or clients that ask replicas themselves.
    pub frontends: usize,
    /// Clients reach replicas and proxies as those reach each other, not over the shortest way.
    pub remote: bool,
    /// Keys that requests touch, one each; 0 when each touches everything.
    pub keys: u64,
    /// How unevenly: the key is drawn as this power of an even draw, so that 1 is even, 2 is Zipf's
    /// law with a skew of a half, and 4 one of three quarters, but that the first few keys get more
    /// than their share.
    pub skew: u32,
}

impl Load {
    /// A closed loop of writes at the first replica, in batches as servers make them unless told
    /// otherwise, each of which touches everything.
    #[must_use]
    pub fn closed(clients: usize, value_size: usize) -> Self {
        Self {
            clients,
            rate: None,
            value_size,
            batch: 0,
            batch_bytes: FULL_BATCH_BYTES,
            batch_requests: FULL_BATCH_REQUESTS,
            reads: 0,
            level: Level::Linearizable,
            at: vec![0],
            frontends: 0,
            remote: false,
            keys: 0,
            skew: 1,
        }
    }
}

/// How the machines' clocks are wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clocks {
    /// Each is wrong by something between minus and plus this, and says so.
    pub error: Duration,
    /// From when on, whose and by how much more one is wrong without saying so.
    pub step: Option<ClockStep>,
}

/// An operator sets a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockStep {
    /// When, from the beginning of the run.
    pub at: Duration,
    /// Until when; `None` forever.
    pub until: Option<Duration>,
    /// Whose: a replica, or a frontend behind them.
    pub machine: u16,
    /// Forward or back.
    pub forward: bool,
    /// By how much.
    pub by: Duration,
}

/// Events of replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The process dies and is started again at the end.
    Crash,
    /// The process stands still.
    Pause,
    /// Each synchronisation of its disk takes longer by this.
    SlowDisk(Duration),
    /// No synchronisation of its disk ends before the fault does.
    HungDisk,
}

/// Something that happens to a replica for a while. Events of links stand in [`Links`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// When it begins, from the beginning of the run.
    pub at: Duration,
    /// When it ends; `None` for never.
    pub until: Option<Duration>,
    /// To whom.
    pub replica: u16,
    /// The kind.
    pub kind: FaultKind,
}

/// An adversary that looks who leads, again and again, and delays what that one sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hunt {
    /// From when on, counted from the beginning of the run.
    pub at: Duration,
    /// Until when.
    pub until: Duration,
    /// How often it looks.
    pub every: Duration,
    /// How much later everything arrives until it looks again.
    pub delay_more: Duration,
}

/// Replicas whose turns take longer than the profile says; what their network cards do does not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slowed {
    /// Which.
    pub replicas: Vec<u16>,
    /// Of a hundred turns that they would have, that many; 0 for all of them.
    pub efficiency: u64,
}

/// One run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The protocol.
    pub entry: &'static Entry,
    /// Its options. If they add groups, clients are at those.
    pub options: Vec<(String, String)>,
    /// How many replicas.
    pub replicas: usize,
    /// The promise of an acknowledgement.
    pub durability: Durability,
    /// How links behave, beside what loopback costs.
    pub links: Links,
    /// Messages between replicas on the lane for control may overtake each other, as datagrams do.
    /// Only for protocols that do not need streams.
    pub datagrams: bool,
    /// The machine.
    pub profile: Profile,
    /// Its network card.
    pub cards: Cards,
    /// The slow replicas.
    pub slowed: Slowed,
    /// The clients.
    pub load: Load,
    /// The events of replicas.
    pub faults: Vec<Fault>,
    /// The faults of the present leader.
    pub hunt: Option<Hunt>,
    /// How clocks are wrong.
    pub clocks: Clocks,
    /// Duration that is not counted.
    pub warmup: Duration,
    /// Duration that is counted.
    pub measured: Duration,
    /// Draws everything.
    pub seed: u64,
}

impl Setup {
    /// This many replicas in memory with a protocol's own options, on machines and links that never
    /// fail: one second, all of which counts.
    #[must_use]
    pub fn calm(entry: &'static Entry, replicas: usize, profile: Profile, load: Load) -> Self {
        Self {
            entry,
            options: Vec::new(),
            replicas,
            durability: Durability::Memory,
            links: Links::default(),
            datagrams: false,
            profile,
            cards: Cards::default(),
            slowed: Slowed::default(),
            load,
            faults: Vec::new(),
            hunt: None,
            clocks: Clocks::default(),
            warmup: Duration::ZERO,
            measured: Duration::from_secs(1),
            seed: 1,
        }
    }
}

/// When a branch was taken, in nanoseconds since the measuring began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The first time.
    pub first: u64,
    /// The last time.
    pub last: u64,
    /// How often.
    pub count: u64,
}

/// The result of a run. All times are nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// When each good answer of the measured time came, from its beginning.
    pub answered: Vec<u64>,
    /// At which replica each of those came.
    pub answered_at: Vec<u16>,
    /// How long each of those took since it was due.
    pub took: Vec<u64>,
    /// How long requests took since they were due: in a closed loop those of `answered`, in an open
    /// loop those that were due in the measured time, however late their answers came.
    pub latencies: Vec<u64>,
    /// Requests that were refused, or given up with an unknown outcome.
    pub failed: u64,
    /// Requests without an answer before the end.
    pub unanswered: u64,
    /// Frames between replicas in the measured time.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Synchronisations of journals.
    pub syncs: u64,
    /// How often replicas and their journals were woken on a core that had nothing else to do.
    pub sleeps: u64,
    /// CPU time of each replica.
    pub busy: Vec<u64>,
    /// CPU time of the load generator.
    pub generator: u64,
    /// CPU time of each frontend on its own.
    pub frontends: Vec<u64>,
    /// Batches of the measured time by how they were committed, where there are several ways.
    pub paths: BTreeMap<&'static str, u64>,
    /// Rare branches that were taken in the measured time.
    pub moments: BTreeMap<&'static str, Moment>,
    /// The leader's own statistics at the end.
    pub details: Vec<(String, String)>,
    /// Why the run means nothing, if it does not.
    pub broken: Option<String>,
}

/// Runs to the end.
#[must_use]
pub fn run(setup: Setup) -> Found {
    world::World::new(setup).run()
}

#[cfg(test)]
mod tests {
    use super::*;
    use quintet_replica::links::Jitter;

    fn setup(clients: usize) -> Setup {
        let entry = quintet_protocols::find("multipaxos").unwrap();
        Setup {
            durability: Durability::Disk,
            warmup: Duration::from_millis(50),
            measured: Duration::from_millis(200),
            ..Setup::calm(entry, 3, Profile::default(), Load::closed(clients, 128))
        }
    }

    fn median(found: &Found) -> u64 {
        let mut latencies: Vec<u64> = found.latencies.clone();
        latencies.sort_unstable();
        latencies[latencies.len() / 2]
    }

    #[test]
    fn same_run_gives_the_same_numbers_to_the_last() {
        let found = run(setup(16));
        assert_eq!((found.broken.as_ref(), found.failed), (None, 0));
        assert!(found.answered.len() > 1_000, "{}", found.answered.len());
        assert_eq!(found, run(setup(16)));
        let other = run(Setup {
            seed: 2,
            ..setup(16)
        });
        assert_ne!(found, other);
    }

    #[test]
    fn wake_requested_within_turn_comes_after_it() {
        // When turns and rounds end together depends on how long both are.
        for round in (20..100).step_by(2) {
            let found = run(Setup {
                entry: quintet_protocols::find("chora").unwrap(),
                options: vec![
                    ("mode".to_owned(), "pulsing".to_owned()),
                    ("round_us".to_owned(), round.to_string()),
                ],
                durability: Durability::Memory,
                profile: Profile {
                    placement: Placement::Own,
                    ..Profile::default()
                },
                ..setup(1)
            });
            // Nothing is lost here, so that no replica ever waits for the coordination timer.
            let longest = found.latencies.iter().max().copied().unwrap();
            assert!(longest < 5_000_000, "rounds of {round} us: {longest} ns");
        }
    }

    #[test]
    fn adversary_that_looks_who_leads_delays_what_that_one_sends() {
        let hunted = Setup {
            hunt: Some(Hunt {
                at: Duration::from_millis(100),
                until: Duration::from_millis(180),
                every: Duration::from_millis(20),
                delay_more: Duration::from_millis(5),
            }),
            ..setup(16)
        };
        let found = run(hunted);
        let answered = |from: u64, until: u64| {
            let within = |one: &&u64| (from..until).contains(&(**one / 1_000_000));
            found.answered.iter().filter(within).count()
        };
        // Measured from 50 ms on, each in 30 ms.
        let (before, under, after) = (answered(10, 40), answered(70, 100), answered(150, 180));
        assert!(under * 4 < before, "{under} of {before}");
        assert!(after * 2 > before, "{after} of {before}");
    }

    #[test]
    fn more_clients_give_more_until_the_cores_are_busy() {
        let [one, many, more] = [1, 32, 256].map(|clients| run(setup(clients)));
        assert_eq!((one.failed, many.failed, more.failed), (0, 0, 0));
        assert!(many.answered.len() > 4 * one.answered.len());
        let busy: u64 = more.busy.iter().sum::<u64>() + more.generator;
        let all = 200_000_000 * Profile::default().cores as u64;
        assert!(busy <= all + all / 50, "{busy} of {all}");
        assert!(more.answered.len() > many.answered.len());
    }

    #[test]
    fn long_way_shows_in_the_latency_and_reads_need_a_quorum() {
        let mut far = setup(8);
        far.durability = Durability::Memory;
        far.links.other.delay = Duration::from_millis(10);
        far.measured = Duration::from_secs(2);
        let writes = median(&run(far.clone()));
        assert!((20_000_000..23_000_000).contains(&writes), "{writes}");
        far.load.reads = 1_000;
        let reads = median(&run(far));
        assert!((20_000_000..23_000_000).contains(&reads), "{reads}");
    }

    /// The bytes that all replicas send in a second, and the number of answered requests, when
    /// three write values of 64 KiB over NICs of 1 Gbit/s.
    fn over_cards(cards: Cards, slowed: Slowed) -> (u64, usize) {
        let mut large = setup(24);
        large.entry = quintet_protocols::find("derecho").unwrap();
        large.durability = Durability::Memory;
        large.profile.placement = Placement::Own;
        large.links.egress = 1_000_000_000;
        large.cards = cards;
        large.slowed = slowed;
        large.load.value_size = 64 << 10;
        large.load.at = vec![0, 1, 2];
        large.load.batch = 1;
        let found = run(large);
        assert_eq!((found.broken.as_ref(), found.failed), (None, 0));
        (found.bytes * 5, found.answered.len())
    }

    #[test]
    fn cards_and_the_memory_behind_them_bound_what_goes_over_them() {
        let (free, _) = over_cards(Cards::default(), Slowed::default());
        let of = |ingress, memory| {
            over_cards(
                Cards {
                    ingress,
                    memory,
                    stands_for: 1,
                },
                Slowed::default(),
            )
            .0
        };
        // Bytes in a second of three machines, each at that many bits in a second.
        let most = |bits: u64| 3 * bits / 8;
        assert!(free > most(700_000_000), "{free}");
        let taken = of(400_000_000, 0);
        assert!(
            (most(280_000_000)..most(420_000_000)).contains(&taken),
            "{taken}"
        );
        // Bytes that leave one memory enter another.
        let moved = of(0, 800_000_000);
        assert!(
            (most(280_000_000)..most(420_000_000)).contains(&moved),
            "{moved}"
        );
    }

    #[test]
    fn slow_turns_cost_small_requests_more_than_large_ones() {
        let slowed = || Slowed {
            replicas: vec![1],
            efficiency: 20,
        };
        let large = [Slowed::default(), slowed()].map(|slow| over_cards(Cards::default(), slow).1);
        let small = [Slowed::default(), slowed()].map(|slow| {
            let mut small = setup(64);
            small.entry = quintet_protocols::find("derecho").unwrap();
            small.durability = Durability::Memory;
            small.profile.placement = Placement::Own;
            small.load.at = vec![0, 1, 2];
            small.slowed = slow;
            run(small).answered.len()
        });
        assert!(small[1] * 2 < small[0], "{small:?}");
        assert!(
            large[1] * small[0] > large[0] * small[1],
            "{large:?} {small:?}"
        );
    }

    /// Requests of that many bytes that shards of two among n members answer.
    fn in_shards(members: usize, overlapping: bool, value_size: usize) -> usize {
        let pattern = Pattern {
            size: 2,
            overlapping,
        };
        let mut shards = setup(8 * pattern.memberships(members));
        shards.entry = quintet_protocols::find("derecho").unwrap();
        shards.options = vec![("layout".to_owned(), pattern.layout(members))];
        shards.replicas = members;
        shards.durability = Durability::Memory;
        shards.profile.placement = Placement::Own;
        shards.links.egress = 1_000_000_000;
        shards.cards.ingress = 1_000_000_000;
        shards.load.value_size = value_size;
        shards.load.batch = 1;
        shards.load.at = (0..members as u16).collect();
        let found = run(shards);
        assert_eq!((found.broken.as_ref(), found.failed), (None, 0));
        let at = |id| found.answered_at.iter().filter(|at| **at == id).count();
        let counts: Vec<usize> = (0..members as u16).map(at).collect();
        let even = counts.iter().max() <= counts.iter().min().map(|least| least * 11 / 10).as_ref();
        assert!(even, "{counts:?}");
        found.answered.len()
    }

    #[test]
    fn shards_of_one_size_carry_in_proportion_to_all_members() {
        // Of four members each has two peers where shards overlap, of two only one.
        for (overlapping, members) in [(false, [2, 4]), (true, [4, 8])] {
            for value_size in [64, 64 << 10] {
                let [one, two] = members.map(|members| in_shards(members, overlapping, value_size));
                assert!(one > 50 && two * 100 >= one * 2 * 95, "{one} and {two}");
            }
        }
    }

    #[test]
    fn datagrams_do_not_wait_for_those_before_them() {
        let mut varied = setup(64);
        varied.entry = quintet_protocols::find("racs").unwrap();
        varied.durability = Durability::Memory;
        varied.load.at = vec![0, 1, 2];
        varied.links.other.jitter = Jitter::Uniform(Duration::from_millis(2));
        let stream = median(&run(varied.clone()));
        varied.datagrams = true;
        let datagrams = median(&run(varied));
        assert!(datagrams < stream, "{datagrams} against {stream}");
    }

    #[test]
    fn replies_leave_one_after_the_other() {
        let found = run(Setup {
            durability: Durability::Memory,
            profile: Profile {
                placement: Placement::Own,
                ..Profile::default()
            },
            ..setup(64)
        });
        let each = Profile::default().costs.reply;
        let apart = |two: &[u64]| two[1] - two[0] >= each;
        assert!(found.answered.len() > 1_000 && found.answered.windows(2).all(apart));
    }

    #[test]
    fn open_loop_offers_its_rate() {
        let mut open = setup(64);
        open.load.rate = Some(5_000);
        open.measured = Duration::from_secs(1);
        let found = run(open);
        assert!(
            (4_700..5_300).contains(&found.answered.len()),
            "{}",
            found.answered.len()
        );
    }

    /// Small requests of 10 frontends on machines of their own, to a protocol that orders by
    /// clocks.
    fn by_clocks(error: Duration, rate: u64) -> Found {
        let mut own = setup(64);
        own.entry = quintet_protocols::find("nezha").unwrap();
        own.durability = Durability::Memory;
        own.profile.placement = Placement::Own;
        own.links.other.delay = Duration::from_micros(50);
        own.links.other.jitter = Jitter::Exponential(Duration::from_micros(10));
        own.clocks.error = error;
        own.load = Load {
            rate: Some(rate),
            batch: 1,
            at: (3..13).collect(),
            frontends: 10,
            keys: 1_000,
            skew: 2,
            ..own.load
        };
        run(own)
    }

    #[test]
    fn separate_frontends_work_and_wrong_clocks_cost_only_time() {
        let right = by_clocks(Duration::ZERO, 10_000);
        assert_eq!((right.broken.as_ref(), right.failed), (None, 0));
        assert_eq!((right.busy.len(), right.frontends.len()), (3, 10));
        assert!(right.frontends.iter().all(|busy| *busy > 0));
        let all: u64 = right.paths.values().sum();
        assert!(right.paths["fast"] * 2 > all, "{:?}", right.paths);
        let wrong = by_clocks(Duration::from_millis(2), 10_000);
        assert_eq!((wrong.broken.as_ref(), wrong.failed), (None, 0));
        assert!(wrong.answered.len() > 1_000, "{}", wrong.answered.len());
        assert!(median(&wrong) > 2 * median(&right));
    }

    #[test]
    fn clock_that_is_set_while_everybody_works_costs_time_only() {
        let mut set = setup(16);
        set.entry = quintet_protocols::find("nezha").unwrap();
        set.durability = Durability::Memory;
        set.load.at = vec![0, 1, 2];
        set.measured = Duration::from_secs(1);
        for (machine, forward) in [(0, true), (0, false), (1, true), (1, false)] {
            set.clocks.step = Some(ClockStep {
                at: Duration::from_millis(300),
                until: None,
                machine,
                forward,
                by: Duration::from_secs(1),
            });
            let found = run(set.clone());
            assert_eq!(found.broken, None);
            let late = |when: &&u64| **when > 800_000_000;
            let late = found.answered.iter().filter(late).count();
            assert!(late > 1_000, "{late} after the clock of {machine} was set");
        }
    }

    #[test]
    fn crash_of_the_leader_is_survived() {
        let mut crashed = setup(8);
        crashed.measured = Duration::from_secs(4);
        crashed.load.at = vec![1];
        crashed.faults.push(Fault {
            at: Duration::from_secs(1),
            until: Some(Duration::from_secs(2)),
            replica: 0,
            kind: FaultKind::Crash,
        });
        let found = run(crashed);
        assert_eq!(found.broken, None);
        let late = found
            .answered
            .iter()
            .filter(|when| **when > 3_000_000_000)
            .count();
        assert!(late > 1_000, "{late}");
    }
}
