//! How often messages of several senders reach two receivers in different orders, and what
//! deadline-ordered multicast makes of it (Nezha §2, §3, Figs. 1–3). No protocol, no costs: links
//! and the layer itself.
//!
//! ```text
//!   senders, Poisson ──► links ──► receiver 1: the order that counts
//!                             └──► receiver 2: a message before which a later one came, or which
//!                                  receiver 1 never had in order, is reordered
//! ```

use crate::{
    figures::Spread,
    report::{Chart, Point, Section, Series, chart, page},
};
use quintet_cli::{Failure, Outcome};
use quintet_protocols::nezha::{
    EarlyBuffer, Estimation, Footprint, Holds, Marks, Name, OneWayDelays, Stamp,
};
use quintet_replica::{
    BatchId, Bytes, FrontendId, Time,
    links::{Departures, Links, exponential},
};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

/// The study to make.
#[derive(Clone, Debug)]
pub struct Question {
    /// How the links behave.
    pub links: Links,
    /// How many senders.
    pub senders: usize,
    /// Messages per second of each.
    pub rate: u64,
    /// By deadlines, with this percentile of the measured delays as the bound; `None` for the order
    /// of arrival.
    pub percentile: Option<u8>,
    /// How many messages.
    pub messages: u64,
}

/// The result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answer {
    /// Which part of the messages that the second receiver let go was reordered.
    pub reordered: f64,
    /// Which part of all messages was late at one of the two: not let go in order.
    pub late: f64,
    /// The median hold at a receiver, in microseconds.
    pub hold: f64,
}

const RECEIVERS: u16 = 2;
/// Bytes of a message on the wire.
const BYTES: usize = 100;
/// The longest bound, in nanoseconds.
const BOUND_MAX: u64 = 10_000_000;
/// How many messages are sent before any is counted: the bounds must have been measured.
const UNCOUNTED: u64 = 2_000;

/// One receiver, and the order in which it let messages go.
struct Receiver {
    delays: OneWayDelays,
    early: EarlyBuffer,
    marks: Marks,
    holds: Holds,
    released: Vec<u64>,
}

impl Receiver {
    fn release(&mut self, clock: u64) {
        while let Some((stamp, ..)) = self.early.release(clock) {
            self.marks.note(stamp, &Footprint::of_everything());
            self.released.push(stamp.name.batch.0);
        }
    }
}

/// Sends them all.
#[must_use]
pub fn ask(question: &Question) -> Answer {
    let senders = question.senders.max(1);
    let mut ways: Vec<Departures> = (0..senders)
        .map(|sender| question.links.departures(RECEIVERS + sender as u16))
        .collect();
    let estimation = Estimation {
        percentile: question.percentile.unwrap_or(50),
        window: 1_000,
        beta: 0,
        bound_max: BOUND_MAX,
    };
    let mut receivers: Vec<Receiver> = (0..RECEIVERS)
        .map(|_| Receiver {
            delays: OneWayDelays::new(estimation),
            early: EarlyBuffer::default(),
            marks: Marks::default(),
            holds: Holds::default(),
            released: Vec::new(),
        })
        .collect();
    // The due events: time, order of scheduling, and event.
    let mut queue: BinaryHeap<Reverse<(u64, u64, Event)>> = BinaryHeap::new();
    let mut asked = 0;
    let mut push = |queue: &mut BinaryHeap<_>, at, event| {
        asked += 1;
        queue.push(Reverse((at, asked, event)));
    };
    let mut random = crate::load::Random::new(question.links.seed);
    let gap = 1_000_000_000 / question.rate.max(1);
    for sender in 0..senders {
        let first = exponential(gap, random.next()).max(1);
        push(&mut queue, first, Event::Send(sender));
    }
    let mut sent = 0;
    while let Some(Reverse((now, _, event))) = queue.pop() {
        match event {
            Event::Send(sender) if sent < question.messages + UNCOUNTED => {
                sent += 1;
                let own = FrontendId(sender as u64 + 1);
                let bounds = receivers.iter().map(|one| one.delays.estimate(own, 0));
                let bound = bounds.map(Option::unwrap_or_default).max().unwrap_or(0);
                for to in 0..RECEIVERS {
                    // Datagrams: nothing waits for what left before it.
                    ways[sender].reset(to);
                    if let Some(at) = ways[sender].depart(Time(now), to, 0, BYTES) {
                        let arrive = Event::Arrive(to.into(), own.0, sent, now, bound);
                        push(&mut queue, at.0, arrive);
                    }
                }
                let next = now + exponential(gap, random.next()).max(1);
                push(&mut queue, next, Event::Send(sender));
            }
            Event::Send(_) => {}
            Event::Arrive(to, sender, number, left, bound) => {
                let receiver = &mut receivers[to];
                let frontend = FrontendId(sender);
                receiver.delays.measure(frontend, left, now, 0);
                if question.percentile.is_none() {
                    receiver.released.push(number);
                    continue;
                }
                let stamp = Stamp {
                    deadline: left + bound,
                    name: Name {
                        frontend,
                        batch: BatchId(number),
                    },
                };
                let everything = Footprint::of_everything();
                if receiver.marks.admit(stamp, &everything) {
                    receiver.holds.add(stamp.deadline, now);
                    receiver.early.insert(stamp, Bytes::new(), ());
                    push(&mut queue, stamp.deadline.max(now), Event::Release(to));
                }
            }
            Event::Release(to) => receivers[to].release(now),
        }
    }
    let place: BTreeMap<u64, usize> = (receivers[0].released.iter().copied()).zip(0..).collect();
    let (mut all, mut in_order, mut both, mut before) = (0u64, 0u64, 0u64, 0);
    for number in &receivers[1].released {
        let counted = u64::from(*number > UNCOUNTED);
        all += counted;
        let Some(at) = place.get(number) else {
            continue;
        };
        both += counted;
        in_order += if *at >= before { counted } else { 0 };
        before = *at;
    }
    let hold = receivers[0].holds.median().unwrap_or(0);
    Answer {
        reordered: 1.0 - in_order as f64 / all.max(1) as f64,
        late: 1.0 - both as f64 / question.messages.max(1) as f64,
        hold: hold as f64 / 1e3,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Send(usize),
    Arrive(usize, u64, u64, u64, u64),
    Release(usize),
}

/// One figure: what varies, and what was found.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Which of the paper's.
    pub title: &'static str,
    /// The varied quantity.
    pub x: &'static str,
    /// By value: without deadlines or with one percentile.
    pub points: Vec<(u64, Answer)>,
}

