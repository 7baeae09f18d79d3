//! Which members answer, so that clients hear of a lost quorum at once and by name.
//!
//! ```text
//!   frames of a member's node ──► older than SILENT, or its link is down: it does not answer
//!   those that answer do not suffice, none of them hears a majority, and nothing is decided,
//!   for LOST ──► new requests get CLUSTERDOWN without waiting, open ones end as uncertain
//! ```
//!
//! A link stays open when the process behind it hangs or its network is cut, so an open link says
//! nothing. Every node sends its pace four times a second: silence means that it does not answer.
//! Messages of the transport's thread do not count, since it still sends them when the node's own
//! thread or disk hangs. The protocol decides which members must answer: a view may have shrunk,
//! and a leader that hears a majority serves those, too, that hear only the leader.
//!
//! A proxy hears no paces. Members tell it that they have lost their quorum; when all that answer say
//! so, it is lost. While some member that does not say so answers, the proxy takes a quorum for lost
//! only when requests have waited for nothing, and tries again once in a while.
//!
//! Nothing here is needed for safety: a request that is refused is not executed, and of one that
//! ends as uncertain nothing is claimed.

use super::peers::PeerFigures;
use crate::transports::tcp::LinkReport;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use quintet_replica::{
    BatchId, Incarnation, Level, NodeState, ReplicaId, ReplicaSet, Slot, Time, ViableIn, Voters,
};
use std::time::Duration;

/// A member from which nothing came for this long does not answer.
const SILENT: Duration = Duration::from_secs(3);
/// A quorum that is missing for this long is lost: a link that comes back soon is no loss.
const LOST: Duration = Duration::from_secs(1);
/// Where it is not certain that a quorum is lost, this long without any answer says so. A member
/// may answer late for all.
const UNANSWERED: Duration = Duration::from_secs(4);
/// Members are looked at this often.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A replica that has lost its quorum says so to proxies this often.
const SAY_EVERY: Duration = Duration::from_millis(500);
/// A batch is let through this often then.
const TRY_EVERY: Duration = Duration::from_secs(2);

/// The node's knowledge; a proxy has none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known<'a> {
    /// The members that take part now, as last agreed.
    pub route: &'a [(ReplicaId, Incarnation)],
    /// Those that say of late that they hear a majority.
    pub quorate: ReplicaSet,
    pub committed: Slot,
    /// Those that say of late that they have lost their quorum: what a proxy knows.
    pub lost: ReplicaSet,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Reach {
    /// This replica, if it is one.
    me: Option<ReplicaId>,
    voters: Voters,
    viable: ViableIn,
    looked_at: Option<Time>,
    /// Those that answer have not sufficed since then.
    missing_since: Option<Time>,
    /// No other member answers.
    alone: bool,
    /// All others that answer have lost their quorum.
    told: bool,
    /// The last word of this replica on its own quorum, and when.
    said: Option<(bool, Time)>,
    committed: Slot,
    /// When something was last decided, or answered that takes a quorum.
    progress_at: Option<Time>,
    /// Batches in progress, and since when.
    open: HashMap<u64, (Level, Time), FixedState>,
    /// How many of them need a quorum …
    waiting: usize,
    /// … and since when they wait without any of them being answered.
    waiting_since: Option<Time>,
    try_at: Time,
}

impl Reach {
    pub fn new(me: Option<ReplicaId>, voters: Voters, viable: ViableIn) -> Self {
        Self {
            me,
            voters,
            viable,
            looked_at: None,
            missing_since: None,
            alone: false,
            told: false,
            said: None,
            committed: Slot(0),
            progress_at: None,
            open: HashMap::default(),
            waiting: 0,
            waiting_since: None,
            try_at: Time(0),
        }
    }

    /// Others vote, and another protocol has its say on who suffices.
    pub fn enter_epoch(&mut self, voters: Voters, viable: ViableIn) {
        (self.voters, self.viable) = (voters, viable);
        self.committed = Slot(0);
    }

    pub const fn voters(&self) -> Voters {
        self.voters
    }

    pub fn must_look(&self, now: Time) -> bool {
        (self.looked_at).is_none_or(|at| now.since(at) >= LOOK_EVERY)
    }

