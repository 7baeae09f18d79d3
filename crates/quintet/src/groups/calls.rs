//! Ways to the members of a group, in this process and elsewhere.
//!
//! ```text
//!   Shard ──► Calls ──► Here: a handle of the replica        ──► answer ──► time seen, courier woken
//!                  └──► Elsewhere: a connection to its server ─┘   stopped ──► the next member
//! ```

use super::{
    CallError,
    answering::{Answering, not_taken},
    call,
    remote::{Remote, Wanted},
};
use quintet_replica::GroupId;
use quintet_runtime::{Handle, SubmitError};
use std::{
    sync::{
        Arc, Condvar, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

/// A way to a member.
#[derive(Clone, Debug)]
pub(super) enum Way {
    Here(Handle),
    Elsewhere(Arc<Remote>),
}

/// The outboxes are looked through this often, also without a sign.
const LOOKS_EVERY: Duration = Duration::from_secs(1);

/// Wakes the courier.
#[derive(Debug, Default)]
pub(super) struct Bag {
    state: Mutex<BagState>,
    woken: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct BagState {
    has_mail: bool,
    pub stops: bool,
}

impl Bag {
    pub fn set(&self, change: impl FnOnce(&mut BagState)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.woken.notify_all();
    }

    /// Some shard has made hand-offs.
    pub fn wake(&self) {
        self.set(|state| state.has_mail = true);
    }

    /// Waits for mail, or for the time to look; false at the end.
    pub fn wait(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .woken
            .wait_timeout_while(state, LOOKS_EVERY, |state| !state.has_mail && !state.stops);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.has_mail = false;
        !state.stops
    }
}

/// A shard by name and group.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub name: Arc<str>,
    pub group: GroupId,
}

/// Ways to the members, shared by the handles of shards.
#[derive(Debug)]
pub(super) struct Calls {
    ways: Vec<RwLock<Option<Way>>>,
    /// All shards.
    pub shards: Vec<Source>,
    turn: AtomicUsize,
    pub deadline: Duration,
    /// Wakes the courier of this process.
    pub bag: Bag,
    /// The highest time in an answer of any shard: calls that follow have later ones.
    seen: AtomicU64,
}

impl Calls {
    pub fn new(ways: Vec<Option<Way>>, shards: Vec<Source>, deadline: Duration) -> Arc<Self> {
        Arc::new(Self {
            ways: ways.into_iter().map(RwLock::new).collect(),
            shards,
            turn: AtomicUsize::new(0),
            deadline,
            bag: Bag::default(),
            seen: AtomicU64::new(0),
        })
    }

    /// Whether there is a member in this process, whose courier delivers.
    pub fn has_member(&self) -> bool {
        let mut ways = (0..self.ways.len()).filter_map(|it| self.way(it));
        ways.any(|way| matches!(way, Way::Here(_)))
    }

    /// Number of members, whether there is a way to them or not.
    pub const fn members(&self) -> usize {
        self.ways.len()
    }

    /// The highest time in an answer so far.
    pub fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }
}

/// The shard that is asked, and the members that may be.
pub(super) struct To {
    pub source: Source,
    pub members: Vec<usize>,
}

impl Calls {
    /// All members, another one first each time.
    pub fn in_turn(&self) -> Vec<usize> {
        let count = self.ways.len();
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        let places = (0..count).map(|offset| first.wrapping_add(offset) % count);
        places.collect()
    }

    fn way(&self, member: usize) -> Option<Way> {
        let way = self.ways.get(member)?.read();
        way.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The member is reached by another handle from now on.
    pub fn replace(&self, member: usize, handle: Handle) {
        if let Some(slot) = self.ways.get(member) {
            *slot.write().unwrap_or_else(PoisonError::into_inner) = Some(Way::Here(handle));
        }
    }

    /// Whether a member in this process could answer a read of this group.
    pub fn answers(&self, group: GroupId, timeout: Duration) -> bool {
        let mut ways = (0..self.ways.len()).filter_map(|it| self.way(it));
        ways.any(|way| match way {
            Way::Here(handle) => handle.in_group(group).probe(timeout),
            Way::Elsewhere(_) => false,
        })
    }

    /// Asks the members in turn, until one has not stopped.
    pub fn send(self: &Arc<Self>, mut to: To, wanted: Wanted, payload: Vec<u8>, done: Answering) {
        let Some(way) = self.next(&mut to) else {
            return done.answer(Err(CallError::Stopped));
        };
        let calls = self.clone();
        let again = payload.clone();
        let group = to.source.group;
        let on_answer = move |answer| match answer {
            Err(SubmitError::Stopped) => calls.send(to, wanted, again, done),
            answer => calls.answer(&to, answer, done),
        };
        match (way, wanted) {
            (Way::Here(handle), Wanted::Level(level)) => {
                let handle = handle.in_group(group);
                handle.submit_with(level, payload, on_answer);
            }
            (Way::Here(handle), Wanted::Past(asking)) => {
                let handle = handle.in_group(group);
                handle.query_past_with(asking, &payload, on_answer);
            }
            (Way::Elsewhere(remote), _) => {
                remote.send(group, wanted, &payload, Box::new(on_answer));
            }
        }
    }

    fn answer(&self, to: &To, answer: Result<Vec<u8>, SubmitError>, answering: Answering) {
        if let Ok(bytes) = &answer {
            if let Some(time) = call::time_of(bytes) {
                self.seen.fetch_max(time, Ordering::Relaxed);
            }
            if call::has_hand_offs(bytes) {
                self.bag.wake();
            }
        }
        answering.answer(answer.map_err(|error| not_taken(error, &to.source.name)));
    }

    /// The next member to which there is a way.
    fn next(&self, to: &mut To) -> Option<Way> {
        while !to.members.is_empty() {
            if let Some(way) = self.way(to.members.remove(0)) {
                return Some(way);
            }
        }
        None
    }
}
