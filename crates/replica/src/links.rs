//! How links between replicas behave, as one description for both worlds.
//!
//! ```text
//!   Links ──one sender's──► Departures ──depart(now, to, lane, bytes)──► when it arrives, or never
//!     delay + jitter, loss, reordering, bandwidth                │
//!     changes over time: cuts, attacks, slow links               └ egress queue ─► link queue ─► way
//! ```
//!
//! The runtime's transport holds frames back until they would have arrived; the simulator delivers
//! them then. Both draw from the same source, so the same description gives the same distribution.
//! Integers and a few multiplications only: nothing here knows a clock.

use crate::Time;
use alloc::vec::Vec;
use core::time::Duration;

/// The random addition to a link's delay, drawn for each frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Jitter {
    /// Nothing.
    #[default]
    None,
    /// Anything up to this, all alike.
    Uniform(Duration),
    /// Exponentially distributed with this mean.
    Exponential(Duration),
    /// A measured distribution: its quantiles at equal steps from the least to the greatest, at
    /// least two, with straight lines between them.
    Quantiles(Vec<Duration>),
}

/// How one direction of a link behaves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    /// The delay of every frame.
    pub delay: Duration,
    /// Its random addition.
    pub jitter: Jitter,
    /// Of a million frames, this many are lost. In an ordered transport a loss costs a round trip
    /// (at least [`RETRANSMISSION_MIN`]), doubled for each further loss, and whatever comes after
    /// waits.
    pub loss: u32,
    /// Of a million frames, this many take `reorder_by` longer. In an ordered transport whatever
    /// comes after waits.
    pub reorder: u32,
    /// See `reorder`.
    pub reorder_by: Duration,
    /// Bits per second; 0 for no limit.
    pub bandwidth: u64,
}

/// A temporary change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// From when on, counted from the beginning of the run.
    pub at: Duration,
    /// Until when; `None` forever.
    pub until: Option<Duration>,
    /// The senders concerned; empty for all.
    pub from: Vec<u16>,
    /// The recipients concerned; empty for all.
    pub to: Vec<u16>,
    /// Nothing gets through. An ordered transport delivers it afterwards.
    pub cut: bool,
    /// The additional delay of every frame.
    pub delay_more: Duration,
    /// Another loss, see [`Model::loss`].
    pub loss: Option<u32>,
    /// Another bandwidth, see [`Model::bandwidth`].
    pub bandwidth: Option<u64>,
}

/// All links of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links {
    /// Those that are not named.
    pub other: Model,
    /// Single ones: sender, recipient, behaviour.
    pub single: Vec<(u16, u16, Model)>,
    /// Bits per second that a sender gets out over all its links together; 0 for no limit.
    pub egress: u64,
    /// The changes over time.
    pub changes: Vec<Change>,
    /// Draws everything.
    pub seed: u64,
}

/// The least that a lost frame costs in an ordered transport.
pub const RETRANSMISSION_MIN: Duration = Duration::from_millis(1);
const RETRANSMISSIONS_MAX: u32 = 6;
const MILLION: u64 = 1_000_000;

impl Links {
    /// The same for a clock that begins so long before the run: changes come later.
    #[must_use]
    pub fn postponed(&self, by: Duration) -> Self {
        let mut links = self.clone();
        for change in &mut links.changes {
            change.at += by;
            change.until = change.until.map(|until| until + by);
        }
        links
    }

    /// Whether it makes any difference.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        *self
            == Self {
                seed: self.seed,
                ..Self::default()
            }
    }

    /// How the link from `from` to `to` behaves before any change.
    #[must_use]
    pub fn model(&self, from: u16, to: u16) -> &Model {
        let single = |link: &&(u16, u16, Model)| (link.0, link.1) == (from, to);
        self.single
            .iter()
            .find(single)
            .map_or(&self.other, |link| &link.2)
    }

    /// The state of one sender's side of its links.
    #[must_use]
    pub fn departures(&self, from: u16) -> Departures {
        Departures {
            links: self.clone(),
            from,
            random: self.seed ^ (u64::from(from) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            free: Bottleneck::default(),
            ways: Vec::new(),
        }
    }
}

/// When a bottleneck is free for the control lane, and for the bulk lane, which gives way. Lanes are
/// streams of their own: neither waits until all has left that is queued on the other.
#[derive(Clone, Copy, Debug, Default)]
struct Bottleneck([u64; 2]);

impl Bottleneck {
    /// When a frame has passed that comes at `at` and takes so long.
    fn pass(&mut self, at: u64, lane: usize, takes: u64) -> u64 {
        let [control, bulk] = &mut self.0;
        *bulk = at.max(*bulk) + takes;
        if lane == 0 {
            *control = at.max(*control) + takes;
        }
        self.0[lane]
    }
}

