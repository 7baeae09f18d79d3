//! Opening connections: which are let in, the handshake, refusals, and what is logged of them.
//!
//! ```text
//!   accept ──► Stage::Handshake, unproven: few seconds, few at a time, fewer of one source
//!                 │ proof                    (the oldest of the busiest source makes room)
//!                 ▼
//!              proven ── Identity ──► checked ──► Stage::Open, or Refusal and Stage::Closing
//! ```
//!
//! Nothing that an unproven other side sends changes what is known of a member: it costs its own
//! connection, and where this side has dialled it the attempt. Attempts that fail come at growing
//! intervals, and each reason is logged at once and then at most once a minute.

use super::{Connection, LANES, Stage, Tcp};
use crate::terms::Rows;
use crate::{
    announce,
    data::{Data, PeerSeen, nonce},
    descriptors::{STRANGERS, STRANGERS_PER_PEER},
    transports::{
        Arrival,
        handshake::{Handshake, HandshakeError, JoinAnswer, PeerIdentity, Refusal, Role, Step},
    },
};
use quintet_replica::{
    Descriptor, FrontendId, Incarnation, Lane, Link, Peer, ReplicaId, Time, no_member,
};
use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// How long an accepted connection may stay unproven: for a round trip and a half.
const UNPROVEN_MAX: Duration = Duration::from_secs(2);
/// How long a refusal may take to be written.
const CLOSING_MAX: Duration = Duration::from_secs(1);
/// Accepted connections that are not open, of one source, and some more for each member; beyond that,
/// or when there are as many of all sources as descriptors are kept for, the oldest makes room.
const UNPROVEN_OF_SOURCE_MAX: usize = STRANGERS / 2;
const FRONTENDS_MAX: usize = 1024;
/// The first wait after a member refused or did not prove itself; each next one is twice as long.
const REFUSED_FIRST: Duration = Duration::from_secs(1);
const REFUSED_DOUBLINGS_MAX: u32 = 3;
/// A member that has dialled this side and was refused is not dialled by it for this long.
const REACHED_FOR: Duration = Duration::from_secs(10);
/// The same reason is logged once in this time.
const LOG_EVERY: Duration = Duration::from_secs(60);
/// Reasons that are remembered for that, of one member or of all strangers.
const REASONS_MAX: usize = 8;

/// The step after a packet of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shaken {
    /// More bytes are needed.
    Waits,
    /// There may be more packets, or frames.
    Continues,
    /// Nothing more is to be read.
    Over,
}

/// How long to wait after that many failed attempts in a row.
pub(super) fn refused_backoff(attempts: u32) -> Duration {
    REFUSED_FIRST * (1 << attempts.saturating_sub(1).min(REFUSED_DOUBLINGS_MAX))
}

/// Reasons that were logged, so that none is logged again and again: by the member that they are
/// about, strangers together.
#[derive(Debug, Default)]
pub(super) struct Complaints(BTreeMap<Option<u16>, Vec<Complaint>>);

#[derive(Debug)]
struct Complaint {
    reason: String,
    logged: Time,
    /// How often since.
    repeated: u64,
}

impl Complaints {
    /// Whether this is to be logged now: how often it was not since it last was.
    fn admit(&mut self, about: Option<u16>, reason: &str, now: Time) -> Option<u64> {
        let known = self.0.entry(about).or_default();
        if let Some(complaint) = known.iter_mut().find(|it| it.reason == reason) {
            if now < complaint.logged + LOG_EVERY {
                complaint.repeated += 1;
                return None;
            }
            complaint.logged = now;
            return Some(std::mem::take(&mut complaint.repeated));
        }
        if known.len() >= REASONS_MAX {
            // The rest of them can wait for the next minute.
            let oldest = known.iter().enumerate().min_by_key(|(_, it)| it.logged);
            match oldest {
                Some((index, it)) if now >= it.logged + LOG_EVERY => drop(known.remove(index)),
                _ => return None,
            }
        }
        known.push(Complaint {
            reason: reason.to_owned(),
            logged: now,
            repeated: 0,
        });
        Some(0)
    }

