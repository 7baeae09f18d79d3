//! Links of the chain that pass nothing, although both ends are there; kept by the leader.

use super::chain::Route;
use alloc::{collections::BTreeMap, vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{ReplicaId, Time};

/// For how long two replicas whose link was broken are not placed behind each other.
const AVOID: Duration = Duration::from_secs(30);

/// A sender and a receiver.
type Link = (ReplicaId, ReplicaId);

/// See the module.
#[derive(Hash)]
pub(super) struct Links {
    /// Complaints of one member about another that the leader receives from: since when, and last.
    complaints: BTreeMap<Link, (Time, Time)>,
    /// Links that were broken, and since when.
    avoid: BTreeMap<Link, Time>,
    /// Links that earlier rounds still passed when later ones did not in time, and since when.
    full: BTreeMap<Link, Time>,
    /// The newest round that each has reported, and when it was a newer one than before.
    seen: Vec<(u64, Time)>,
    /// A round that everyone in the route should have seen: which, since when, and the route.
    due: (u64, Time, Route),
}

impl Links {
    pub fn new(members: usize, now: Time) -> Self {
        Self {
            complaints: BTreeMap::new(),
            avoid: BTreeMap::new(),
            full: BTreeMap::new(),
            seen: vec![(0, now); members],
            due: (0, now, Route::new()),
        }
    }

    /// Whether the link from one to the other was what had failed.
    pub fn avoids(&self, from: ReplicaId, to: ReplicaId) -> bool {
        self.avoid.contains_key(&(from, to))
    }

    /// Forgets links that were broken long ago.
    pub fn expire(&mut self, now: Time) {
        self.avoid.retain(|_, since| now.since(*since) < AVOID);
        self.full.retain(|_, since| now.since(*since) < AVOID);
    }

    /// A replica reports the newest round that it has seen.
    pub fn saw(&mut self, id: ReplicaId, round: u64, now: Time) {
        let (newest, at) = &mut self.seen[id.index()];
        if round > *newest {
            *at = now;
        }
        *newest = round;
    }

    /// A member complains about another that is received from. True when it has done so for long
    /// enough: then their link is what is broken. A pause of `timeout` begins it again.
    pub fn complain(&mut self, link: Link, now: Time, timeout: Duration, long: Duration) -> bool {
        let complaint = self.complaints.entry(link).or_insert((now, now));
        if now.since(complaint.1) > timeout {
            complaint.0 = now;
        }
        complaint.1 = now;
        if now.since(complaint.0) < long {
            return false;
        }
        self.avoid.insert(link, now);
        true
    }

    /// The complaint has led to a removal.
    pub fn settle(&mut self, link: Link) {
        self.complaints.remove(&link);
    }

    /// The first link of the route that a round has not passed within `timeout`. `made` is the
    /// newest round; the next call looks for that one. A link that earlier rounds still pass is
    /// full, and not broken: its end need not come back before the middle, where all would wait.
    pub fn find_broken(
        &mut self,
        route: &[ReplicaId],
        own: ReplicaId,
        made: u64,
        now: Time,
        timeout: Duration,
    ) -> Option<Link> {
        let (number, since, looked) = &self.due;
        let lacks = |of: &ReplicaId| *of != own && self.seen[of.index()].0 < *number;
        let first = route.iter().position(lacks);
        let first = first.filter(|_| looked.as_slice() == route);
        if first.is_some() && now.since(*since) < timeout {
            return None;
        }
        self.due = (made, now, route.iter().copied().collect());
        let link = first.map(|at| (route[at - 1], route[at]))?;
        let (_, newer_at) = self.seen[link.1.index()];
        if now.since(newer_at) < timeout / 2 {
            self.full.insert(link, now);
        } else if !self.full.contains_key(&link) {
            self.avoid.insert(link, now);
        }
        Some(link)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_that_passes_rounds_late_is_not_broken() {
        let [leader, middle, tail] = [0, 1, 2].map(ReplicaId);
        let route = [leader, middle, tail];
        let at = |millis: u64| Time(millis * 1_000_000);
        let timeout = Duration::from_millis(500);
        let look = |links: &mut Links, beats: core::ops::Range<u64>, late: bool| {
            let mut broken = None;
            for beat in beats {
                let now = at(beat * 100);
                links.saw(middle, beat * 10, now);
                links.saw(tail, if late { beat } else { 1 }, now);
                broken = broken.or(links.find_broken(&route, leader, beat * 10, now, timeout));
                links.expire(now);
            }
            assert_eq!(broken, Some((middle, tail)), "it is left out");
            links.avoids(middle, tail)
        };
        let mut links = Links::new(3, at(0));
        assert!(!look(&mut links, 1..20, true));
        assert!(!look(&mut links, 20..40, false), "it was full just now");
        assert!(look(&mut links, 400..420, false), "and long ago");
        assert!(look(&mut Links::new(3, at(0)), 1..20, false));
    }
}