    /// Looks at who answers.
    pub fn observe(&mut self, figures: &PeerFigures, known: Known<'_>, now: Time) {
        self.looked_at = Some(now);
        if known.committed > self.committed {
            self.committed = known.committed;
            self.progress_at = Some(now);
        }
        let silent: ReplicaSet = self.silence(figures, now).map(|(id, _)| id).collect();
        let up = ReplicaSet(self.voters.set().0 & !silent.0);
        let others = self.me.map_or(up, |me| up.without(me));
        self.alone = others.is_empty();
        self.told = !self.alone && others.iter().all(|id| known.lost.contains(id));
        let through = others.iter().any(|id| known.quorate.contains(id));
        let viable = || self.are_viable(up, known.route);
        if through || !self.told && viable() {
            self.missing_since = None;
            self.rest(now);
        } else {
            self.missing_since.get_or_insert(now);
        }
    }

    /// Whether those that are up suffice to the protocol. It knows members by their ranks.
    fn are_viable(&self, up: ReplicaSet, route: &[(ReplicaId, Incarnation)]) -> bool {
        let voters = self.voters;
        let ranked = (0..).map(ReplicaId).zip(voters.set().iter());
        let nodes: Vec<_> = ranked
            .map(|(id, number)| NodeState {
                id,
                up: up.contains(number),
                state_lost: false,
            })
            .collect();
        let route = route.iter();
        let route: Vec<_> = route
            .filter_map(|(number, incarnation)| Some((voters.rank(*number)?, *incarnation)))
            .collect();
        (self.viable)(voters.len(), &nodes, &route)
    }

    /// A request's wait counts from now.
    fn rest(&mut self, now: Time) {
        self.waiting_since = (self.waiting > 0).then_some(now);
    }

    /// No request can be carried out, and this is not about to change.
    pub fn is_quorum_lost(&self, now: Time) -> bool {
        let past = |since: Option<Time>, long| since.is_some_and(|since| now.since(since) >= long);
        // Members that say so have waited already.
        (self.told || past(self.missing_since, LOST))
            && self.progress_at.is_none_or(|at| now.since(at) >= LOST)
            && (self.is_certain() || past(self.waiting_since, UNANSWERED))
    }

    const fn is_certain(&self) -> bool {
        self.me.is_some() || self.alone || self.told
    }

    /// The word on this replica's quorum for proxies, when it is due: again and again while the
    /// quorum is lost, and once when it no longer is.
    pub fn word(&mut self, now: Time) -> Option<bool> {
        let lost = self.is_quorum_lost(now);
        let due = match self.said {
            Some((true, at)) => !lost || now.since(at) >= SAY_EVERY,
            _ => lost,
        };
        if due {
            self.said = Some((lost, now));
        }
        due.then_some(lost)
    }

    /// Whether a batch may go; if so, it is in progress.
    pub fn takes(&mut self, batch: BatchId, level: Level, now: Time) -> bool {
        if level != Level::Stale {
            if self.is_quorum_lost(now) {
                if self.is_certain() || now < self.try_at {
                    return false;
                }
                self.try_at = now + TRY_EVERY;
            }
            self.waiting += 1;
            self.waiting_since.get_or_insert(now);
        }
        self.open.insert(batch.0, (level, now));
        true
    }

    /// A batch is finished, with results or without; whether anybody still waits for it.
    pub fn finished(&mut self, batch: BatchId, results: bool, now: Time) -> bool {
        match self.open.remove(&batch.0) {
            Some((Level::Stale, _)) => true,
            Some(_) => {
                self.waiting -= 1;
                if results {
                    self.progress_at = Some(now);
                    self.rest(now);
                }
                true
            }
            None => {
                if results {
                    self.progress_at = Some(now);
                }
                false
            }
        }
    }

    /// Takes out the batches that wait for a quorum that is lost, in the order of their numbers.
    pub fn take_hopeless(&mut self, now: Time) -> Vec<BatchId> {
        if self.waiting == 0 || !self.is_quorum_lost(now) {
            return Vec::new();
        }
        let long = match self.is_certain() {
            true => LOST,
            false => UNANSWERED,
        };
        let hopeless = |_: &u64, (level, since): &mut (Level, Time)| {
            *level != Level::Stale && now.since(*since) >= long
        };
        let taken = self.open.extract_if(hopeless);
        let mut taken: Vec<_> = taken.map(|(batch, _)| BatchId(batch)).collect();
        taken.sort_unstable();
        self.waiting -= taken.len();
        taken
    }

