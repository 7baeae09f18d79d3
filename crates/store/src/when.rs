//! The times that reads of the past ask for, as people write them.

use crate::error::CommandError;
use crate::numbers::parse_integer;
use std::time::UNIX_EPOCH;

/// A time of the log's clock, or a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Nanoseconds since the Unix epoch.
    Time(u64),
    /// Behind the command that made this version.
    Version(u64),
    /// The newest state: all that has been acknowledged.
    Now,
}

impl When {
    /// Reads milliseconds since the Unix epoch, `us:` and microseconds, `v:` and a version, `now`,
    /// or a time of RFC 3339 in UTC, such as `2026-11-21T12:00:00.5Z`.
    ///
    /// # Errors
    /// When it is none of these.
    pub fn parse(text: &[u8]) -> Result<Self, CommandError> {
        let number = |digits: &[u8], unit: u64| {
            let number = parse_integer(digits)
                .ok()
                .and_then(|n| u64::try_from(n).ok());
            number.and_then(|number| number.checked_mul(unit))
        };
        let read = match text {
            _ if text.eq_ignore_ascii_case(b"now") => Some(Self::Now),
            [b'u' | b'U', b's' | b'S', b':', digits @ ..] => number(digits, 1000).map(Self::Time),
            [b'v' | b'V', b':', digits @ ..] => number(digits, 1).map(Self::Version),
            _ => match number(text, 1_000_000) {
                Some(time) => Some(Self::Time(time)),
                None => calendar(text).map(Self::Time),
            },
        };
        read.ok_or(CommandError::Text(
            "ERR invalid time: milliseconds since 1970, us:MICROSECONDS, v:VERSION, now, or such as \
             2026-11-21T12:00:00Z",
        ))
    }
}

fn calendar(text: &[u8]) -> Option<u64> {
    let text = core::str::from_utf8(text).ok()?.to_ascii_uppercase();
    let time = humantime::parse_rfc3339_weak(&text).ok()?;
    u64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_nanos()).ok()
}

/// The time in microseconds with which a client asks for a state that has what happened then.
pub(crate) const fn microseconds(time: u64) -> u64 {
    time.div_ceil(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_read_in_each_form() {
        for (text, when) in [
            ("1000", When::Time(1_000_000_000)),
            ("us:7", When::Time(7000)),
            ("V:12", When::Version(12)),
            ("NOW", When::Now),
            ("1970-01-01T00:00:01Z", When::Time(1_000_000_000)),
            ("1970-01-01 00:00:01.5", When::Time(1_500_000_000)),
            ("1970-01-01t00:00:01z", When::Time(1_000_000_000)),
        ] {
            assert_eq!(When::parse(text.as_bytes()), Ok(when), "{text}");
        }
        for text in [
            "",
            "-1",
            "v:-1",
            "us:",
            "tomorrow",
            "99999999999999999999",
            "\u{ff}",
        ] {
            assert!(When::parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
