//! Replicas outside the view that say that they are there, and when they may come in.

use super::message::{Join, Member};
use alloc::{vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{
    ReplicaId, ReplicaSet, Time,
    parts::{Admission, Waiting},
};

/// See the module.
#[derive(Hash)]
pub(super) struct Joins {
    last: Vec<Option<(Join, Time)>>,
    admission: Admission,
}

impl Joins {
    pub fn new(members: usize) -> Self {
        Self {
            last: vec![None; members],
            admission: Admission::new(members),
        }
    }

    pub fn on_join(&mut self, from: ReplicaId, join: Join, now: Time) {
        self.last[from.index()] = Some((join, now));
    }

    /// The count of its starts that a replica told last.
    pub fn starts(&self, id: ReplicaId) -> Option<u64> {
        let (join, _) = self.last[id.index()].as_ref()?;
        Some(join.starts)
    }

    pub fn clear(&mut self) {
        self.last.fill(None);
    }

    /// Joins that came not longer ago than this.
    pub fn recent(&self, within: Duration, now: Time) -> impl Iterator<Item = (ReplicaId, &Join)> {
        let all = (0..).map(ReplicaId).zip(&self.last);
        all.filter_map(move |(id, last)| {
            let (join, at) = last.as_ref()?;
            (now.since(*at) < within).then_some((id, join))
        })
    }

    /// Another view begins; what is told of a replica before and after is its incarnation, if it
    /// takes part.
    pub fn on_view(
        &mut self,
        own: ReplicaId,
        now: Time,
        before: impl Fn(ReplicaId) -> Option<u64>,
        after: impl Fn(ReplicaId) -> Option<u64>,
    ) {
        self.admission.note(own, now, before, after);
    }

    /// Those that are ready by what they said, and do not pause; `quorum` as [`Admission`] asks.
    pub fn ready(
        &self,
        within: Duration,
        now: Time,
        quorum: (usize, usize),
        may: impl Fn(ReplicaId, &Join) -> bool,
    ) -> Vec<Member> {
        let waiting = |join: &Join| match join.state_lost {
            true => Waiting::Lost,
            false => Waiting::Keeps,
        };
        let pauses = |id, join| self.admission.pauses(id, now, quorum, waiting(join));
        let ready = self.recent(within, now);
        let ready = ready.filter(|(id, join)| may(*id, join) && !pauses(*id, join));
        let members = ready.map(|(id, join)| Member {
            id,
            starts: join.starts,
            incarnation: join.incarnation,
        });
        members.collect()
    }

    /// Those that were heard not longer ago than this.
    pub fn heard(&self, within: Duration, now: Time) -> ReplicaSet {
        self.recent(within, now).map(|(id, _)| id).collect()
    }
}