    /// Takes out all batches in flight: none of them will be answered.
    pub fn take_all(&mut self) -> Vec<BatchId> {
        self.waiting = 0;
        let mut taken: Vec<_> = self.open.drain().map(|(batch, _)| BatchId(batch)).collect();
        taken.sort_unstable();
        taken
    }

    /// When something of a member last came that says that it can answer.
    pub const fn heard(&self, link: &LinkReport) -> Option<Time> {
        match self.me {
            Some(_) => link.node_heard,
            None => link.heard,
        }
    }

    /// The other members that do not answer, with the time since they last did.
    pub fn silent(&self, figures: &PeerFigures, now: Time) -> Vec<(ReplicaId, Option<Duration>)> {
        self.silence(figures, now).collect()
    }

    fn silence(
        &self,
        figures: &PeerFigures,
        now: Time,
    ) -> impl Iterator<Item = (ReplicaId, Option<Duration>)> {
        let others = self.voters.set().iter();
        let others = others.filter(|id| Some(*id) != self.me);
        // Only those that vote tell each other all the time that they are there.
        let learns = self.me.is_some_and(|me| !self.voters.contains(me));
        others.filter_map(move |id| {
            let link = figures.links.get(id.index())?;
            let age = self.heard(link).map(|at| now.since(at));
            let answers = link.up && (learns || age.is_some_and(|age| age < SILENT));
            (!answers).then_some((id, age))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    const fn ms(milliseconds: u64) -> Time {
        Time(milliseconds * 1_000_000)
    }

    fn reach(me: Option<u16>, members: usize, protocol: &str) -> Reach {
        let entry = quintet_protocols::find(protocol).expect("a protocol");
        Reach::new(me.map(ReplicaId), Voters::dense(members), entry.viable_in)
    }

    /// Links that are up where something came, both of the node and of its transport.
    fn heard<const N: usize>(heard: [Option<Time>; N]) -> PeerFigures {
        figures(heard, heard.map(|at| at.is_some()))
    }

    fn figures<const N: usize>(heard: [Option<Time>; N], up: [bool; N]) -> PeerFigures {
        let links = heard.into_iter().zip(up);
        let link = |(heard, up)| LinkReport {
            heard,
            node_heard: heard,
            up,
            ..LinkReport::default()
        };
        let mut figures = PeerFigures::default();
        figures.links = links.map(link).collect();
        figures
    }

    fn look(reach: &mut Reach, figures: &PeerFigures, now: Time) -> usize {
        reach.observe(figures, Known::default(), now);
        figures.links.len() - reach.silent(figures, now).len()
    }

    #[test]
    fn open_link_does_not_count_when_nothing_came_for_long() {
        let mut reach = reach(Some(0), 3, "multipaxos");
        let stopped = figures([None, Some(at(10)), Some(at(10))], [false, true, true]);
        assert_eq!(look(&mut reach, &stopped, at(12)), 3);
        assert_eq!(look(&mut reach, &stopped, at(13)), 1);
        assert!(!reach.is_quorum_lost(at(13)));
        assert!(reach.is_quorum_lost(at(14)));
        let age = Some(Duration::from_secs(4));
        let silent = [(ReplicaId(1), age), (ReplicaId(2), age)];
        assert_eq!(reach.silent(&stopped, at(14)), silent);
        let back = figures([None, Some(at(14)), Some(at(10))], [false, true, true]);
        assert_eq!(look(&mut reach, &back, at(14)), 2);
        assert!(!reach.is_quorum_lost(at(14)));
    }

    #[test]
    fn quorum_is_not_lost_when_a_link_comes_back_soon() {
        let mut reach = reach(Some(0), 3, "multipaxos");
        let heard = [None, Some(at(10)), Some(at(10))];
        let down = figures(heard, [false; 3]);
        assert_eq!(look(&mut reach, &down, at(10)), 1);
        assert!(!reach.is_quorum_lost(ms(10_900)));
        let up = figures(heard, [false, true, false]);
        assert_eq!(look(&mut reach, &up, ms(10_900)), 2);
        assert_eq!(look(&mut reach, &down, at(11)), 1);
        assert!(!reach.is_quorum_lost(ms(11_900)));
    }

    #[test]
    fn transport_that_answers_for_a_node_that_hangs_does_not_count() {
        let mut reach = reach(Some(0), 3, "multipaxos");
        let mut hung = heard([None, Some(at(20)), Some(at(20))]);
        for link in &mut hung.links {
            link.node_heard = link.node_heard.map(|_| at(10));
        }
        assert_eq!(look(&mut reach, &hung, at(20)), 1);
        assert!(reach.is_quorum_lost(at(21)));
    }

    #[test]
    fn view_members_suffice_below_majority_of_epoch() {
        let mut reach = reach(Some(0), 5, "derecho");
        let two = heard([None, Some(at(10)), None, None, None]);
        let route = [0, 1].map(|id| (ReplicaId(id), Incarnation(1)));
        let known = Known {
            route: &route,
            ..Known::default()
        };
        reach.observe(&two, known, at(10));
        assert!(!reach.is_quorum_lost(at(12)));
        let one = heard([None; 5]);
        reach.observe(&one, known, at(12));
        assert!(reach.is_quorum_lost(at(13)));
    }

    #[test]
    fn member_that_hears_a_majority_serves_one_that_hears_only_it() {
        let mut reach = reach(Some(4), 5, "multipaxos");
        let leader_only = heard([Some(at(10)), None, None, None, None]);
        let known = Known {
            quorate: ReplicaSet::EMPTY.with(ReplicaId(0)),
            ..Known::default()
        };
        reach.observe(&leader_only, known, at(10));
        assert!(!reach.is_quorum_lost(at(12)));
        // It has lost its majority, or is itself heard no more.
        reach.observe(&leader_only, Known::default(), at(12));
        assert!(reach.is_quorum_lost(at(13)));
        let mut reach = self::reach(Some(4), 5, "multipaxos");
        reach.observe(&leader_only, known, at(13));
        assert!(reach.is_quorum_lost(at(14)));
    }

    #[test]
    fn quorum_is_not_lost_while_something_is_decided_or_answered() {
        let mut reach = reach(Some(0), 5, "multipaxos");
        let none = heard([None; 5]);
        for second in 10..20 {
            let known = Known {
                committed: Slot(second),
                ..Known::default()
            };
            reach.observe(&none, known, at(second));
            assert!(!reach.is_quorum_lost(at(second)));
        }
        assert!(reach.is_quorum_lost(at(20)));
        assert!(reach.takes(BatchId(1), Level::Stale, at(20)));
        assert!(reach.finished(BatchId(1), true, at(20)));
        assert!(reach.is_quorum_lost(at(20)), "no quorum was needed");
        assert!(!reach.finished(BatchId(2), true, at(20)));
        assert!(!reach.is_quorum_lost(at(20)));
    }

    #[test]
    fn open_batches_end_once_the_quorum_is_lost() {
        let mut reach = reach(Some(0), 3, "multipaxos");
        let none = heard([None; 3]);
        for (id, level) in [
            (1, Level::Ordered),
            (2, Level::Linearizable),
            (3, Level::Stale),
        ] {
            assert!(reach.takes(BatchId(id), level, at(10)));
        }
        look(&mut reach, &none, at(10));
        assert!(reach.takes(BatchId(4), Level::Ordered, ms(10_500)));
        assert!(reach.take_hopeless(ms(10_900)).is_empty());
        assert_eq!(reach.take_hopeless(at(11)), [BatchId(1), BatchId(2)]);
        assert!(!reach.takes(BatchId(5), Level::Ordered, at(11)));
        assert!(!reach.finished(BatchId(1), false, at(11)), "it has ended");
        assert!(reach.finished(BatchId(3), true, at(11)));
        assert_eq!(reach.take_hopeless(ms(11_500)), [BatchId(4)]);
        assert_eq!((reach.waiting, reach.open.len()), (0, 0));
    }

    #[test]
    fn proxy_tries_the_members_that_answer_once_in_a_while() {
        let mut reach = reach(None, 3, "nezha");
        let one = heard([Some(at(100)), None, None]);
        assert_eq!(look(&mut reach, &one, at(100)), 1);
        assert_eq!(reach.silent(&one, at(100))[0], (ReplicaId(1), None));
        // It is served for as long as it gets answers.
        for id in 0..10 {
            let now = at(100 + id);
            assert!(reach.takes(BatchId(id), Level::Ordered, now));
            assert!(reach.finished(BatchId(id), true, now));
        }
        assert!(reach.takes(BatchId(10), Level::Ordered, at(110)));
        assert!(!reach.is_quorum_lost(ms(113_900)) && reach.is_quorum_lost(at(114)));
        assert_eq!(reach.take_hopeless(at(114)), [BatchId(10)]);
        for (id, now) in [(11, at(114)), (13, at(118))] {
            assert!(reach.takes(BatchId(id), Level::Ordered, now), "one tries");
            assert!(!reach.takes(BatchId(id + 1), Level::Ordered, now));
            assert_eq!(reach.take_hopeless(now + UNANSWERED), [BatchId(id)]);
        }
        assert!(reach.takes(BatchId(15), Level::Linearizable, at(122)));
        assert!(!reach.takes(BatchId(16), Level::Linearizable, ms(123_900)));
        assert!(reach.finished(BatchId(15), true, at(124)));
        assert!(reach.takes(BatchId(17), Level::Ordered, at(125)));
    }

    #[test]
    fn proxy_has_lost_the_quorum_when_all_that_answer_say_so() {
        let mut reach = reach(None, 3, "nezha");
        let mut look = |heard: [Option<Time>; 3], lost: &[u16], now| {
            let lost = lost.iter().copied().map(ReplicaId).collect();
            let known = Known {
                lost,
                ..Known::default()
            };
            reach.observe(&self::heard(heard), known, now);
            (reach.is_quorum_lost(now), reach.take_hopeless(now).len())
        };
        let (all, one) = ([Some(at(10)); 3], [Some(at(10)), None, None]);
        assert_eq!(look(one, &[], at(10)), (false, 0));
        assert_eq!(look(one, &[0], at(10)), (true, 0));
        assert_eq!(look(one, &[], at(11)), (false, 0));
        assert_eq!(look(all, &[0, 1], at(11)), (false, 0));
        assert_eq!(look(all, &[0, 1, 2], at(11)), (true, 0));
        assert_eq!(look(all, &[1, 2], at(11)), (false, 0));
        // Waiting requests end as soon as they say so, and not after their deadline.
        assert!(reach.takes(BatchId(1), Level::Ordered, at(11)));
        let known = Known {
            lost: ReplicaSet::EMPTY.with(ReplicaId(0)),
            ..Known::default()
        };
        reach.observe(&self::heard(one), known, at(12));
        assert_eq!(reach.take_hopeless(at(12)), [BatchId(1)]);
        assert!(!reach.takes(BatchId(2), Level::Ordered, at(12)));
    }

    #[test]
    fn replica_says_that_its_quorum_is_lost_and_once_that_it_is_not() {
        let mut reach = reach(Some(0), 3, "multipaxos");
        assert_eq!(reach.word(at(10)), None);
        look(&mut reach, &heard([None; 3]), at(10));
        assert_eq!(reach.word(ms(10_900)), None);
        let said = [11_000, 11_400, 11_500].map(|now| reach.word(ms(now)));
        assert_eq!(said, [Some(true), None, Some(true)]);
        look(&mut reach, &heard([None, Some(at(12)), None]), at(12));
        assert_eq!([0, 1].map(|_| reach.word(at(12))), [Some(false), None]);
    }

    #[test]
    fn proxy_that_no_member_answers_has_lost_the_quorum() {
        let mut reach = reach(None, 3, "nezha");
        assert_eq!(look(&mut reach, &heard([None; 3]), at(1)), 0);
        assert!(reach.is_quorum_lost(at(2)));
        assert!(!reach.takes(BatchId(1), Level::Ordered, at(2)));
    }
}
