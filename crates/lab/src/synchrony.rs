//! How synchronous a system is, and what rounds of a given length make of it (Chora §4, Figs. 5 and
//! 9).
//!
//! ```text
//!   machine, links ──► Chora in virtual time, length by length ──► α, β ──► κ, the best length
//!   two looks at /status of each replica of a running cluster ──► the same for its present rounds
//! ```
//!
//! - The **ideal** round t̂ is the shortest in which a replica does all its work where no delay
//!   varies: in virtual time, replicas divided by the most that any length makes there; of a
//!   running cluster, what the messages of a round take to be handled in the mean, by the replica's
//!   own measure.
//! - **Efficiency** α is t̂ divided by how long rounds last in the mean. (The paper divides by the
//!   length that is set; rounds here also end early, or with the turn in which their time is over.)
//! - **Effectiveness** β is the rounds that the work takes at least, one for each proposal of a
//!   replica, divided by those that it took.
//! - αβ is then the throughput as a part of the ideal one, and κ the greatest αβ.

use crate::{
    figures::Spread,
    report::{Chart, Point, Section, Series, chart, page},
    scenario::Scenario,
};
use quintet_cli::{Failure, Outcome, http};
use quintet_replica::links::{Jitter, Links, Model};
use quintet_simulator::performance::{self, Load, Profile, Setup};
use serde::Serialize;
use std::{collections::BTreeMap, path::Path, thread, time::Duration};

/// Which quantiles of the lengths of rounds a replica shows, per cent.
pub const QUANTILES: [u32; 5] = [10, 25, 50, 90, 99];

/// A replica's statistics of its rounds and its network. All times are nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Measured {
    /// Rounds that ended.
    pub rounds: u64,
    /// Those of them in which all live replicas were heard.
    pub rounds_in_time: u64,
    /// How long they lasted together.
    pub took: u64,
    /// Own proposals that were committed.
    pub proposals: u64,
    /// Of the lengths of the newest rounds, what [`QUANTILES`] name.
    pub lengths: [u64; 5],
    /// How long a message takes to be handled: mean, 90th and 99th percentile.
    pub processing: [u64; 3],
    /// How far delays lie above their mean on the worst link: 90th and 99th percentile.
    pub deviation: [u64; 2],
}

impl Measured {
    /// Reads the details of a status; none when the protocol has no rounds.
    pub fn of(details: &BTreeMap<String, String>) -> Option<Self> {
        fn row<const N: usize>(text: &str) -> Option<[u64; N]> {
            let mut numbers = [0; N];
            let mut words = text.split(' ');
            for number in &mut numbers {
                *number = words.next()?.parse().ok()?;
            }
            words.next().is_none().then_some(numbers)
        }
        let text = |name: &str| details.get(name).map(String::as_str);
        let number = |name: &str| text(name)?.parse().ok();
        Some(Self {
            rounds: number("rounds_ended")?,
            rounds_in_time: number("rounds_in_time")?,
            took: number("rounds_took_ns")?,
            proposals: number("proposals")?,
            lengths: row(text("round_p10_p25_p50_p90_p99_ns")?)?,
            processing: row(text("processing_mean_p90_p99_ns")?)?,
            deviation: row(text("deviation_p90_p99_ns")?)?,
        })
    }

    /// Changes since an earlier look; statistics of the newest samples stay.
    #[must_use]
    pub const fn since(self, earlier: &Self) -> Self {
        Self {
            rounds: self.rounds.saturating_sub(earlier.rounds),
            rounds_in_time: self.rounds_in_time.saturating_sub(earlier.rounds_in_time),
            took: self.took.saturating_sub(earlier.took),
            proposals: self.proposals.saturating_sub(earlier.proposals),
            ..self
        }
    }

    /// How long a round lasted in the mean; 0 when there was none.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.took as f64 / self.rounds.max(1) as f64
    }

    /// Which part of the rounds heard all live replicas.
    #[must_use]
    pub fn in_time(&self) -> f64 {
        self.rounds_in_time as f64 / self.rounds.max(1) as f64
    }

    /// (α, β) with this ideal round.
    #[must_use]
    pub fn graph(&self, ideal: f64) -> (f64, f64) {
        if self.rounds == 0 || self.took == 0 {
            return (0.0, 0.0);
        }
        let effectiveness = self.proposals as f64 / self.rounds as f64;
        (ideal / self.mean(), effectiveness)
    }
}

