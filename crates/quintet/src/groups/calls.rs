//! Ways to the members of a group, in this process and elsewhere.
//!
//! ```text
//!   Shard ──► Calls ──► Here: a handle of the replica        ──► answer ──► time seen, courier woken
//!                  └──► Elsewhere: a connection to its server ─┘   stopped ──► the next member
//! ```
//!
//! A server that has failed is asked behind all others, until it answers again.

use super::{
    CallError,
    answering::{Answer, Answering, not_taken},
    call,
    remote::{Remote, Wanted},
    turns::Turns,
};
use quintet_groups::{Bytes, view::Told};
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

/// How long a caller waits: the members' own deadline ends first and tells more.
pub(super) fn timeout(deadline: Duration) -> Duration {
    deadline + Duration::from_secs(5)
}

/// A shard by name and group.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub name: Arc<str>,
    pub group: GroupId,
    /// Its number in its subgroup.
    pub number: usize,
    /// The subgroups of which it reads the shards with its number.
    pub reads: Arc<[String]>,
}

/// Ways to the members, shared by the handles of shards.
#[derive(Debug)]
pub(super) struct Calls {
    ways: Vec<RwLock<Option<Way>>>,
    /// The ways lead to servers of calls, whichever members those are.
    to_servers: bool,
    /// All shards.
    pub shards: Vec<Source>,
    turn: AtomicUsize,
    /// How many queries were made that are told their place.
    pub placed: AtomicUsize,
    pub deadline: Duration,
    /// Of queries that read other shards.
    pub turns: Turns,
    /// Wakes the courier of this process.
    pub bag: Bag,
    /// The highest time in an answer of any shard: calls that follow have later ones.
    seen: AtomicU64,
}

impl Calls {
    pub fn new(ways: Vec<Option<Way>>, shards: Vec<Source>, deadline: Duration) -> Arc<Self> {
        Arc::new(Self::with(ways, shards, deadline))
    }

    /// Ways to servers of calls, as a client has them.
    pub fn to_servers(
        servers: Vec<Arc<Remote>>,
        shards: Vec<Source>,
        deadline: Duration,
    ) -> Arc<Self> {
        let ways = servers.into_iter().map(Way::Elsewhere).map(Some);
        Arc::new(Self {
            to_servers: true,
            ..Self::with(ways.collect(), shards, deadline)
        })
    }

    fn with(ways: Vec<Option<Way>>, shards: Vec<Source>, deadline: Duration) -> Self {
        Self {
            ways: ways.into_iter().map(RwLock::new).collect(),
            to_servers: false,
            shards,
            turn: AtomicUsize::new(0),
            placed: AtomicUsize::new(0),
            deadline,
            turns: Turns::default(),
            bag: Bag::default(),
            seen: AtomicU64::new(0),
        }
    }

    /// Whether there is a member in this process, whose courier delivers.
    pub fn has_member(&self) -> bool {
        let mut ways = (0..self.ways.len()).filter_map(|it| self.way(it));
        ways.any(|way| matches!(way, Way::Here(_)))
    }

    /// How long a caller waits.
    pub fn timeout(&self) -> Duration {
        timeout(self.deadline)
    }

    /// The highest time in an answer so far.
    pub fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }
}

/// The shard that is asked, and the ways that are tried in turn.
#[derive(Clone)]
pub(super) struct To {
    pub source: Source,
    ways: Vec<usize>,
    /// The member that a server is to ask.
    member: Option<usize>,
    /// The error when there is no way left.
    failed: CallError,
}

impl Calls {
    /// A shard at this member, or at any.
    pub fn to(&self, source: &Source, member: Option<usize>) -> To {
        let only = member.filter(|_| !self.to_servers);
        To {
            source: source.clone(),
            ways: only.map_or_else(|| self.in_turn(), |member| vec![member]),
            member: member.filter(|_| self.to_servers),
            failed: match only {
                Some(member) if member >= self.ways.len() => CallError::NoSuchMember { member },
                Some(member) if self.way(member).is_none() => CallError::NoWay { member },
                _ => CallError::Stopped,
            },
        }
    }

    /// All ways, another one first each time; those in this process only, if there are any.
    fn in_turn(&self) -> Vec<usize> {
        let (count, first) = (self.ways.len(), self.turn());
        let places = (0..count).map(|offset| first.wrapping_add(offset) % count);
        let (here, elsewhere): (Vec<_>, Vec<_>) =
            places.partition(|it| matches!(self.way(*it), Some(Way::Here(_))));
        if !here.is_empty() {
            return here;
        }
        let (rest, mut first): (Vec<_>, Vec<_>) =
            elsewhere.into_iter().partition(|it| self.rests(*it));
        first.extend(rest);
        first
    }

