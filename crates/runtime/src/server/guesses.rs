//! Wrong passwords: how many an address may try, and what the log says of them.
//!
//! ```text
//!   wrong ──► the address's debt grows by PER_GUESS, and shrinks as time passes
//!   debt of BURST guesses ──► no password from there is looked at until one is paid off
//! ```

use foldhash::quality::FixedState;
use hashbrown::HashMap;
use quintet_replica::Time;
use std::{
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

/// Wrong passwords that an address may try at once.
const BURST: u32 = 10;
/// After these one more in this time.
const PER_GUESS: Duration = Duration::from_secs(1);
/// Addresses that are remembered; all others share one debt.
const ADDRESSES_MAX: usize = 4096;
/// The log is told at most this often.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// The address that limits count: of IPv6 the network, as one machine may have all addresses of it.
pub(super) fn source_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            let network = address.to_bits() >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from_bits(network))
        }
        address => address,
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Guesses {
    /// When the debt of an address is paid off.
    debts: HashMap<IpAddr, Time, FixedState>,
    /// The same for all that found no place.
    others: Time,
    unlogged: u64,
    log_at: Time,
}

impl Guesses {
    pub fn new(seed: u64) -> Self {
        Self {
            debts: HashMap::with_hasher(FixedState::with_seed(seed)),
            others: Time(0),
            unlogged: 0,
            log_at: Time(0),
        }
    }

    /// Whether a password from there is looked at now. From this machine always: its one address
    /// stands for all who use it, and who guesses must not keep the others out.
    ///
    /// # Errors
    /// After which time it will be.
    pub fn check(&self, from: IpAddr, now: Time) -> Result<(), Duration> {
        let source = source_of(from);
        if source.is_loopback() {
            return Ok(());
        }
        let paid = match self.debts.get(&source) {
            Some(paid) => *paid,
            None if self.debts.len() < ADDRESSES_MAX => return Ok(()),
            None => self.others,
        };
        let left = paid.since(now);
        let most = PER_GUESS * (BURST - 1);
        if left <= most {
            Ok(())
        } else {
            Err(left - most)
        }
    }

    /// A password from there was wrong.
    pub fn failed(&mut self, from: IpAddr, now: Time) {
        let source = source_of(from);
        self.tell(from, now);
        if source.is_loopback() {
            return;
        }
        if self.debts.len() >= ADDRESSES_MAX && !self.debts.contains_key(&source) {
            self.debts.retain(|_, paid| *paid > now);
        }
        let has_place = self.debts.len() < ADDRESSES_MAX || self.debts.contains_key(&source);
        let paid = match has_place {
            true => self.debts.entry(source).or_insert(now),
            false => &mut self.others,
        };
        *paid = (*paid).max(now) + PER_GUESS;
    }

    fn tell(&mut self, from: IpAddr, now: Time) {
        self.unlogged += 1;
        if now >= self.log_at {
            let count = std::mem::take(&mut self.unlogged);
            self.log_at = now + LOG_EVERY;
            tracing::warn!(%from, count, "wrong password; counted since the last such line");
        }
    }
}

/// Compares in a time that does not tell where the two differ.
pub(super) fn same(expected: &[u8], given: &[u8]) -> bool {
    let mut difference = usize::from(expected.len() != given.len());
    for index in 0..given.len() {
        let byte = if expected.is_empty() {
            0
        } else {
            expected[index % expected.len()]
        };
        difference |= usize::from(std::hint::black_box(byte ^ given[index]));
    }
    std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    #[test]
    fn passwords_compare_by_content_and_length() {
        assert!(same(b"secret", b"secret"));
        for wrong in [&b"secre"[..], b"secrets", b"", b"Secret", b"secretsecret"] {
            assert!(!same(b"secret", wrong));
        }
        assert!(same(b"", b""));
        assert!(!same(b"", b"x"));
    }

    #[test]
    fn address_waits_when_it_has_guessed_too_often() {
        let mut guesses = Guesses::new(1);
        let (one, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        for _ in 0..BURST {
            assert_eq!(guesses.check(one, at(5)), Ok(()));
            guesses.failed(one, at(5));
        }
        assert_eq!(guesses.check(one, at(5)), Err(PER_GUESS));
        assert_eq!(guesses.check(other, at(5)), Ok(()));
        assert_eq!(guesses.check(one, at(6)), Ok(()));
        guesses.failed(one, at(6));
        assert!(guesses.check(one, at(6)).is_err());
        assert_eq!(guesses.check(one, at(60)), Ok(()));
    }

    #[test]
    fn local_password_guesses_lock_no_client_out() {
        let mut guesses = Guesses::new(1);
        let here = IpAddr::from([127, 0, 0, 1]);
        for _ in 0..100 {
            guesses.failed(here, at(1));
        }
        assert_eq!(guesses.check(here, at(1)), Ok(()));
        assert_eq!(guesses.unlogged, 99, "but they are logged");
    }

    #[test]
    fn addresses_of_one_network_count_as_one() {
        let mut guesses = Guesses::new(1);
        for last in 0..BURST {
            let address: IpAddr = format!("2001:db8::{last:x}")
                .parse()
                .unwrap_or(IpAddr::from([0; 4]));
            guesses.failed(address, at(1));
        }
        let beside = "2001:db8::ffff".parse().unwrap_or(IpAddr::from([0; 4]));
        assert!(guesses.check(beside, at(1)).is_err());
        let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap_or(IpAddr::from([0; 4]));
        assert_eq!(source_of(mapped), IpAddr::from([10, 0, 0, 1]));
    }

    #[test]
    fn memory_stays_bounded_when_many_addresses_guess() {
        let mut guesses = Guesses::new(1);
        for number in 0..3 * ADDRESSES_MAX as u32 {
            guesses.failed(IpAddr::from(number.to_be_bytes()), at(1));
        }
        assert_eq!(guesses.debts.len(), ADDRESSES_MAX);
        let unknown = IpAddr::from([200, 0, 0, 1]);
        assert!(guesses.check(unknown, at(1)).is_err());
        guesses.failed(unknown, at(100_000));
        assert_eq!(guesses.debts.len(), 1);
    }
}