/// The coefficient of synchrony: what a message takes in the mean, divided by how far delays lie
/// above their mean and what it takes at the same percentile (Eq. 5, with the sign of Eq. 4).
#[must_use]
pub fn coefficient(processing_mean: f64, processing_tail: f64, deviation: f64) -> f64 {
    processing_mean / (deviation + processing_tail).max(1.0)
}

/// The study in virtual time.
#[derive(Clone, Debug)]
pub struct Question {
    /// How many replicas.
    pub replicas: usize,
    /// Their machines.
    pub profile: Profile,
    /// Delays of messages vary evenly between nothing and each of these.
    pub delays: Vec<Duration>,
    /// Lengths of rounds that are tried.
    pub lengths: Vec<Duration>,
    /// The length at which the distribution of actual lengths is shown (Fig. 5).
    pub shown: Duration,
    /// Clients, one request each, at all replicas.
    pub clients: usize,
    /// How long each run is measured, in virtual time.
    pub measured: Duration,
    /// Draws everything.
    pub seed: u64,
}

/// One run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Trial {
    /// The length that was set, in nanoseconds.
    pub length: u64,
    /// Whether rounds end when all were heard.
    pub early_exit: bool,
    /// Commands per second.
    pub throughput: f64,
    /// Frames between replicas for each command.
    pub frames_per_command: f64,
    /// CPU time of replicas for each frame that one of them took in, in nanoseconds.
    pub processing: f64,
    /// The measurements of the leader's replica.
    pub measured: Measured,
    /// α.
    pub efficiency: f64,
    /// β.
    pub effectiveness: f64,
}

impl Trial {
    /// αβ.
    #[must_use]
    pub fn relative(&self) -> f64 {
        self.efficiency * self.effectiveness
    }
}

/// The result of one distribution of delays for all lengths.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct System {
    /// Delays vary evenly between nothing and this, in nanoseconds.
    pub delays: u64,
    /// S⁹⁰.
    pub coefficient: f64,
    /// Rounds of their whole length, by length.
    pub whole: Vec<Trial>,
    /// Rounds that end early, by length.
    pub early: Vec<Trial>,
}

/// The trial with the greatest αβ: its αβ is κ, its length the one to choose.
#[must_use]
pub fn best(trials: &[Trial]) -> Option<&Trial> {
    trials.iter().reduce(|best, one| {
        let better = one.relative() > best.relative();
        if better { one } else { best }
    })
}

/// The result in virtual time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Found {
    /// t̂, in nanoseconds.
    pub ideal: f64,
    /// The most that any length makes without any variation, in commands per second.
    pub throughput: f64,
    /// By distribution of delays.
    pub systems: Vec<System>,
    /// Rounds of the length that is shown, where delays vary least: whole, and with early exit.
    pub shown: Vec<Trial>,
}

const UNCOUNTED: Duration = Duration::from_millis(5);

/// A length as the option takes it.
fn micros(length: Duration) -> String {
    let nanos = length.as_nanos();
    format!("{}.{:03}", nanos / 1000, nanos % 1000)
}

fn trial(
    question: &Question,
    delays: Duration,
    length: Duration,
    early_exit: bool,
) -> Outcome<Trial> {
    let entry =
        Scenario::entry("chora").ok_or_else(|| Failure::failed("chora is not registered"))?;
    let options = [
        ("mode", "pulsing".to_owned()),
        ("round_us", micros(length)),
        ("early_exit", early_exit.to_string()),
        ("batches_max", "1".to_owned()),
        ("window", "1024".to_owned()),
    ];
    let load = Load {
        batch: 1,
        at: (0..question.replicas as u16).collect(),
        ..Load::closed(question.clients, 16)
    };
    let found = performance::run(Setup {
        options: options
            .map(|(name, value)| (name.to_owned(), value))
            .to_vec(),
        links: Links {
            other: Model {
                jitter: match delays {
                    Duration::ZERO => Jitter::None,
                    most => Jitter::Uniform(most),
                },
                ..Model::default()
            },
            seed: question.seed,
            ..Links::default()
        },
        datagrams: true,
        warmup: UNCOUNTED,
        measured: question.measured,
        seed: question.seed,
        ..Setup::calm(entry, question.replicas, question.profile.clone(), load)
    });
    if let Some(why) = found.broken {
        return Err(Failure::failed(why));
    }
    let measured = Measured::of(&found.details.into_iter().collect())
        .ok_or_else(|| Failure::failed("there is no leader at the end"))?;
    let commands = found.answered.len() as f64;
    Ok(Trial {
        length: length.as_nanos() as u64,
        early_exit,
        throughput: commands / question.measured.as_secs_f64(),
        frames_per_command: found.frames as f64 / commands.max(1.0),
        processing: found.busy.iter().sum::<u64>() as f64 / found.frames.max(1) as f64,
        measured,
        efficiency: 0.0,
        effectiveness: 0.0,
    })
}