/// When the way to one recipient is free, and when the last frame of each lane arrives.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    free: Bottleneck,
    last: [u64; 2],
}

/// One sender's side of its links.
#[derive(Clone, Debug)]
pub struct Departures {
    links: Links,
    from: u16,
    random: u64,
    free: Bottleneck,
    ways: Vec<Way>,
}

impl Departures {
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.random;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A link broke or came up: what was in progress on it holds nothing back any more.
    pub fn reset(&mut self, to: u16) {
        if let Some(way) = self.ways.get_mut(usize::from(to)) {
            *way = Way::default();
        }
    }

    /// One more change, decided upon while the run continues. Those that are over are dropped.
    pub fn change(&mut self, now: Time, change: Change) {
        let lasts = |change: &Change| change.until.is_none_or(|until| now.0 < nanoseconds(until));
        self.links.changes.retain(lasts);
        self.links.changes.push(change);
    }

    /// A frame of `bytes` leaves for `to` at `now`, counted from the beginning of the run: when it
    /// arrives, in the order of its lane; `None` if it never does.
    pub fn depart(&mut self, now: Time, to: u16, lane: usize, bytes: usize) -> Option<Time> {
        let lane = lane & 1;
        let at = self.way(now, to, bytes, Some(lane))?;
        let last = &mut self.ways[usize::from(to)].last[lane];
        *last = at.max(*last);
        Some(Time(*last))
    }

    /// The same for a datagram: one that is lost, or meets a cut, never arrives, and none waits for
    /// another.
    pub fn depart_loose(&mut self, now: Time, to: u16, bytes: usize) -> Option<Time> {
        self.way(now, to, bytes, None).map(Time)
    }

    /// When what leaves now arrives if nothing holds it back; what goes by no lane is a datagram.
    fn way(&mut self, now: Time, to: u16, bytes: usize, lane: Option<usize>) -> Option<u64> {
        let ordered = lane.is_some();
        let index = usize::from(to);
        if self.ways.len() <= index {
            self.ways.resize(index + 1, Way::default());
        }
        let draw = self.draw();
        let model = self.links.model(self.from, to);
        let jitter = model.jitter.at(draw);
        let mut delay = nanoseconds(model.delay);
        let (mut loss, mut bandwidth) = (model.loss, model.bandwidth);
        let (reorder, reorder_by) = (model.reorder, nanoseconds(model.reorder_by));
        let mut cut_until = Some(now.0);
        for change in &self.links.changes {
            let until = change.until.map_or(u64::MAX, nanoseconds);
            let concerns = |ids: &[u16], id| ids.is_empty() || ids.contains(&id);
            if now.0 < nanoseconds(change.at)
                || now.0 >= until
                || !concerns(&change.from, self.from)
                || !concerns(&change.to, to)
            {
                continue;
            }
            if change.cut && !ordered {
                return None;
            }
            if change.cut {
                let longer = |cut: u64| (until != u64::MAX).then_some(cut.max(until));
                cut_until = cut_until.and_then(longer);
            }
            delay = delay.saturating_add(nanoseconds(change.delay_more));
            loss = change.loss.unwrap_or(loss);
            bandwidth = change.bandwidth.unwrap_or(bandwidth);
        }
        let mut at = cut_until?;
        let lane = lane.unwrap_or(0);
        if self.links.egress > 0 {
            let takes = transmission(bytes, self.links.egress);
            at = self.free.pass(at, lane, takes);
        }
        if bandwidth > 0 {
            let takes = transmission(bytes, bandwidth);
            at = self.ways[index].free.pass(at, lane, takes);
        }
        at = at.saturating_add(delay).saturating_add(jitter);
        if loss > 0 && !ordered {
            if self.draw() % MILLION < u64::from(loss) {
                return None;
            }
        } else if loss > 0 {
            let mut again = (2 * delay).max(nanoseconds(RETRANSMISSION_MIN));
            for _ in 0..RETRANSMISSIONS_MAX {
                if self.draw() % MILLION >= u64::from(loss) {
                    break;
                }
                at = at.saturating_add(again);
                again *= 2;
            }
        }
        if reorder > 0 && self.draw() % MILLION < u64::from(reorder) {
            at = at.saturating_add(reorder_by);
        }
        Some(at)
    }
}