impl Figure {
    /// The headings of its columns.
    #[must_use]
    pub const fn header(&self) -> [&'static str; 4] {
        [
            self.x,
            "reordered, per cent",
            "late, per cent",
            "median hold, us",
        ]
    }

    /// Its points as text.
    pub fn rows(&self) -> impl Iterator<Item = [String; 4]> {
        self.points.iter().map(|(x, answer)| {
            [
                x.to_string(),
                format!("{:.1}", answer.reordered * 100.0),
                format!("{:.1}", answer.late * 100.0),
                format!("{:.1}", answer.hold),
            ]
        })
    }
}

/// The three figures of the paper, over links that behave so.
#[must_use]
pub fn figures(links: &Links) -> Vec<Figure> {
    let question = |senders, rate, percentile| Question {
        links: links.clone(),
        senders,
        rate,
        percentile,
        messages: 20_000,
    };
    let rates = [1_000, 5_000, 10_000, 20_000, 50_000, 100_000];
    let senders = [1, 2, 4, 6, 8, 10];
    let percentiles = [50, 75, 90, 95];
    let of = |value: u64, question: Question| (value, ask(&question));
    vec![
        Figure {
            title: "Fig. 1: two senders, in the order of arrival",
            x: "messages per second of each",
            points: (rates.iter())
                .map(|rate| of(*rate, question(2, *rate, None)))
                .collect(),
        },
        Figure {
            title: "Fig. 2: 10,000 a second each, in the order of arrival",
            x: "senders",
            points: (senders.iter())
                .map(|count| of(*count, question(*count as usize, 10_000, None)))
                .collect(),
        },
        Figure {
            title: "Fig. 3: ten senders, 10,000 a second each, by deadlines",
            x: "percentile (0: in the order of arrival)",
            points: core::iter::once(of(0, question(10, 10_000, None)))
                .chain((percentiles.iter()).map(|percentile| {
                    let asked = question(10, 10_000, Some(*percentile));
                    of((*percentile).into(), asked)
                }))
                .collect(),
        },
    ]
}

/// Writes figures as one page.
///
/// # Errors
/// When it cannot be written.
pub fn write(
    figures: &[Figure],
    facts: &[(String, String)],
    directory: &std::path::Path,
) -> Outcome<()> {
    let sections: Vec<Section> = (figures.iter())
        .map(|figure| {
            let points = figure.points.iter().map(|(x, answer)| Point {
                x: *x as f64,
                y: Spread::of([answer.reordered * 100.0]),
            });
            let drawn = Chart {
                x: figure.x.to_owned(),
                y: "reordered, per cent".to_owned(),
                series: vec![Series {
                    name: "reordered".to_owned(),
                    points: points.collect(),
                    is_published: false,
                }],
                shades: Vec::new(),
            };
            Section {
                title: figure.title,
                figures: vec![chart(&drawn)],
                header: figure.header().map(str::to_owned).to_vec(),
                rows: figure.rows().map(|row| row.to_vec()).collect(),
            }
        })
        .collect();
    let text = page(
        "reordering",
        "How often two receivers see messages in different orders (Nezha, Figs. 1 to 3)",
        facts,
        &sections,
    );
    std::fs::create_dir_all(directory)
        .and_then(|()| std::fs::write(directory.join("report.html"), text))
        .map_err(|error| Failure::failed(format!("{}: {error}", directory.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quintet_replica::links::{Jitter, Model};
    use std::time::Duration;

    fn question(percentile: Option<u8>) -> Question {
        Question {
            links: Links {
                other: Model {
                    delay: Duration::from_micros(40),
                    jitter: Jitter::Exponential(Duration::from_micros(20)),
                    ..Model::default()
                },
                seed: 7,
                ..Links::default()
            },
            senders: 10,
            rate: 10_000,
            percentile,
            messages: 5_000,
        }
    }

    #[test]
    fn without_jitter_nothing_is_reordered() {
        let mut even = question(None);
        even.links.other.jitter = Jitter::None;
        assert_eq!(ask(&even).reordered, 0.0);
        assert_eq!(ask(&question(None)), ask(&question(None)));
    }

    #[test]
    fn longer_deadlines_undo_more_reordering() {
        let [none, half, most] = [None, Some(50), Some(95)].map(|one| ask(&question(one)));
        assert!(none.reordered > 0.2, "{none:?}");
        assert!(most.reordered < half.reordered, "{half:?} {most:?}");
        assert!(most.reordered < none.reordered / 2.0, "{most:?}");
        assert!(
            most.hold > half.hold && most.late < half.late,
            "{half:?} {most:?}"
        );
        assert_eq!(none.late, 0.0, "nothing is late without deadlines");
    }
}
