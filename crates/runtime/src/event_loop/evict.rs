//! Members that have been gone for long are removed, where the operator wants that.
//!
//! ```text
//!   a voter does not answer ──► for `evict_after` ──► who leads asks for an epoch without it
//!        └─ it answers again: counted from the beginning       one at a time, no fewer than three
//! ```
//!
//! Every member counts by itself, so that another one takes over where the leader is the one that
//! is gone. Nothing here is needed for safety: it asks for a change as an operator does, and an epoch
//! that has no quorum orders none.

use super::EventLoop;
use crate::{mail::Waiter, server::ChangeReport};
use quintet_protocols::find;
use quintet_replica::{Descriptor, ReplicaId, ReplicaSet, Time, Voters};
use std::{collections::BTreeMap, sync::mpsc, time::Duration};

/// The fewest voters that stay: with fewer, the loss of one stops the cluster in any case.
const LEAST: usize = 3;
/// Members are looked at this often.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// One that has not looked for so long was stopped itself, and does not know who answered.
const STOPPED: Duration = Duration::from_secs(5);
/// One that could not be removed is tried again after this.
const AGAIN: Duration = Duration::from_secs(30);

/// The members as this one knows them.
#[derive(Clone, Copy, Debug)]
struct Seen {
    me: ReplicaId,
    voters: Voters,
    leader: Option<ReplicaId>,
    /// Those that do not answer.
    silent: ReplicaSet,
    /// The fewest that the protocol needs.
    replicas_min: usize,
}

