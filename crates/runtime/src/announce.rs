//! Where a replica's Redis clients connect, as it tells its peers, and as they show it.
//!
//! ```text
//!   redis_announce, or redis_listen ──► identity ──► 0.0.0.0? the address that the link comes from
//! ```

use crate::Config;
use std::net::{IpAddr, SocketAddr};

/// No address is longer: a name of 255 characters, a colon, a port.
const BYTES_MAX: usize = 261;

/// Whether a text is an address that may be told and shown.
///
/// # Errors
/// Returns the error of an announced address, if it has one.
pub(crate) fn check(text: &str) -> Result<(), String> {
    let accepted = "accepted is host:port, such as 10.0.0.1:7001 or db1.example.org:7001";
    let Some((host, port)) = text.rsplit_once(':') else {
        return Err(format!("'{text}' has no port; {accepted}"));
    };
    // It stands in lines of INFO, in lists separated by commas.
    let plain = |c: char| c.is_ascii_graphic() && !matches!(c, ',' | '=' | '"' | '\'');
    if host.is_empty() || text.len() > BYTES_MAX || !text.chars().all(plain) {
        return Err(format!("it names no host; {accepted}"));
    }
    match port.parse::<u16>() {
        Ok(1..) => Ok(()),
        _ => Err(format!("'{port}' is no port; {accepted}")),
    }
}

/// The address that a replica announces to its peers; empty when it has no server for Redis
/// clients.
pub(crate) fn of(config: &Config, listens: Option<SocketAddr>) -> String {
    match (&config.redis_announce, listens) {
        (_, None) => String::new(),
        (Some(told), Some(_)) => told.clone(),
        (None, Some(address)) => address.to_string(),
    }
}

/// The address to show: a host that stands for any of the replica's own is the one that it is
/// seen at.
pub(crate) fn seen_from(told: &str, from: IpAddr) -> Option<String> {
    match told.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_unspecified() => {
            Some(SocketAddr::new(from, address.port()).to_string())
        }
        _ => Some(told.to_owned()).filter(|told| !told.is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_accepted_when_it_can_be_shown() {
        for valid in [
            "10.0.0.1:7001",
            "[::1]:7001",
            "db1.example.org:1",
            "0.0.0.0:65535",
        ] {
            assert_eq!(check(valid), Ok(()), "{valid}");
        }
        let long = format!("{}:7001", "a".repeat(BYTES_MAX));
        let bad = [
            "", "host", ":7001", "a:0", "a:65536", "a b:1", "a,b:1", "a\r\nb:1", &long,
        ];
        for bad in bad {
            assert!(check(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn unspecified_host_is_replaced_by_the_one_that_is_seen() {
        let from = IpAddr::from([10, 0, 0, 7]);
        let seen = |told| seen_from(told, from);
        assert_eq!(seen("0.0.0.0:7001").as_deref(), Some("10.0.0.7:7001"));
        assert_eq!(seen("[::]:7001").as_deref(), Some("10.0.0.7:7001"));
        assert_eq!(seen("db1:7001").as_deref(), Some("db1:7001"));
        assert_eq!(seen(""), None);
    }
}
