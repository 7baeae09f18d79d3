//! Which members answer, so that clients hear of a lost quorum at once and by name.
//!
//! ```text
//!   bytes of a member ──► heard ──► older than SILENT, or its link is down: it does not answer
//!   fewer than a majority answer, for LOST ──► requests get CLUSTERDOWN without waiting
//! ```
//!
//! A link stays open when the process behind it hangs or its network is cut, so an open link says
//! nothing. Transports ask every linked member for its clock twice a second: silence means that it
//! does not answer. Nothing here is needed for safety: a request that is refused is not executed.

use super::peers::PeerFigures;
use quintet_replica::{ReplicaId, Time};
use std::time::Duration;

/// A member from which nothing came for this long does not answer.
const SILENT: Duration = Duration::from_secs(3);
/// A quorum that is missing for this long is lost: a link that comes back soon is no loss.
const LOST: Duration = Duration::from_secs(1);
/// Members are looked at this often.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// See the module.
#[derive(Debug)]
pub(super) struct Reach {
    /// This replica, if it is one.
    me: Option<ReplicaId>,
    members: usize,
    looked_at: Option<Time>,
    /// Fewer than a majority have answered since then.
    missing_since: Option<Time>,
}

impl Reach {
    pub const fn new(me: Option<ReplicaId>, members: usize) -> Self {
        Self {
            me,
            members,
            looked_at: None,
            missing_since: None,
        }
    }

    pub fn must_look(&self, now: Time) -> bool {
        (self.looked_at).is_none_or(|at| now.since(at) >= LOOK_EVERY)
    }

    /// How many members answer, this one included.
    pub fn observe(&mut self, figures: &PeerFigures, now: Time) -> usize {
        let answering = self.members.saturating_sub(self.silent(figures, now).len());
        self.looked_at = Some(now);
        if answering > self.members / 2 {
            self.missing_since = None;
        } else {
            self.missing_since.get_or_insert(now);
        }
        answering
    }

    /// No request can be carried out, and this is not about to change.
    pub fn is_quorum_lost(&self, now: Time) -> bool {
        (self.missing_since).is_some_and(|since| now.since(since) >= LOST)
    }

    /// The other members that do not answer, with the time since they last did.
    pub fn silent(&self, figures: &PeerFigures, now: Time) -> Vec<(ReplicaId, Option<Duration>)> {
        let ids = (0..self.members as u16).map(ReplicaId);
        let others = ids.filter(|id| Some(*id) != self.me);
        let silence = |id: ReplicaId| {
            let link = figures.links.get(id.index())?;
            let age = link.heard.map(|at| now.since(at));
            let answers = link.up && age.is_some_and(|age| age < SILENT);
            (!answers).then_some((id, age))
        };
        others.filter_map(silence).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transports::tcp::LinkReport;

    const fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    fn figures(heard: [Option<Time>; 3], up: [bool; 3]) -> PeerFigures {
        let links = heard.into_iter().zip(up);
        let link = |(heard, up)| LinkReport {
            heard,
            up,
            ..LinkReport::default()
        };
        let mut figures = PeerFigures::default();
        figures.links = links.map(link).collect();
        figures
    }

    #[test]
    fn open_link_does_not_count_when_nothing_came_for_long() {
        let mut reach = Reach::new(Some(ReplicaId(0)), 3);
        let stopped = figures([None, Some(at(10)), Some(at(10))], [false, true, true]);
        assert_eq!(reach.observe(&stopped, at(12)), 3);
        assert_eq!(reach.observe(&stopped, at(13)), 1);
        assert!(!reach.is_quorum_lost(at(13)));
        assert!(reach.is_quorum_lost(at(14)));
        let age = Some(Duration::from_secs(4));
        let silent = [(ReplicaId(1), age), (ReplicaId(2), age)];
        assert_eq!(reach.silent(&stopped, at(14)), silent);
        let back = figures([None, Some(at(14)), Some(at(10))], [false, true, true]);
        assert_eq!(reach.observe(&back, at(14)), 2);
        assert!(!reach.is_quorum_lost(at(14)));
    }

    #[test]
    fn quorum_is_not_lost_when_a_link_comes_back_soon() {
        let mut reach = Reach::new(Some(ReplicaId(0)), 3);
        let heard = [None, Some(at(10)), Some(at(10))];
        let down = figures(heard, [false; 3]);
        assert_eq!(reach.observe(&down, at(10)), 1);
        assert!(!reach.is_quorum_lost(Time(10_900_000_000)));
        let up = figures(heard, [false, true, false]);
        assert_eq!(reach.observe(&up, Time(10_900_000_000)), 2);
        assert_eq!(reach.observe(&down, at(11)), 1);
        assert!(!reach.is_quorum_lost(Time(11_900_000_000)));
    }

    #[test]
    fn proxy_counts_members_only() {
        let mut reach = Reach::new(None, 3);
        let one = figures([Some(at(1)), None, None], [true, false, false]);
        assert_eq!(reach.observe(&one, at(1)), 1);
        assert!(reach.is_quorum_lost(at(2)));
        assert_eq!(reach.silent(&one, at(1))[0], (ReplicaId(1), None));
    }
}
