//! The requests: which keys, reads or writes, in an order that a seed decides.

use super::dialect::{Kind, Request};

/// How keys are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Distribution {
    /// All keys alike.
    #[default]
    Uniform,
    /// Few keys often, most keys seldom.
    Zipf,
}

/// Draws numbers; the same seed draws the same ones.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A source with this seed.
    pub const fn new(seed: u64) -> Self {
        Self::from_state(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6a09_e667_f3bc_c909)
    }

    /// A source that continues from this state.
    pub const fn from_state(state: u64) -> Self {
        Self(state)
    }

    /// 64 bits.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// From 0 up to, not including, 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// The skew of the Zipf distribution, as load tests commonly have it.
const SKEW: f64 = 0.99;

/// Draws keys by one of the distributions.
#[derive(Clone, Debug)]
pub enum Keys {
    /// All alike.
    Uniform {
        /// How many.
        count: u64,
    },
    /// Rank `n` as often as `1 / n^skew`: inverted from an approximation of the cumulated
    /// weights that is exact for the first two ranks.
    Zipf {
        /// How many.
        count: u64,
        /// The sum of all weights.
        total: f64,
        /// The exponent of the inverted sum.
        alpha: f64,
        /// Makes the approximation meet the exact weights at the third rank.
        eta: f64,
    },
}

impl Keys {
    /// `count` keys, at least one.
    pub fn new(distribution: Distribution, count: u64) -> Self {
        let count = count.max(1);
        match distribution {
            Distribution::Uniform => Self::Uniform { count },
            Distribution::Zipf => {
                let total: f64 = (1..=count).map(|rank| (rank as f64).powf(-SKEW)).sum();
                let two = 1.0 + 0.5f64.powf(SKEW);
                let eta = (1.0 - (2.0 / count as f64).powf(1.0 - SKEW)) / (1.0 - two / total);
                Self::Zipf {
                    count,
                    total,
                    alpha: 1.0 / (1.0 - SKEW),
                    eta,
                }
            }
        }
    }

    /// The next key.
    pub fn draw(&self, random: &mut Random) -> u64 {
        match *self {
            Self::Uniform { count } => random.below(count),
            Self::Zipf {
                count,
                total,
                alpha,
                eta,
            } => {
                let unit = random.unit();
                let weight = unit * total;
                if weight < 1.0 || count == 1 {
                    0
                } else if weight < 1.0 + 0.5f64.powf(SKEW) || count == 2 {
                    1
                } else {
                    let rank = count as f64 * (eta * unit - eta + 1.0).powf(alpha);
                    (rank as u64).min(count - 1)
                }
            }
        }
    }
}

/// Turns a key's number into its name: 16 bytes, as redis-benchmark has them.
pub fn name_of(key: u64) -> [u8; 16] {
    let mut name = *b"key:000000000000";
    let mut left = key;
    for digit in name[4..].iter_mut().rev() {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
    }
    name
}

/// Which requests follow one another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix {
    /// Which part of the requests begin with a read.
    pub read_ratio: f64,
    /// Which part of those reads is followed by a write of the same key: read, modify, write.
    pub modify_ratio: f64,
}

impl Mix {
    /// Reads and writes, `read_ratio` of them reads.
    pub const fn reads(read_ratio: f64) -> Self {
        Self {
            read_ratio,
            modify_ratio: 0.0,
        }
    }

    /// Which part of all requests reads, the writes that follow reads counted, too.
    pub fn reads_of_all(self) -> f64 {
        self.read_ratio / (1.0 + self.read_ratio * self.modify_ratio)
    }
}

/// The clients' requests, drawn one at a time.
#[derive(Clone, Debug)]
pub struct Workload {
    keys: Keys,
    mix: Mix,
    value: Vec<u8>,
    random: Random,
}