/// Runs them all. `watch` is told how many of how many are done, and says whether to continue.
///
/// # Errors
/// When a run breaks, or it was told to stop.
pub fn measure(question: &Question, mut watch: impl FnMut(usize, usize) -> bool) -> Outcome<Found> {
    let all = question.lengths.len() * (1 + 2 * question.delays.len()) + 2;
    let mut done = 0;
    let mut run = |delays, length, early_exit| {
        if !watch(done, all) {
            return Err(Failure::failed("stopped before all was measured"));
        }
        done += 1;
        trial(question, delays, length, early_exit)
    };
    let mut even = Vec::new();
    for length in &question.lengths {
        even.push(run(Duration::ZERO, *length, true)?);
    }
    let throughput = even.iter().map(|one| one.throughput).fold(0.0, f64::max);
    let processing = (even.iter().map(|one| one.processing)).fold(f64::INFINITY, f64::min);
    let ideal = question.replicas as f64 * 1e9 / throughput.max(1.0);
    let placed = |mut one: Trial| {
        (one.efficiency, one.effectiveness) = one.measured.graph(ideal);
        one
    };
    let mut systems = Vec::new();
    for delays in &question.delays {
        let mut sweep = |early_exit| {
            let mut trials = Vec::new();
            for length in &question.lengths {
                trials.push(placed(run(*delays, *length, early_exit)?));
            }
            Ok::<_, Failure>(trials)
        };
        let (whole, early) = (sweep(false)?, sweep(true)?);
        let deviation = best(&early).map_or(0, |one| one.measured.deviation[0]);
        systems.push(System {
            delays: delays.as_nanos() as u64,
            // On a simulated machine the same work always takes the same time.
            coefficient: coefficient(processing, processing, deviation as f64),
            whole,
            early,
        });
    }
    let least = question.delays.iter().min().copied().unwrap_or_default();
    let mut shown = Vec::new();
    for early_exit in [false, true] {
        shown.push(placed(run(least, question.shown, early_exit)?));
    }
    Ok(Found {
        ideal,
        throughput,
        systems,
        shown,
    })
}

/// The statistics of a replica of a running cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Seen {
    /// Which replica.
    pub id: u64,
    /// Pulsing or responsive.
    pub mode: String,
    /// How long its rounds may last now, as it says.
    pub length: String,
    /// Its measurements between the two looks.
    pub measured: Measured,
    /// S⁹⁰.
    pub coefficient: f64,
    /// α.
    pub efficiency: f64,
    /// β.
    pub effectiveness: f64,
    /// The length that Eq. 4 asks for at the 99th percentile, in nanoseconds.
    pub proposed: u64,
}

const TIMEOUT: Duration = Duration::from_secs(3);

/// The contents of a status: the replica's number, and its details.
fn look(address: &str) -> Outcome<(u64, BTreeMap<String, String>)> {
    let failed = |why: &dyn std::fmt::Display| Failure::failed(format!("{address}: {why}"));
    let answer = http::get(address, "/status", TIMEOUT).map_err(|error| failed(&error))?;
    if answer.code != 200 {
        return Err(failed(&format!("HTTP {}", answer.code)));
    }
    let status: serde_json::Value =
        serde_json::from_slice(&answer.body).map_err(|_| failed(&"the answer is not a status"))?;
    let details = serde_json::from_value(status["details"].clone())
        .map_err(|_| failed(&"the status has no details"))?;
    Ok((status["id"].as_u64().unwrap_or_default(), details))
}