    /// Whether the server of this way has failed lately: it is asked behind the others.
    pub fn rests(&self, way: usize) -> bool {
        matches!(self.way(way), Some(Way::Elsewhere(remote)) if remote.rests())
    }

    /// Another number each time.
    pub fn turn(&self) -> usize {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }

    /// The members of a shard, as far as they are known here without asking: all of the group.
    pub fn all(&self) -> Vec<u16> {
        (0..).take(self.ways.len()).collect()
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

    /// The members of a shard by the newest view that a replica in this process knows.
    fn members_of(&self, group: GroupId) -> Vec<u16> {
        let ways = (0..self.ways.len()).filter_map(|it| self.way(it));
        let reports = ways.filter_map(|way| match way {
            Way::Here(handle) => {
                let mut groups = handle.status().groups.into_iter();
                groups.find(|it| it.group == group.0)
            }
            Way::Elsewhere(_) => None,
        });
        // Without a layout all replicas are members.
        reports
            .max_by_key(|it| it.view)
            .map_or_else(|| self.all(), |it| it.members)
    }

    /// The newest view of a group that a replica in this process knows as a member of it, and the numbers
    /// of the replicas here.
    pub fn view_of(&self, group: GroupId) -> (Option<Told>, Vec<u16>) {
        let (mut newest, mut here) = (None::<Told>, Vec::new());
        for member in 0..self.ways.len() {
            let Some(Way::Here(handle)) = self.way(member) else {
                continue;
            };
            let snapshot = handle.newest();
            here.extend(u16::try_from(member).ok());
            let mut views = snapshot.views.iter();
            let found = views.find(|view| view.group == group);
            let is_newer = |number| newest.as_ref().is_none_or(|it| it.number < number);
            if let Some(view) = found.filter(|view| is_newer(view.number)) {
                newest = Some(Told {
                    number: view.number,
                    members: view.members.iter().map(|id| id.0).collect(),
                });
            }
        }
        (newest, here)
    }

    /// Asks in turn, until one has not stopped.
    pub fn send(
        self: &Arc<Self>,
        mut to: To,
        wanted: Wanted,
        payload: impl Into<Bytes>,
        done: Answering,
    ) {
        let payload = payload.into();
        if call::is_inside() {
            // Each member would send it.
            return done.answer(Err(CallError::InsideHandler));
        }
        let Some(way) = self.next(&mut to) else {
            return done.answer(Err(to.failed));
        };
        let group = to.source.group;
        if let (Way::Here(_), Wanted::Members) = (&way, wanted) {
            return done.answer(Ok(call::answer_of(&self.members_of(group))));
        }
        let calls = self.clone();
        let again = payload.clone();
        let member = to.member;
        let on_answer = move |answer| match answer {
            Err(SubmitError::Stopped) => {
                to.failed = CallError::Stopped;
                calls.send(to, wanted, again, done);
            }
            answer => {
                let answer = calls.note(&to.source, answer);
                done.answer(answer);
            }
        };
        match (way, wanted) {
            (Way::Here(handle), Wanted::Level(level)) => {
                let handle = handle.in_group(group);
                // Copied to where its batch is made, which copies it no more.
                handle.submit_with(level, &payload[..], on_answer);
            }
            (Way::Here(handle), Wanted::Past(asking)) => {
                let handle = handle.in_group(group);
                handle.query_past_with(asking, &payload, on_answer);
            }
            (Way::Here(_), Wanted::Members) => {}
            (Way::Elsewhere(remote), _) => {
                let on_answer = Box::new(on_answer);
                remote.send(group, (wanted, member), &payload, on_answer);
            }
        }
    }

    /// Takes notice of an answer.
    fn note(&self, source: &Source, answer: Result<Vec<u8>, SubmitError>) -> Answer {
        if let Ok(bytes) = &answer {
            if let Some(time) = call::time_of(bytes) {
                self.seen.fetch_max(time, Ordering::Relaxed);
            }
            if call::has_hand_offs(bytes) {
                self.bag.wake();
            }
        }
        answer.map_err(|error| not_taken(error, &source.name))
    }

    /// The next way.
    fn next(&self, to: &mut To) -> Option<Way> {
        while !to.ways.is_empty() {
            if let Some(way) = self.way(to.ways.remove(0)) {
                return Some(way);
            }
        }
        None
    }
}
