//! A line in the log for each election, view and change of the members that take part.
//!
//! ```text
//!   every published status ──► same as the last one? ──► nothing
//!                                   └─► differs ──► budget left? ──► one line at level info
//!                                                        └─► counted, told with the next line
//! ```

use quintet_replica::{ReplicaId, Status, Time, Voters};
use std::time::Duration;

/// Lines that may follow each other at once.
const BURST: u32 = 10;
/// After them one line per this time: under attack some protocols change views many times a second.
const INTERVAL: Duration = Duration::from_secs(2);

/// The parts of a status that are logged when they change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    role: &'static str,
    leader: Option<ReplicaId>,
    view: u64,
    voting: bool,
    route: Vec<u16>,
}

/// Compares each status with the one before.
#[derive(Debug)]
pub(super) struct Changes {
    voters: Voters,
    last: Option<Seen>,
    budget: u32,
    refilled: Time,
    suppressed: u64,
}

impl Changes {
    pub const fn new(voters: Voters) -> Self {
        Self {
            voters,
            last: None,
            budget: BURST,
            refilled: Time(0),
            suppressed: 0,
        }
    }

    /// These vote in the epoch.
    pub const fn enter_epoch(&mut self, voters: Voters) {
        self.voters = voters;
    }

    /// The line to log, if something changed and the budget allows it.
    pub fn observe(&mut self, status: &Status, route: &[u16], now: Time) -> Option<String> {
        let same = self.last.as_ref().is_some_and(|last| {
            (last.role, last.leader, last.view, last.voting)
                == (status.role, status.leader, status.view, status.voting)
                && last.route == route
        });
        if same {
            return None;
        }
        let next = Seen {
            role: status.role,
            leader: status.leader,
            view: status.view,
            voting: status.voting,
            route: route.to_vec(),
        };
        let text = self.describe(&next);
        self.last = Some(next);
        self.refill(now);
        if self.budget == 0 {
            self.suppressed += 1;
            return None;
        }
        self.budget -= 1;
        let suppressed = std::mem::take(&mut self.suppressed);
        Some(match suppressed {
            0 => text,
            count => format!("{text} ({count} changes before it are not shown)"),
        })
    }

    fn refill(&mut self, now: Time) {
        let interval = INTERVAL.as_nanos() as u64;
        let intervals = now.since(self.refilled).as_nanos() as u64 / interval;
        if intervals > 0 {
            self.refilled = now;
            let more = u32::try_from(intervals).unwrap_or(u32::MAX);
            self.budget = self.budget.saturating_add(more).min(BURST);
        }
    }

    fn describe(&self, next: &Seen) -> String {
        let mut parts = Vec::new();
        let last = self.last.as_ref();
        if last.is_none_or(|last| last.leader != next.leader) {
            match next.leader {
                Some(leader) => parts.push(format!("leader is replica {}", leader.0)),
                // Protocols without leaders never name one.
                None if last.is_some_and(|last| last.leader.is_some()) => {
                    parts.push("no leader is known".to_owned());
                }
                None => {}
            }
        }
        if last.is_none_or(|last| last.view != next.view) {
            parts.push(format!("view {}", next.view));
        }
        if last.is_none_or(|last| last.role != next.role) {
            parts.push(format!("role {}", next.role));
        }
        if last.is_none_or(|last| last.voting != next.voting) {
            parts.push(match next.voting {
                true => "takes part in quorums".to_owned(),
                false => "takes no part in quorums".to_owned(),
            });
        }
        if !next.route.is_empty() && last.is_none_or(|last| last.route != next.route) {
            let ids: Vec<_> = next.route.iter().map(u16::to_string).collect();
            let mut text = format!("active members {}", ids.join(", "));
            let out: Vec<_> = (self.voters.set().iter())
                .filter(|id| !next.route.contains(&id.0))
                .map(|id| id.0.to_string())
                .collect();
            if !out.is_empty() {
                text.push_str(&format!(" (without {})", out.join(", ")));
            }
            parts.push(text);
        }
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(view: u64, leader: Option<u16>) -> Status {
        Status {
            role: "follower",
            view,
            leader: leader.map(ReplicaId),
            voting: true,
            ..Status::default()
        }
    }

    #[test]
    fn election_is_logged_once() {
        let mut changes = Changes::new(Voters::dense(3));
        let first = changes.observe(&status(1, Some(0)), &[], Time(1)).unwrap();
        assert_eq!(
            first,
            "leader is replica 0, view 1, role follower, takes part in quorums"
        );
        assert_eq!(changes.observe(&status(1, Some(0)), &[], Time(2)), None);
        let lost = changes.observe(&status(1, None), &[], Time(3));
        assert_eq!(lost.as_deref(), Some("no leader is known"));
        let next = changes.observe(&status(2, Some(1)), &[], Time(4));
        assert_eq!(next.as_deref(), Some("leader is replica 1, view 2"));
    }

    #[test]
    fn membership_change_names_members_left_out() {
        let mut changes = Changes::new(Voters::dense(3));
        let _ = changes.observe(&status(1, None), &[0, 1, 2], Time(1));
        let line = changes.observe(&status(1, None), &[0, 2], Time(2));
        assert_eq!(line.as_deref(), Some("active members 0, 2 (without 1)"));
    }

    #[test]
    fn lines_are_limited_when_views_change_all_the_time() {
        let mut changes = Changes::new(Voters::dense(3));
        let second = 1_000_000_000;
        let lines = (0..1_000u64)
            .filter_map(|view| changes.observe(&status(view, None), &[], Time(view * second / 100)))
            .count();
        assert!((10..=16).contains(&lines), "{lines} lines in ten seconds");
        let last = changes.observe(&status(5_000, None), &[], Time(60 * second));
        assert!(last.unwrap().contains("changes before it are not shown"));
    }
}