impl Seen {
    /// The result of two looks at a replica.
    ///
    /// # Errors
    /// When its protocol has no rounds.
    pub fn of(
        id: u64,
        first: &BTreeMap<String, String>,
        then: &BTreeMap<String, String>,
    ) -> Outcome<Self> {
        let rounds = |details| {
            Measured::of(details).ok_or_else(|| {
                Failure::usage(format!("replica {id} has no rounds to measure"))
                    .help("quintet demo --protocol chora")
            })
        };
        let measured = rounds(then)?.since(&rounds(first)?);
        let text = |name: &str| then.get(name).cloned().unwrap_or_default();
        let peers = text("live").parse().unwrap_or(1_u64).saturating_sub(1);
        let [mean, p90, p99] = measured.processing;
        let [above_p90, above_p99] = measured.deviation;
        let (efficiency, effectiveness) = measured.graph((mean * peers) as f64);
        Ok(Self {
            id,
            mode: text("mode"),
            length: text("round_length"),
            measured,
            coefficient: coefficient(mean as f64, p90 as f64, above_p90 as f64),
            efficiency,
            effectiveness,
            proposed: above_p99.saturating_add(p99.saturating_mul(peers)),
        })
    }
}

/// Looks at each replica twice, so long apart.
///
/// # Errors
/// When one does not answer, or has no rounds.
pub fn running(addresses: &[String], apart: Duration) -> Outcome<Vec<Seen>> {
    let looks = || {
        addresses
            .iter()
            .map(|it| look(it))
            .collect::<Outcome<Vec<_>>>()
    };
    let first = looks()?;
    thread::sleep(apart);
    let then = looks()?;
    (first.iter().zip(&then))
        .map(|((_, first), (id, then))| Seen::of(*id, first, then))
        .collect()
}

/// Nanoseconds as microseconds.
#[must_use]
pub fn us(nanos: f64) -> String {
    format!("{:.3}", nanos / 1e3)
}

/// The headings of the columns of [`Found::rows`].
pub const HEADER: [&str; 9] = [
    "delays up to, us",
    "early exit",
    "round, us",
    "mean, us",
    "in time",
    "α",
    "β",
    "αβ",
    "frames per command",
];

impl Found {
    /// Every trial as text.
    #[must_use]
    pub fn rows(&self) -> Vec<[String; 9]> {
        let rows = self.systems.iter().flat_map(|system| {
            (system.whole.iter().chain(&system.early)).map(move |one| {
                [
                    us(system.delays as f64),
                    if one.early_exit { "yes" } else { "no" }.to_owned(),
                    us(one.length as f64),
                    us(one.measured.mean()),
                    format!("{:.3}", one.measured.in_time()),
                    format!("{:.3}", one.efficiency),
                    format!("{:.3}", one.effectiveness),
                    format!("{:.3}", one.relative()),
                    format!("{:.2}", one.frames_per_command),
                ]
            })
        });
        rows.collect()
    }

    fn series(&self, of: impl Fn(&Trial) -> (f64, f64)) -> Vec<Series> {
        let mut series = Vec::new();
        for system in &self.systems {
            for (trials, ends) in [(&system.whole, "whole"), (&system.early, "early exit")] {
                let points = trials.iter().map(|one| {
                    let (x, y) = of(one);
                    let y = Spread::of([y]);
                    Point { x, y }
                });
                series.push(Series {
                    name: format!("up to {} us, {ends}", us(system.delays as f64)),
                    points: points.collect(),
                    is_published: false,
                });
            }
        }
        series
    }