impl Workload {
    /// Requests over `keys`.
    pub fn new(keys: Keys, mix: Mix, value_size: usize, seed: u64) -> Self {
        Self {
            keys,
            mix,
            value: vec![b'x'; value_size],
            random: Random::new(seed),
        }
    }

    /// A number from 0 up to, not including, 1, from the source that also draws the keys.
    pub fn unit(&mut self) -> f64 {
        self.random.unit()
    }

    /// The value that writes store.
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// One client's next request; `modified` is that client's key which was read to be modified.
    pub fn draw(&mut self, modified: &mut Option<[u8; 16]>) -> Request {
        if let Some(key) = modified.take() {
            let kind = Kind::Write;
            return Request { kind, key };
        }
        let key = name_of(self.keys.draw(&mut self.random));
        let is_read = self.mix.read_ratio > 0.0 && self.random.unit() < self.mix.read_ratio;
        if is_read && self.mix.modify_ratio > 0.0 && self.random.unit() < self.mix.modify_ratio {
            *modified = Some(key);
        }
        let kind = if is_read { Kind::Read } else { Kind::Write };
        Request { kind, key }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(distribution: Distribution, keys: u64, draws: u64) -> Vec<u64> {
        let source = Keys::new(distribution, keys);
        let mut random = Random::new(1);
        let mut counts = vec![0; keys as usize];
        for _ in 0..draws {
            counts[source.draw(&mut random) as usize] += 1;
        }
        counts
    }

    #[test]
    fn uniform_keys_are_all_alike() {
        let counts = counts(Distribution::Uniform, 10, 100_000);
        assert!(
            counts.iter().all(|count| (9_000..11_000).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn zipf_keys_follow_their_law() {
        let (keys, draws) = (1_000, 400_000);
        let counts = counts(Distribution::Zipf, keys, draws);
        let total: f64 = (1..=keys).map(|rank| (rank as f64).powf(-SKEW)).sum();
        for (rank, tolerance) in [(1u64, 0.03), (2, 0.03), (10, 0.25), (100, 0.25)] {
            let expected = draws as f64 * (rank as f64).powf(-SKEW) / total;
            let ratio = counts[rank as usize - 1] as f64 / expected;
            assert!(
                (1.0 - tolerance..1.0 + tolerance).contains(&ratio),
                "rank {rank}: {ratio}"
            );
        }
    }

    #[test]
    fn one_or_two_keys_are_enough() {
        for keys in 1..=3 {
            for distribution in [Distribution::Uniform, Distribution::Zipf] {
                assert_eq!(counts(distribution, keys, 1_000).iter().sum::<u64>(), 1_000);
            }
        }
    }

    #[test]
    fn key_that_is_read_to_be_modified_is_written_next() {
        let mix = Mix {
            read_ratio: 0.5,
            modify_ratio: 1.0,
        };
        let keys = Keys::new(Distribution::Uniform, 1_000_000);
        let mut workload = Workload::new(keys, mix, 3, 1);
        let (mut reads, mut modified) = (0, None);
        for _ in 0..1_000 {
            let read = workload.draw(&mut modified);
            if read.kind == Kind::Read {
                reads += 1;
                let write = workload.draw(&mut modified);
                assert_eq!((write.kind, write.key), (Kind::Write, read.key));
            }
        }
        assert!((400..600).contains(&reads), "{reads}");
        // YCSB F: of two reads one is followed by a write.
        let f = Mix {
            read_ratio: 1.0,
            modify_ratio: 0.5,
        };
        let mut workload = Workload::new(Keys::new(Distribution::Zipf, 100), f, 3, 1);
        let (count, mut modified) = (30_000, None);
        let reads = (0..count).filter(|_| workload.draw(&mut modified).kind == Kind::Read);
        let part = reads.count() as f64 / f64::from(count);
        assert!((part - f.reads_of_all()).abs() < 0.01, "{part}");
        assert!((f.reads_of_all() - 2.0 / 3.0).abs() < 1e-9);
    }
}
