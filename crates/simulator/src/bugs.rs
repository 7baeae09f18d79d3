//! The injected bugs that a campaign may switch on, and where they are looked for.
//!
//! ```text
//!   rig (clients, checkers) ─┐
//!   node (sessions, state) ──┼──► bugs(protocol) ──► --inject-bug list, ci/bugs
//!   protocol ────────────────┘
//! ```

use quintet_protocols::{UnknownProtocol, find};
use quintet_replica::BugSpec;

/// One replica's state differs, and nothing but the digests that replicas compare shows it.
pub(crate) const APPLIED_TWICE: &str = "applied_twice_at_one_replica";

/// Replicas work together whatever they are configured with.
pub(crate) const UNCOMPARED: &str = "configuration_not_compared";

/// Injected bugs of the rig itself.
pub(crate) const RIG: [BugSpec; 5] = [
    BugSpec {
        name: "canary",
        scenario: 0,
        what: "one answer is exchanged: every seed must fail",
        campaign: "",
    },
    BugSpec {
        name: APPLIED_TWICE,
        scenario: 0,
        what: "one replica applies some commands twice, unseen but by digests of the states",
        campaign: "",
    },
    BugSpec {
        name: UNCOMPARED,
        scenario: 0,
        what: "replicas do not compare what they are configured with, and one differs",
        campaign: "--faults all,configuration",
    },
    BugSpec {
        name: "retry_under_new_session",
        scenario: 42,
        what: "clients repeat commands under other numbers",
        campaign: "",
    },
    BugSpec {
        name: "fsync_error_then_retry",
        scenario: 31,
        what: "a sync that failed is tried again, succeeds, and what it should have written is gone",
        campaign: "",
    },
];

/// All bugs that can be injected for a protocol, with whose they are. Only the rig's own in a
/// build without the feature `bugs`.
///
/// # Errors
/// When there is no such protocol.
pub fn bugs(protocol: &str) -> Result<Vec<(&'static str, BugSpec)>, UnknownProtocol> {
    let entry = find(protocol)?;
    let rig = RIG.iter().map(|spec| ("rig", *spec));
    let own = entry.bugs.iter().map(|spec| (entry.info.name, *spec));
    #[cfg(feature = "bugs")]
    let node = quintet_replica::Bug::SPECS
        .iter()
        .map(|spec| ("node", *spec));
    #[cfg(not(feature = "bugs"))]
    let node = std::iter::empty();
    Ok(rig.chain(node).chain(own).collect())
}