    /// Writes it as one page.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, facts: &[(String, String)], directory: &Path) -> Outcome<()> {
        let graph = Chart {
            x: "efficiency α".to_owned(),
            y: "effectiveness β".to_owned(),
            series: self.series(|one| (one.efficiency, one.effectiveness)),
            ..Chart::default()
        };
        let by_length = Chart {
            x: "length of a round, us".to_owned(),
            y: "αβ".to_owned(),
            series: self.series(|one| (one.length as f64 / 1e3, one.relative())),
            ..Chart::default()
        };
        let lengths = Chart {
            x: "actual length, us".to_owned(),
            y: "rounds that last no longer, per cent".to_owned(),
            series: (self.shown.iter())
                .map(|one| Series {
                    name: if one.early_exit {
                        "early exit"
                    } else {
                        "whole"
                    }
                    .to_owned(),
                    points: (QUANTILES.iter().zip(one.measured.lengths))
                        .map(|(percent, length)| Point {
                            x: length as f64 / 1e3,
                            y: Spread::of([f64::from(*percent)]),
                        })
                        .collect(),
                    is_published: false,
                })
                .collect(),
            ..Chart::default()
        };
        let sections = [
            Section {
                title: "Efficiency and effectiveness (Fig. 9)",
                figures: vec![chart(&graph), chart(&by_length)],
                header: HEADER.map(str::to_owned).to_vec(),
                rows: self.rows().into_iter().map(|row| row.to_vec()).collect(),
            },
            Section {
                title: "How long rounds last (Fig. 5)",
                figures: vec![chart(&lengths)],
                header: vec!["early exit".to_owned(), "mean, us".to_owned()],
                rows: (self.shown.iter())
                    .map(|one| vec![one.early_exit.to_string(), us(one.measured.mean())])
                    .collect(),
            },
        ];
        let about = "What rounds of a length make of a network (Chora §4, Figs. 5 and 9)";
        let text = page("synchrony", about, facts, &sections);
        std::fs::create_dir_all(directory)
            .and_then(|()| std::fs::write(directory.join("report.html"), text))
            .map_err(|error| Failure::failed(format!("{}: {error}", directory.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn details(rounds: u64) -> BTreeMap<String, String> {
        [
            ("rounds_ended", rounds.to_string()),
            ("rounds_in_time", (rounds / 2).to_string()),
            ("rounds_took_ns", (rounds * 2_000).to_string()),
            ("proposals", (rounds * 3 / 4).to_string()),
            ("round_p10_p25_p50_p90_p99_ns", "1 2 3 4 5".to_owned()),
            ("processing_mean_p90_p99_ns", "200 300 400".to_owned()),
            ("deviation_p90_p99_ns", "500 1000".to_owned()),
            ("mode", "pulsing".to_owned()),
            ("round_length", "50µs".to_owned()),
            ("live", "3".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    #[test]
    fn two_looks_tell_of_the_time_in_between() {
        let seen = Seen::of(1, &details(100), &details(500)).unwrap();
        assert_eq!((seen.measured.rounds, seen.measured.took), (400, 800_000));
        assert_eq!(seen.measured.in_time(), 0.5);
        // 2 messages of 200 ns in a round of 2 us; 3 proposals in 4 rounds.
        assert_eq!((seen.efficiency, seen.effectiveness), (0.2, 0.75));
        assert_eq!(seen.coefficient, 0.25, "200 / (500 + 300)");
        assert_eq!(seen.proposed, 1_800, "1000 + 2 · 400");
        let idle = Seen::of(1, &details(100), &details(100)).unwrap();
        assert_eq!((idle.efficiency, idle.effectiveness), (0.0, 0.0));
        let error = Seen::of(1, &BTreeMap::new(), &details(1)).unwrap_err();
        assert!(error.to_string().contains("quintet demo"), "{error}");
    }

    #[test]
    fn rounds_matching_jitter_are_effective_and_tails_cost() {
        let (_, profile) = crate::profile::load("chora").unwrap();
        let lengths = [1_000, 2_000, 8_000].map(Duration::from_nanos).to_vec();
        let question = Question {
            replicas: 3,
            profile,
            delays: [10, 6_000].map(Duration::from_nanos).to_vec(),
            lengths,
            shown: Duration::from_nanos(1_500),
            clients: 96,
            measured: Duration::from_millis(5),
            seed: 1,
        };
        let found = measure(&question, |_, _| true).unwrap();
        let [near, far] = [&found.systems[0], &found.systems[1]];
        assert!(near.coefficient > far.coefficient, "{near:?} {far:?}");
        for system in [near, far] {
            let [short, .., long] = system.whole.as_slice() else {
                panic!("three lengths")
            };
            assert!(short.efficiency > long.efficiency, "{system:?}");
            for one in system.whole.iter().chain(&system.early) {
                let part = one.throughput / found.throughput;
                let told = one.relative();
                assert!((told - part).abs() < 0.1, "{told} for {part}: {one:?}");
            }
        }
        let kappa = |system: &System| best(&system.whole).unwrap().relative();
        assert!(kappa(near) > kappa(far), "{near:?} {far:?}");
        let [whole, early] = [0, 1].map(|at| found.shown[at].measured);
        assert!(early.mean() < whole.mean(), "{early:?} {whole:?}");
        assert!(whole.lengths[2] >= 1_500, "{whole:?}");
        assert!(measure(&question, |done, _| done < 2).is_err(), "stopped");
    }
}