impl Seen {
    /// Whether this is the member that asks for changes.
    fn proposes(&self) -> bool {
        let up = ReplicaSet(self.voters.set().0 & !self.silent.0);
        let leader = self.leader.filter(|leader| up.contains(*leader));
        leader.or_else(|| up.iter().next()) == Some(self.me) && self.voters.is_majority(up)
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Evictions {
    /// Zero for never.
    after: Duration,
    /// Since when members have been gone.
    gone: BTreeMap<ReplicaId, Time>,
    noted_at: Time,
    look_at: Time,
    try_at: Time,
    /// The change that was asked for.
    asked: Option<(ReplicaId, mpsc::Receiver<Result<ChangeReport, String>>)>,
}

impl Evictions {
    pub fn new(after: Duration) -> Self {
        Self {
            after,
            ..Self::default()
        }
    }

    fn must_look(&mut self, now: Time) -> bool {
        let due = !self.after.is_zero() && now >= self.look_at;
        if due {
            self.look_at = now + LOOK_EVERY;
        }
        due
    }

    /// Members that are new have not been gone yet.
    pub fn enter_epoch(&mut self, earlier: &Descriptor, next: &Descriptor) {
        let stays = |id: &ReplicaId| {
            let members = earlier.all().contains(*id) && next.all().contains(*id);
            members && !next.replaces(earlier, *id)
        };
        self.gone.retain(|id, _| stays(id));
        self.try_at = Time(0);
    }

    fn note(&mut self, silent: ReplicaSet, now: Time) {
        if now.since(self.noted_at) >= STOPPED {
            self.gone.clear();
        }
        self.noted_at = now;
        self.gone.retain(|id, _| silent.contains(*id));
        for id in silent.iter() {
            self.gone.entry(id).or_insert(now);
        }
    }

    /// The member that is to go now, and how long it has been gone.
    fn due(&mut self, seen: &Seen, now: Time) -> Option<(ReplicaId, Duration)> {
        let left = seen.voters.len().saturating_sub(1);
        if now < self.try_at || !seen.proposes() || left < LEAST.max(seen.replicas_min) {
            return None;
        }
        let longest = self.gone.iter().min_by_key(|(_, since)| **since);
        let (id, since) = longest?;
        let gone = now.since(*since);
        if gone < self.after {
            return None;
        }
        self.try_at = now + AGAIN;
        Some((*id, gone))
    }
}

impl EventLoop {
    /// Asks for an epoch without a member that has been gone for long, if that is wanted.
    pub(super) fn evict(&mut self, now: Time) {
        if !self.evictions.must_look(now) {
            return;
        }
        self.look_at_eviction();
        let (_, silent) = self.shell.reachable(now);
        let silent = silent.into_iter().map(|(id, _)| id).collect();
        self.evictions.note(silent, now);
        let busy = self.epochs.changing.is_some() || self.evictions.asked.is_some();
        if busy || self.node.sealed().is_some() || self.node.is_between_epochs() {
            return;
        }
        let descriptor = &self.epochs.descriptor;
        let protocol = find(&descriptor.protocol).ok();
        let seen = Seen {
            me: self.epochs.me,
            voters: descriptor.voters(),
            leader: self.node.protocol_status().leader,
            silent,
            replicas_min: protocol.map_or(0, |entry| entry.info.replicas_min),
        };
        let Some((id, gone)) = self.evictions.due(&seen, now) else {
            return;
        };
        let (replica, seconds) = (id.0, gone.as_secs());
        match self.next_without_members(&[id.0], now) {
            Ok(next) => {
                tracing::warn!(
                    replica,
                    seconds,
                    "a member has been gone for longer than evict_after: the cluster continues \
                     without it"
                );
                let (waiter, answer) = mpsc::channel();
                self.evictions.asked = Some((id, answer));
                self.begin_change(next, Waiter::Caller(waiter), now);
            }
            Err(reason) => {
                tracing::warn!(
                    replica,
                    seconds,
                    reason,
                    "a member is gone and cannot be removed"
                );
            }
        }
    }

    /// Tells what has become of the change that was asked for.
    fn look_at_eviction(&mut self) {
        let Some((id, answer)) = self.evictions.asked.take() else {
            return;
        };
        let replica = id.0;
        match answer.try_recv() {
            Ok(Ok(report)) => {
                tracing::warn!(
                    replica,
                    epoch = report.epoch,
                    "a member that was gone is none any more; to take part again, it needs an \
                     empty data directory (quintet join)"
                );
                self.shell.metrics.evictions += 1;
                self.shell.changed = true;
            }
            Ok(Err(reason)) => {
                tracing::warn!(replica, reason, "a member is gone and could not be removed");
            }
            Err(mpsc::TryRecvError::Empty) => self.evictions.asked = Some((id, answer)),
            Err(mpsc::TryRecvError::Disconnected) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    fn set(ids: &[u16]) -> ReplicaSet {
        ids.iter().map(|id| ReplicaId(*id)).collect()
    }

    fn seen(voters: &[u16], silent: &[u16]) -> Seen {
        Seen {
            me: ReplicaId(2),
            voters: Voters::of(set(voters)),
            leader: Some(ReplicaId(2)),
            silent: set(silent),
            replicas_min: 1,
        }
    }

    fn evictions() -> Evictions {
        Evictions::new(Duration::from_secs(60))
    }

    /// The first one that is to go, and after how many seconds.
    fn first_due(evictions: &mut Evictions, seen: Seen, seconds: u64) -> Option<(u16, u64)> {
        (0..=seconds).find_map(|second| {
            evictions.note(seen.silent, at(second));
            let due = evictions.due(&seen, at(second));
            due.map(|(id, _)| (id.0, second))
        })
    }

    #[test]
    fn member_that_is_gone_for_long_is_to_go_one_after_the_other() {
        let mut evictions = evictions();
        let five = seen(&[0, 1, 2, 3, 4], &[1, 4]);
        assert_eq!(first_due(&mut evictions, five, 200), Some((1, 60)));
        assert_eq!(evictions.due(&five, at(61)), None, "not at once again");
        assert!(evictions.due(&five, at(90)).is_some(), "it did not work");
        assert!(!Evictions::default().must_look(at(9)), "it is off");
    }

    #[test]
    fn member_that_answers_again_has_not_been_gone() {
        let mut evictions = evictions();
        let all = seen(&[0, 1, 2, 3], &[1]);
        assert_eq!(first_due(&mut evictions, all, 59), None);
        evictions.note(ReplicaSet::EMPTY, at(60));
        evictions.note(all.silent, at(61));
        assert_eq!(evictions.due(&all, at(120)), None);
        assert!(evictions.due(&all, at(121)).is_some());
    }

    #[test]
    fn member_counts_from_the_beginning_when_this_one_was_stopped() {
        let mut evictions = evictions();
        let four = seen(&[0, 1, 2, 3], &[1]);
        assert_eq!(first_due(&mut evictions, four, 3), None);
        // Links come back one after the other.
        evictions.note(four.silent, at(200));
        assert_eq!(evictions.due(&four, at(200)), None);
        for second in 201..260 {
            evictions.note(four.silent, at(second));
            assert_eq!(evictions.due(&four, at(second)), None, "{second}");
        }
        assert!(evictions.due(&four, at(260)).is_some());
    }

    #[test]
    fn no_fewer_than_three_stay_and_as_many_as_the_protocol_needs() {
        assert_eq!(
            first_due(&mut evictions(), seen(&[0, 1, 2], &[1]), 200),
            None
        );
        let four = seen(&[0, 2, 3, 4], &[3]);
        assert_eq!(first_due(&mut evictions(), four, 200), Some((3, 60)));
        let needs = Seen {
            replicas_min: 4,
            ..four
        };
        assert_eq!(first_due(&mut evictions(), needs, 200), None);
    }

    #[test]
    fn one_member_proposes_and_only_where_there_is_a_quorum() {
        let five = [0, 1, 2, 3, 4];
        let few = seen(&five, &[0, 1, 4]);
        assert_eq!(first_due(&mut evictions(), few, 200), None, "no quorum");
        let another = |leader: Option<u16>, silent: &[u16]| {
            let seen = Seen {
                leader: leader.map(ReplicaId),
                ..seen(&five, silent)
            };
            first_due(&mut evictions(), seen, 200).map(|(id, _)| id)
        };
        assert_eq!(another(Some(3), &[1]), None, "another one leads");
        // Where the leader is gone, or there is none, the first that answers.
        assert_eq!(another(Some(0), &[0, 1]), Some(0));
        assert_eq!(another(None, &[0, 1]), Some(0));
        assert_eq!(another(None, &[1]), None);
    }

    #[test]
    fn member_of_a_new_epoch_has_not_been_gone_before_it() {
        use quintet_replica::{ClusterId, Durability, MemberRole, MemberRow};
        let row = |node: u64| MemberRow {
            node,
            role: MemberRole::Voter,
            peer: String::new(),
        };
        let earlier = Descriptor {
            members: (1..=4).map(row).collect(),
            ..Descriptor::first(ClusterId(1), "multipaxos", Durability::Disk)
        };
        let mut next = earlier.successor();
        next.members[1] = row(9);
        next.vacate(set(&[0]));
        let mut evictions = evictions();
        evictions.note(set(&[0, 1, 3]), at(5));
        evictions.enter_epoch(&earlier, &next);
        let left: Vec<_> = evictions.gone.into_keys().collect();
        assert_eq!(left, [ReplicaId(3)]);
    }
}