impl Jitter {
    /// Its value for 64 random bits, in nanoseconds.
    fn at(&self, draw: u64) -> u64 {
        match self {
            Self::None => 0,
            Self::Uniform(most) => scale(nanoseconds(*most).saturating_add(1), draw),
            Self::Exponential(mean) => exponential(nanoseconds(*mean), draw),
            Self::Quantiles(values) => {
                let steps = values.len().saturating_sub(1) as u64;
                let (Some(first), true) = (values.first(), steps > 0) else {
                    return values.first().map_or(0, |only| nanoseconds(*only));
                };
                let place = u128::from(draw) * u128::from(steps);
                let (step, part) = ((place >> 64) as usize, place as u64);
                let low = values.get(step).unwrap_or(first);
                let high = values.get(step + 1).unwrap_or(low);
                let rise = nanoseconds(*high).saturating_sub(nanoseconds(*low));
                nanoseconds(*low) + scale(rise, part)
            }
        }
    }
}

/// An exponentially distributed number with this mean, for 64 random bits; the same on every
/// machine.
#[must_use]
pub fn exponential(mean: u64, draw: u64) -> u64 {
    (mean as f64 * minus_logarithm(draw)) as u64
}

/// `whole` times `part / 2^64`.
fn scale(whole: u64, part: u64) -> u64 {
    ((u128::from(whole) * u128::from(part)) >> 64) as u64
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// How long `bytes` take at `bandwidth` bits per second.
fn transmission(bytes: usize, bandwidth: u64) -> u64 {
    let bits = bytes as u128 * 8 * 1_000_000_000;
    u64::try_from(bits / u128::from(bandwidth.max(1))).unwrap_or(u64::MAX)
}

/// `-ln` of the draw as a part of 1, to better than 1%: there is no logarithm without a standard
/// library.
fn minus_logarithm(draw: u64) -> f64 {
    let draw = draw.max(1);
    let zeros = draw.leading_zeros();
    // 1.f, the leading bit taken away.
    let part = ((draw << zeros) << 1) as f64 / 18_446_744_073_709_551_616.0;
    let binary = part + 0.343 * part * (1.0 - part);
    (f64::from(zeros + 1) - binary) * core::f64::consts::LN_2
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn links(other: Model) -> Links {
        Links {
            other,
            seed: 3,
            ..Links::default()
        }
    }

    fn delays(links: &Links, frames: u64) -> Vec<u64> {
        let mut departures = links.departures(0);
        let depart = |n: u64| {
            let now = Time(n * 1_000 * MS);
            departures.depart(now, 1, 0, 100).unwrap().0 - now.0
        };
        (0..frames).map(depart).collect()
    }

    fn mean(values: &[u64]) -> f64 {
        values.iter().sum::<u64>() as f64 / values.len() as f64
    }

    #[test]
    fn control_lane_does_not_wait_until_all_of_bulk_lane_has_left() {
        let mut slow = links(Model {
            bandwidth: 5_000_000,
            ..Model::default()
        });
        slow.egress = 5_000_000;
        let mut departures = slow.departures(0);
        let mut depart = |lane, bytes| {
            let at = departures.depart(Time(0), 1, lane, bytes);
            at.expect("it arrives").0
        };
        let large = depart(1, 64 << 20);
        assert!(depart(0, 50) < 1_000_000);
        // It has taken its part of the bandwidth.
        assert!(depart(1, 50) >= large + 2 * transmission(50, 5_000_000));
        let large = depart(0, 1 << 20);
        assert!(depart(0, 50) > large, "a lane keeps its order");
    }

    #[test]
    fn distributions_have_their_means() {
        let delay = Duration::from_millis(10);
        let of = |jitter| {
            mean(&delays(
                &links(Model {
                    delay,
                    jitter,
                    ..Model::default()
                }),
                20_000,
            ))
        };
        assert_eq!(of(Jitter::None), 10e6);
        let uniform = of(Jitter::Uniform(Duration::from_millis(4)));
        assert!((11.9e6..12.1e6).contains(&uniform), "{uniform}");
        let exponential = of(Jitter::Exponential(Duration::from_millis(2)));
        assert!((11.9e6..12.1e6).contains(&exponential), "{exponential}");
        let table = [0, 1, 3].map(Duration::from_millis).to_vec();
        let quantiles = of(Jitter::Quantiles(table));
        assert!((11.2e6..11.3e6).contains(&quantiles), "{quantiles}");
    }

    #[test]
    fn frames_keep_their_order_and_losses_cost_time() {
        let model = Model {
            delay: Duration::from_millis(5),
            jitter: Jitter::Uniform(Duration::from_millis(5)),
            loss: 100_000,
            reorder: 100_000,
            reorder_by: Duration::from_millis(20),
            ..Model::default()
        };
        let mut departures = links(model.clone()).departures(0);
        let mut last = Time(0);
        for n in 0..1_000 {
            let at = departures.depart(Time(n * MS / 10), 1, 0, 100).unwrap();
            assert!(at >= last);
            last = at;
        }
        let lossless = Model {
            loss: 0,
            ..model.clone()
        };
        let more = mean(&delays(&links(model), 5_000)) - mean(&delays(&links(lossless), 5_000));
        // A tenth lost at 10 ms each, a hundredth twice: 10 + 20.
        assert!((1.0e6..1.5e6).contains(&more), "{more}");
    }

    #[test]
    fn datagrams_are_lost_overtake_and_wait_for_none() {
        let model = Model {
            delay: Duration::from_millis(5),
            jitter: Jitter::Uniform(Duration::from_millis(5)),
            loss: 100_000,
            ..Model::default()
        };
        let cut = Change {
            at: Duration::from_secs(1),
            until: Some(Duration::from_secs(2)),
            cut: true,
            ..Change::default()
        };
        let links = Links {
            changes: [cut].to_vec(),
            ..links(model)
        };
        let mut departures = links.departures(0);
        let mut arrivals = Vec::new();
        let mut lost = 0;
        for n in 0..1_000 {
            match departures.depart_loose(Time(n * MS / 10), 1, 100) {
                Some(at) => arrivals.push(at.0),
                None => lost += 1,
            }
        }
        assert!((70..130).contains(&lost), "{lost}");
        assert!(!arrivals.is_sorted());
        assert!(arrivals.iter().all(|at| *at < 110 * MS));
        assert_eq!(departures.depart_loose(Time(1_500 * MS), 1, 100), None);
        assert!(departures.depart(Time(1_500 * MS), 1, 0, 100) >= Some(Time(2_000 * MS)));
    }

    #[test]
    fn bandwidth_is_shared_by_what_leaves_together() {
        let single = Model {
            bandwidth: 8_000_000,
            ..Model::default()
        };
        let mut departures = links(single).departures(0);
        let mut at = |to| departures.depart(Time(0), to, 0, 1_000).unwrap().0;
        assert_eq!([at(1), at(1), at(2)], [MS, 2 * MS, MS]);
        let egress = Links {
            egress: 8_000_000,
            ..Links::default()
        };
        let mut departures = egress.departures(0);
        let mut at = |to| departures.depart(Time(0), to, 0, 1_000).unwrap().0;
        assert_eq!([at(1), at(2), at(1)], [MS, 2 * MS, 3 * MS]);
    }

    #[test]
    fn change_may_be_decided_while_run_continues() {
        let mut departures = Links::default().departures(0);
        assert_eq!(departures.depart(Time(5), 1, 0, 1), Some(Time(5)));
        let change = Change {
            until: Some(Duration::from_nanos(20)),
            delay_more: Duration::from_nanos(7),
            ..Change::default()
        };
        departures.change(Time(10), change);
        assert_eq!(departures.depart(Time(10), 1, 0, 1), Some(Time(17)));
        assert_eq!(departures.depart(Time(20), 1, 0, 1), Some(Time(20)));
        departures.change(Time(30), Change::default());
        assert_eq!(departures.links.changes.len(), 1, "one is over");
    }

    #[test]
    fn changes_hold_while_they_last_and_for_whom_they_name() {
        let change = |at, until: Option<u64>, cut, more| Change {
            at: Duration::from_millis(at),
            until: until.map(Duration::from_millis),
            to: [1].to_vec(),
            cut,
            delay_more: Duration::from_millis(more),
            ..Change::default()
        };
        let links = Links {
            changes: [
                change(10, Some(20), false, 5),
                change(30, Some(40), true, 0),
                change(50, None, true, 0),
            ]
            .to_vec(),
            ..Links::default()
        };
        let mut departures = links.departures(0);
        let mut at = |now: u64, to| {
            departures
                .depart(Time(now * MS), to, 0, 1)
                .map(|at| at.0 / MS)
        };
        assert_eq!(at(5, 1), Some(5));
        assert_eq!(at(10, 1), Some(15));
        assert_eq!(at(10, 2), Some(10));
        assert_eq!(at(20, 1), Some(20));
        assert_eq!(at(35, 1), Some(40));
        assert_eq!(at(60, 1), None);
        assert_eq!(at(60, 2), Some(60));
    }

    #[test]
    fn same_seed_gives_the_same_delays() {
        let model = Model {
            jitter: Jitter::Exponential(Duration::from_millis(1)),
            ..Model::default()
        };
        assert_eq!(
            delays(&links(model.clone()), 50),
            delays(&links(model.clone()), 50)
        );
        let other = Links {
            seed: 4,
            ..links(model.clone())
        };
        assert_ne!(delays(&links(model), 50), delays(&other, 50));
        assert!(Links::default().is_plain());
        assert!(!other.is_plain());
    }
}