    /// All is well with a member: what comes next is new.
    pub fn clear(&mut self, member: u16) {
        self.0.remove(&Some(member));
    }
}

/// One source of connections: an address, or the network of one host.
fn source(address: SocketAddr) -> IpAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => ip.into(),
        IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() >> 64 << 64).into()),
    }
}

fn soft(reason: &str) -> Result<(), Refusal> {
    Err(Refusal {
        fatal: false,
        reason: reason.to_owned(),
    })
}

impl Connection {
    /// Accepted, and not yet a peer's.
    fn is_stranger(&self) -> bool {
        self.peer.is_none()
    }
}

impl Tcp {
    // --- accepting -------------------------------------------------------------------------

    pub(super) fn accept(&mut self, now: Time) {
        for _ in 0..16 {
            let Some(listener) = &self.listener else {
                self.accepting = false;
                return;
            };
            match listener.accept() {
                Ok((stream, address)) => {
                    self.make_room(address, now);
                    let Ok(nonce) = nonce() else {
                        continue;
                    };
                    let handshake = Handshake::accept(self.key.clone(), nonce);
                    let stage = Stage::Handshake;
                    let added = self.add(
                        stream,
                        address,
                        (stage, handshake),
                        None,
                        Lane::Control,
                        now,
                    );
                    if let Some(Some(connection)) = added.map(|it| &mut self.connections[it]) {
                        connection.deadline = now + UNPROVEN_MAX;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.accepting = false;
                    return;
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept peer connections");
                    self.accepting = false;
                    self.accept_at = now + Duration::from_millis(100);
                    return;
                }
            }
        }
    }

    /// Before a connection is let in: closes the oldest stranger of its source, or of the source
    /// with the most, if there are too many. So a peer needs only to be quicker than a full round
    /// of those that come after it from where it comes.
    fn make_room(&mut self, address: SocketAddr, now: Time) {
        let of_members = STRANGERS_PER_PEER * self.links.len();
        let mut counts: BTreeMap<IpAddr, (usize, u64, usize)> = BTreeMap::new();
        let mut all = 0;
        for (index, connection) in self.connections.iter().enumerate() {
            let Some(connection) = connection.as_ref().filter(|it| it.is_stranger()) else {
                continue;
            };
            all += 1;
            let entry = counts.entry(source(connection.address));
            let (count, oldest, place) = entry.or_insert((0, u64::MAX, 0));
            *count += 1;
            if connection.number < *oldest {
                (*oldest, *place) = (connection.number, index);
            }
        }
        let own = counts.get(&source(address));
        let drops = match own {
            Some((count, _, place)) if *count >= UNPROVEN_OF_SOURCE_MAX + of_members => {
                Some(*place)
            }
            _ if all >= STRANGERS + of_members => {
                counts.values().max_by_key(|it| it.0).map(|it| it.2)
            }
            _ => None,
        };
        if let Some(index) = drops {
            self.counters.handshakes.displaced += 1;
            let reason = "there are too many connections that prove nothing";
            self.complain(index, None, reason, now);
            self.close(index, reason, now);
        }
    }

    // --- the handshake ---------------------------------------------------------------------

    /// Takes a packet of the handshake, if a whole one is there.
    pub(super) fn shake_hands(&mut self, index: usize, now: Time) -> Shaken {
        let Some(connection) = &mut self.connections[index] else {
            return Shaken::Over;
        };
        match connection.handshake.advance(connection.incoming.peek()) {
            Ok(None) => return Shaken::Waits,
            Ok(Some((step, length))) => {
                connection.incoming.consume(length);
                self.on_step(index, step, now);
            }
            Err(error) => self.on_handshake_error(index, error, now),
        }
        match self.connections[index].as_ref().map(|it| it.stage) {
            Some(Stage::Handshake | Stage::Open) => Shaken::Continues,
            _ => Shaken::Over,
        }
    }

    fn on_step(&mut self, index: usize, step: Step, now: Time) {
        match step {
            Step::Send(bytes) => self.push_raw(index, &bytes),
            Step::Proven(bytes) => {
                self.push_raw(index, &bytes);
                let Some(connection) = &mut self.connections[index] else {
                    return;
                };
                connection.deadline = now + super::HANDSHAKE_MAX;
                if let (Role::Initiator, Some(Peer::Replica(id))) =
                    (connection.handshake.role(), connection.peer)
                {
                    let (lane, session) = (connection.lane, self.links[id.index()].session);
                    self.push_identity(index, id, session, lane);
                }
            }
            Step::Identity(identity) => {
                if let Err(refusal) = self.on_identity(index, &identity, now) {
                    self.refuse(index, refusal, identity.from, now);
                }
            }
            Step::Refusal(refusal) => self.on_refusal(index, &refusal, now),
            Step::Join(request) => {
                let connection = self.connections[index].as_mut();
                if let Some(connection) = connection.filter(|_| self.data.is_some()) {
                    connection.deadline = now + super::HANDSHAKE_MAX;
                    let number = connection.number;
                    self.arrivals.push_back(Arrival::Join(number, request));
                }
            }
            // Members do not ask.
            Step::Told(_) => self.close(index, "it answers what was not asked", now),
        }
    }

    /// Answers one that wants to become a member, if it is still there.
    pub fn answer_join(&mut self, number: u64, answer: &JoinAnswer, now: Time) {
        let is_it = |it: &Connection| it.number == number && it.stage == Stage::Handshake;
        let mut connections = self.connections.iter();
        let found = connections.position(|it| it.as_ref().is_some_and(is_it));
        let Some((index, Some(connection))) =
            found.map(|index| (index, self.connections[index].as_mut()))
        else {
            return;
        };
        connection.stage = Stage::Closing;
        connection.deadline = now + CLOSING_MAX;
        if let Some(bytes) = connection.handshake.told(answer) {
            self.push_raw(index, &bytes);
        }
    }

    fn push_raw(&mut self, index: usize, bytes: &[u8]) {
        if let Some(connection) = &mut self.connections[index] {
            connection.outgoing.push_raw(bytes);
            self.mark_dirty(index);
        }
    }

    fn push_identity(&mut self, index: usize, to: ReplicaId, session: u64, lane: Lane) {
        let identity = PeerIdentity {
            to,
            session,
            lane,
            ..self.me.clone()
        };
        let connection = self.connections[index].as_ref();
        if let Some(bytes) = connection.and_then(|it| it.handshake.identity(&identity)) {
            self.push_raw(index, &bytes);
        }
    }

    /// The member that a connection is about: the one that was dialled.
    fn dialled(&self, index: usize) -> Option<ReplicaId> {
        let connection = self.connections[index].as_ref()?;
        match (connection.handshake.role(), connection.peer) {
            (Role::Initiator, Some(Peer::Replica(id))) => Some(id),
            _ => None,
        }
    }

    /// Logs a reason, unless it was logged lately.
    fn complain(&mut self, index: usize, about: Option<ReplicaId>, reason: &str, now: Time) {
        let Some(connection) = &self.connections[index] else {
            return;
        };
        let address = connection.address;
        let Some(repeated) = self.complaints.admit(about.map(|id| id.0), reason, now) else {
            return;
        };
        match about {
            Some(id) => {
                let peer = id.0;
                tracing::warn!(peer, %address, repeated, reason, "no link to a member");
            }
            None => tracing::warn!(%address, repeated, reason, "a peer connection is refused"),
        }
    }

    /// An attempt to reach a member has failed by what answers there, once for both lanes.
    fn count_refusal(&mut self, id: ReplicaId, reason: &str) {
        let link = &mut self.links[id.index()];
        link.error = Some(reason.to_owned());
        if link.refused_session != link.session {
            link.refused_session = link.session;
            link.refusals = link.refusals.saturating_add(1);
        }
    }

    fn on_handshake_error(&mut self, index: usize, error: HandshakeError, now: Time) {
        let reason = error.to_string();
        let about = self.dialled(index);
        self.complain(index, about, &reason, now);
        let failed = &mut self.counters.handshakes;
        match error {
            HandshakeError::Format(_) => failed.format += 1,
            HandshakeError::Proof | HandshakeError::Denied | HandshakeError::Reflected => {
                failed.proof += 1;
            }
            HandshakeError::Magic
            | HandshakeError::Malformed
            | HandshakeError::Tag
            | HandshakeError::Body(_) => failed.malformed += 1,
        }
        if let Some(id) = about {
            self.count_refusal(id, &reason);
        }
        let tells = matches!(error, HandshakeError::Format(_) | HandshakeError::Proof);
        match &mut self.connections[index] {
            // A member with another secret, or of another version, is to find out why.
            Some(connection) if tells => {
                connection.stage = Stage::Closing;
                connection.deadline = now + CLOSING_MAX;
                self.push_raw(index, &Handshake::denied());
            }
            _ => self.close(index, &reason, now),
        }
    }

    /// The handshake was not done in time.
    pub(super) fn on_expired(&mut self, index: usize, now: Time) {
        let Some(connection) = &self.connections[index] else {
            return;
        };
        let reason = match connection.stage {
            Stage::Connecting => "it does not answer",
            Stage::Closing => "refused",
            _ => "the handshake was not done in time",
        };
        if connection.stage == Stage::Handshake {
            self.counters.handshakes.expired += 1;
            let about = self.dialled(index);
            // No peer has rejected the connection: a member that has only been stopped for a while
            // is back the sooner.
            self.complain(index, about, reason, now);
        }
        self.close(index, reason, now);
    }

    // --- refusals --------------------------------------------------------------------------

    /// A proven peer does not want the connection.
    fn on_refusal(&mut self, index: usize, refusal: &Refusal, now: Time) {
        self.counters.handshakes.refused += 1;
        let Some(connection) = &self.connections[index] else {
            return;
        };
        let reason = format!("it refuses this replica: {}", refusal.reason);
        if let Some(Peer::Replica(id)) = connection.peer {
            self.complain(index, Some(id), &reason, now);
            self.count_refusal(id, &reason);
            if refusal.fatal {
                let reason = refusal.reason.clone();
                self.arrivals.push_back(Arrival::Refused(reason));
            }
        } else {
            self.complain(index, None, &reason, now);
        }
        self.close(index, &refusal.reason, now);
    }

    /// A proven peer's connection is not wanted.
    fn refuse(&mut self, index: usize, refusal: Refusal, from: Peer, now: Time) {
        self.counters.handshakes.refused += 1;
        let about = match from {
            Peer::Replica(id) if id.index() < self.links.len() => Some(id),
            _ => self.dialled(index),
        };
        self.complain(index, about, &refusal.reason, now);
        if let Some(id) = self.dialled(index) {
            self.count_refusal(id, &refusal.reason);
        } else if let Some(id) = about.filter(|id| !self.dials(id.index())) {
            // It knows where this side is.
            self.links[id.index()].dial_at = now + REACHED_FOR;
        }
        let Some(connection) = &mut self.connections[index] else {
            return;
        };
        connection.stage = Stage::Closing;
        connection.deadline = now + CLOSING_MAX;
        if let Some(bytes) = connection.handshake.refusal(&refusal) {
            self.push_raw(index, &bytes);
        }
    }

    // --- identities ------------------------------------------------------------------------

    fn on_identity(
        &mut self,
        index: usize,
        identity: &PeerIdentity,
        now: Time,
    ) -> Result<(), Refusal> {
        self.me.check(identity)?;
        let Some(connection) = &self.connections[index] else {
            return Ok(());
        };
        let role = connection.handshake.role();
        let id = match identity.from {
            Peer::Replica(id) => id,
            Peer::Frontend(_) if role == Role::Initiator => {
                return soft("a frontend answers where a replica is expected");
            }
            Peer::Frontend(id) => return self.on_frontend(index, id, identity.lane, now),
        };
        if self.links.get(id.index()).is_none_or(|link| link.absent) {
            // It finds out by itself, once it is not needed any more, that it is none.
            let reason = match identity.epoch < self.me.epoch {
                true => no_member(id, self.me.epoch),
                false => "it is not a member, or not yet".to_owned(),
            };
            return soft(&reason);
        }
        if let Some(Peer::Replica(dialled)) = connection.peer
            && dialled != id
        {
            return soft("another replica answers at this address");
        }
        let (lane, from) = (connection.lane, connection.address.ip());
        let link = &self.links[id.index()];
        match role {
            Role::Initiator => {
                // Links of frontends have no numbers.
                let another = self.id.is_some() && identity.session != link.session;
                if another || identity.lane != lane {
                    return soft("its identity answers another connection");
                }
            }
            Role::Acceptor if !self.may_dial(id, identity) => {
                return soft("the replica with the lower id dials");
            }
            // The highest boot's links are the newest: a number out of its range would keep all
            // that come after it out.
            Role::Acceptor if identity.session >> 32 != identity.boot.0 => {
                return soft("the number of its link is not one of its boot");
            }
            Role::Acceptor => {}
        }
        let address = announce::seen_from(&identity.address, from);
        let seen = PeerSeen {
            directory: identity.directory,
            boot: identity.boot.0,
            address: address.clone(),
        };
        self.check_row(id, identity)?;
        let replaces = self.rows.directory(id);
        let check = |data: &Arc<Mutex<Data>>| {
            let mut data = data.lock().unwrap_or_else(PoisonError::into_inner);
            data.check_peer(id, seen.clone(), replaces)
        };
        // Of a later epoch this side knows no members.
        let data = (self.data.as_ref()).filter(|_| identity.epoch <= self.me.epoch);
        if let Some(Err(refusal)) = data.map(check) {
            return Err(refusal);
        }
        if role == Role::Acceptor {
            self.take_lane(index, id, identity, now)?;
        }
        if let Some(connection) = &mut self.connections[index] {
            connection.stage = Stage::Open;
            connection.deadline = Time::NEVER;
        }
        if let Some(address) = address {
            self.moved(id, address);
        }
        let link = &mut self.links[id.index()];
        link.incarnation = identity.incarnation;
        link.boot = identity.boot;
        link.redis = announce::seen_from(&identity.redis, from);
        self.maybe_up(id, now);
        Ok(())
    }

    /// A member says where it is reached.
    fn moved(&mut self, id: ReplicaId, address: String) {
        if self.links.iter().any(|link| link.name == address) {
            // It is there already, or this is another member's.
            return;
        }
        let link = &mut self.links[id.index()];
        let (peer, before) = (id.0, &link.name);
        tracing::info!(peer, before, address, "a member is reached elsewhere");
        link.renamed = link.resolving;
        link.address = address.parse().ok();
        link.name = address;
    }

    /// Whether a member may dial this side: that is the lower one's task, unless the higher one
    /// cannot be reached where it was.
    fn may_dial(&self, id: ReplicaId, identity: &PeerIdentity) -> bool {
        let link = &self.links[id.index()];
        let mut lanes = link.lanes.iter().flatten();
        let answers = lanes.any(|lane| {
            let connection = self.connections[*lane].as_ref();
            connection.is_some_and(|it| it.stage != Stage::Connecting)
        });
        let is_its_own = link.session == identity.session;
        let restarted = link.incarnation != identity.incarnation;
        !self.dials(id.index()) || !answers || is_its_own || restarted
    }

    /// Whether a member is the one that has its row, in the later one of its epoch and this side's.
    fn check_row(&self, id: ReplicaId, identity: &PeerIdentity) -> Result<(), Refusal> {
        let theirs = (identity.epoch > self.me.epoch)
            .then(|| Descriptor::decode(identity.descriptor.clone()))
            .and_then(Result::ok);
        let (since, expected) = match &theirs {
            Some(later) => (later.number, Rows::of(later).directory(id)),
            None => (self.me.epoch, self.rows.directory(id)),
        };
        if expected.is_none_or(|expected| expected == identity.directory) {
            return Ok(());
        }
        // It finds out by itself, once it is not needed any more, that it is none.
        soft(&no_member(id, since))
    }

    /// An accepted connection becomes a lane of the link to its member.
    fn take_lane(
        &mut self,
        index: usize,
        id: ReplicaId,
        identity: &PeerIdentity,
        now: Time,
    ) -> Result<(), Refusal> {
        let link = &self.links[id.index()];
        // Another replica may have the row of a later epoch, which counts from the beginning.
        if identity.session < link.session_theirs && identity.epoch <= self.me.epoch {
            return soft("there is a newer link");
        }
        if identity.session != link.session {
            self.drop_link(id.index(), "a newer link replaces it", now);
            let link = &mut self.links[id.index()];
            (link.session, link.session_theirs) = (identity.session, identity.session);
        }
        let place = &mut self.links[id.index()].lanes[identity.lane as usize];
        if place.is_some() {
            return soft("there is a connection for this lane");
        }
        *place = Some(index);
        if let Some(connection) = &mut self.connections[index] {
            connection.peer = Some(Peer::Replica(id));
            connection.lane = identity.lane;
        }
        self.push_identity(index, id, identity.session, identity.lane);
        Ok(())
    }

    fn on_frontend(
        &mut self,
        index: usize,
        id: FrontendId,
        lane: Lane,
        now: Time,
    ) -> Result<(), Refusal> {
        if lane != Lane::Control {
            return soft("frontends use the control lane");
        }
        if !self.frontends.contains_key(&id) && self.frontends.len() >= FRONTENDS_MAX {
            return soft("there are too many frontends");
        }
        if let Some(older) = self.frontends.get(&id).copied() {
            self.close(older, "a newer connection replaces it", now);
        }
        if let Some(connection) = &mut self.connections[index] {
            connection.peer = Some(Peer::Frontend(id));
            connection.stage = Stage::Open;
            connection.deadline = Time::NEVER;
        }
        self.push_identity(index, self.me.to, 0, lane);
        self.frontends.insert(id, index);
        let up = Link::Up {
            incarnation: Incarnation(0),
        };
        self.arrivals
            .push_back(Arrival::Link(Peer::Frontend(id), up));
        self.offer(index, now);
        Ok(())
    }

    fn maybe_up(&mut self, id: ReplicaId, now: Time) {
        let lanes = self.links[id.index()].lanes;
        let open = |lane: &Lane| {
            lanes[*lane as usize]
                .and_then(|index| self.connections[index].as_ref())
                .is_some_and(|c| c.stage == Stage::Open)
        };
        if !self.lanes().iter().all(open) {
            return;
        }
        self.exchanges.begin(now);
        self.complaints.clear(id.0);
        let link = &mut self.links[id.index()];
        link.up = true;
        link.heard = Some(now);
        link.node_heard = Some(now);
        link.told_down = false;
        link.down_at = Time::NEVER;
        link.backoff = super::BACKOFF_FIRST;
        link.refusals = 0;
        link.error = None;
        link.crowded = false;
        self.counters.links_up += 1;
        let (incarnation, boot) = (link.incarnation, link.boot);
        tracing::info!(peer = id.0, incarnation = incarnation.0, "link up");
        self.arrivals.push_back(Arrival::Booted(id, boot));
        self.arrivals
            .push_back(Arrival::Link(Peer::Replica(id), Link::Up { incarnation }));
        if let Some(control) = lanes[Lane::Control as usize] {
            self.offer(control, now);
        }
        self.offer_memory(id, now);
        for lane in LANES {
            if let Some(index) = lanes[lane as usize] {
                self.queue_read(index);
            }
        }
    }
}

#[cfg(test)]
#[path = "opening_tests.rs"]
mod tests;
