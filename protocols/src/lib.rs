//! All replication protocols, one folder each, and the registry that names them.
//!
//! ```text
//!   crates/replica (the boundary) ◄── multipaxos/ …      each folder uses the boundary and
//!          ▲                              │              `parts`, never another folder
//!          └── runtime, simulator ◄── PROTOCOLS, find(name)
//! ```

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod chain_paxos;
pub mod chora;
pub mod derecho;
#[cfg(test)]
mod group;
pub mod mencius;
pub mod multipaxos;
pub mod nezha;
pub mod racs;
#[cfg(test)]
mod random_runs;
pub mod sadl;

use alloc::string::{String, ToString};
use quintet_replica::Entry;

quintet_replica::registry! { multipaxos::MultiPaxos, chain_paxos::ChainPaxos, chora::Chora, racs::Racs, derecho::Derecho, nezha::Nezha, mencius::Mencius }

/// No protocol has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no protocol '{name}'; did you mean '{suggestion}'?")]
pub struct UnknownProtocol {
    /// The requested name.
    pub name: String,
    /// The registered name that is nearest to it.
    pub suggestion: &'static str,
}

/// The registered protocol of that name.
///
/// # Errors
/// With the nearest name when there is none.
pub fn find(name: &str) -> Result<&'static Entry, UnknownProtocol> {
    if let Some(entry) = PROTOCOLS.iter().find(|entry| entry.info.name == name) {
        return Ok(entry);
    }
    let nearest = PROTOCOLS
        .iter()
        .map(|entry| entry.info.name)
        .min_by_key(|known| distance(name.as_bytes(), known.as_bytes()));
    Err(UnknownProtocol {
        name: name.to_string(),
        suggestion: nearest.unwrap_or_default(),
    })
}

/// How many single-byte edits turn one name into the other. Names from outside may be long: only
/// their first 64 bytes are compared.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let (a, b) = (&a[..a.len().min(64)], &b[..b.len().min(64)]);
    let mut row: alloc::vec::Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(!x.eq_ignore_ascii_case(y));
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_is_named_as_its_protocol() {
        macro_rules! folders {
            ($($folder:ident)*) => { [$(stringify!($folder)),*] };
        }
        let folders = for_each_protocol! { folders };
        let names: alloc::vec::Vec<_> = PROTOCOLS.iter().map(|entry| entry.info.name).collect();
        assert_eq!(folders[..], names[..]);
    }

    #[test]
    fn simulator_page_lists_bound_of_each_protocol() {
        let text = include_str!("../../docs/design/simulator.md");
        for entry in PROTOCOLS {
            let bound = entry.resumes_within.as_secs();
            let row = alloc::format!("| `{}` | {bound} s | ", entry.info.name);
            assert!(
                text.contains(&row),
                "docs/design/simulator.md has no '{row}'"
            );
        }
    }

    #[test]
    fn options_that_are_times_are_named_by_their_unit() {
        for spec in PROTOCOLS.iter().flat_map(|entry| entry.options) {
            let help = spec.help;
            let is_time = ["milliseconds", "microseconds"].map(|unit| help.contains(unit));
            let named = quintet_replica::option_is_time(spec.name);
            assert_eq!(is_time.contains(&true), named, "{}: {help}", spec.name);
        }
    }

    #[test]
    fn protocols_are_found_by_name_and_a_typo_gets_a_suggestion() {
        assert_eq!(
            find("multipaxos").map(|entry| entry.info.name),
            Ok("multipaxos")
        );
        let error = find("multi-paxos").expect_err("no such name");
        assert_eq!(error.suggestion, "multipaxos");
        assert!(error.to_string().contains("did you mean 'multipaxos'"));
    }

    #[test]
    fn options_are_checked_by_name_value_and_together() {
        let entry = find("multipaxos").expect("registered");
        let given = |name: &str, value: &str| alloc::vec![(name.to_string(), value.to_string())];
        assert!((entry.check)(&given("heartbeat_ms", "50")).is_ok());
        assert!((entry.check)(&given("heartbeat", "50")).is_err());
        assert!((entry.check)(&given("heartbeat_ms", "soon")).is_err());
        assert!(
            (entry.check)(&given("heartbeat_ms", "400")).is_err(),
            "too near the timeout"
        );
    }
}
