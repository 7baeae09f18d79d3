//! The handshake of two peers: each side proves that it knows the cluster's secret before the other
//! one tells, stores or believes anything.
//!
//! ```text
//!   initiator                                  acceptor
//!   Challenge{nonce} ────────────────────────►
//!                    ◄──────────────────────── Answer{nonce, proof}
//!   Proof, Identity  ────────────────────────►                   proven from here on
//!                    ◄──────────────────────── Identity, or Refusal
//!   or, from one that wants to become a member, on a connection of its own:
//!   Proof, Join      ────────────────────────►
//!                    ◄──────────────────────── Told
//!
//!   packet = magic u64 | format u16 | kind u8 | zero u8 | length u32 | crc32c u32 | body
//! ```
//!
//! A proof is HMAC-SHA-256 of both nonces, the format and the side that gives it, under a key made
//! from the secret. Nonces are new for each connection, so what was recorded on one proves nothing
//! on the next; the side is part of it, so nothing can be sent back to where it came from. The two
//! nonces also make the key of the link: identities and refusals are authenticated with it, and
//! what datagrams and shared memory must carry is derived from it. Until the other side has proved
//! itself it learns the format and a nonce, and nothing it sends but a proof is read.
//!
//! A state machine without sockets, clocks or randomness: bytes in, bytes out.

use crate::announce;
use hmac::{Hmac, KeyInit, Mac};
use quintet_replica::{
    Boot, Bytes, ClusterId, DecodeError, EpochNumber, Executed, FrontendId, Incarnation, Lane,
    Peer, Position, Reader, ReplicaId, ReplicaSet, Wire, Writer, check_peer, checksum, no_member,
};
use sha2::Sha256;
use std::fmt;

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"QUINTET\n");
pub(crate) const FORMAT: u16 = 13;
pub(crate) const HEADER: usize = 20;
/// No identity or refusal is longer, descriptor included.
pub(crate) const BODY_MAX: usize = 64 << 10;
/// Of a longer reason the beginning is told.
const REASON_MAX: usize = 4096;
const NONCE: usize = 32;
const TAG: usize = 32;
/// Part of what is authenticated: a key of one format is worth nothing in another.
const LABEL: &[u8] = b"quintet peers v5";

pub(crate) type Nonce = [u8; NONCE];

/// The kind of a packet. 1 and 2 were the hello and the refusal of format 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Challenge = 3,
    Answer = 4,
    Proof = 5,
    Identity = 6,
    Refusal = 7,
    /// The other side's packet was not accepted; nothing else is told.
    Denied = 8,
    Join = 9,
    Told = 10,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        let all = [
            Self::Challenge,
            Self::Answer,
            Self::Proof,
            Self::Identity,
            Self::Refusal,
            Self::Denied,
            Self::Join,
            Self::Told,
        ];
        all.into_iter().find(|kind| *kind as u8 == byte)
    }

    /// How long a body may be.
    const fn lengths(self) -> (usize, usize) {
        match self {
            Self::Challenge => (NONCE, NONCE),
            Self::Answer => (NONCE + TAG, NONCE + TAG),
            Self::Proof => (TAG, TAG),
            Self::Identity | Self::Refusal | Self::Join | Self::Told => (TAG, BODY_MAX),
            Self::Denied => (0, 0),
        }
    }
}

/// A side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Initiator = 1,
    Acceptor = 2,
}

impl Role {
    const fn other(self) -> Self {
        match self {
            Self::Initiator => Self::Acceptor,
            Self::Acceptor => Self::Initiator,
        }
    }
}

/// The description that a member, or a frontend outside of members, gives of itself once both sides
/// are proven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerIdentity {
    pub cluster: ClusterId,
    pub epoch: EpochNumber,
    pub groups: u32,
    pub members: u16,
    pub protocol: String,
    /// A replica, or a frontend that is not embedded in one.
    pub from: Peer,
    /// The replica that it believes to talk to.
    pub to: ReplicaId,
    pub incarnation: Incarnation,
    pub boot: Boot,
    /// Drawn when its data directory was made.
    pub directory: u64,
    /// Both lanes of a link tell the same; ascending from one link to the next.
    pub session: u64,
    pub lane: Lane,
    /// Where its Redis clients connect, as [`crate::announce`] has it; empty where there is no such
    /// server, and of frontends.
    pub redis: String,
    /// Where its peers reach it, where it says so itself; empty otherwise.
    pub address: String,
    /// All that must be equal at every member, encoded.
    pub descriptor: Bytes,
}

/// Why a proven peer's connection is not wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Trying again cannot help: the replica must stop.
    pub fatal: bool,
    pub reason: String,
}

/// The request of a replica that wants to become a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JoinRequest {
    /// Drawn when its data directory was made: who it is.
    pub directory: u64,
    pub place: JoinPlace,
    /// Where members reach it.
    pub peer: String,
    /// The highest feature level that its program knows, and how its state machine behaves.
    pub level: u32,
    pub semantics: u32,
}

/// The place that it wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JoinPlace {
    /// One more.
    New,
    /// That of a member that is lost.
    Of(ReplicaId),
    /// None: it has this row in this epoch, and asks whether it is a member still.
    Still(ReplicaId, EpochNumber),
    /// A vote: it is a learner and has the state.
    Vote,
}

/// The answer to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JoinAnswer {
    /// It is in progress: ask again.
    Waits,
    /// Why not.
    Refused(String),
    /// It is a member of this epoch, whose descriptor this is, whole, and that began here.
    Member {
        descriptor: Bytes,
        base: Executed,
        /// Rows with the directories that the answering member knows there, and their boots.
        seen: Vec<(u16, u64, u64)>,
    },
}

/// Why a handshake has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error("the other side does not speak Quintet's peer protocol (is this a client?)")]
    Magic,
    #[error("format version mismatch: ours {FORMAT}, theirs {0}")]
    Format(u16),
    #[error("a packet of the handshake is damaged, too long, or out of order")]
    Malformed,
    #[error("it sent this side's own challenge back")]
    Reflected,
    #[error(
        "it did not prove that it has the cluster's secret; 'secret' must be the same at every \
         member and proxy (and 'cluster', where there is no secret)"
    )]
    Proof,
    #[error(
        "it did not accept this side's proof; 'secret' must be the same at every member and \
         proxy (and 'cluster', where there is no secret)"
    )]
    Denied,
    #[error("a packet of the handshake was changed on its way")]
    Tag,
    #[error("what it tells of itself is invalid: {0}")]
    Body(#[from] DecodeError),
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length is one");
    for part in parts {
        mac.update(part);
    }
    mac
}

fn digest(key: &[u8], parts: &[&[u8]]) -> [u8; TAG] {
    hmac(key, parts).finalize().into_bytes().into()
}

/// The knowledge that peers prove to each other.
#[derive(Clone)]
pub(crate) struct PeerKey([u8; 32]);

impl PeerKey {
    /// The key of a cluster. Without a secret it is made from the cluster's id: that keeps clusters
    /// apart and does not authenticate peers.
    pub fn new(secret: &[u8; 32], cluster: ClusterId) -> Self {
        if *secret == [0; 32] {
            let cluster = cluster.0.to_le_bytes();
            return Self(digest(&[], &[LABEL, b" without a secret", &cluster]));
        }
        Self(digest(secret, &[LABEL]))
    }
}

impl fmt::Debug for PeerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerKey")
    }
}

/// The secret that the two sides of one connection share. A listener does not have it.
#[derive(Clone)]
pub(crate) struct LinkKey {
    key: [u8; TAG],
    role: Role,
}

impl LinkKey {
    fn tag(&self, from: Role, kind: Kind, body: &[u8]) -> Hmac<Sha256> {
        hmac(&self.key, &[&[from as u8, kind as u8], body])
    }

    /// 128 bits for one purpose and direction: of what this side sends, or of what it receives.
    pub fn derive(&self, purpose: &str, sends: bool) -> u128 {
        let from = if sends { self.role } else { self.role.other() };
        let bytes = digest(&self.key, &[&[from as u8, 0], purpose.as_bytes()]);
        let mut half = [0; 16];
        half.copy_from_slice(&bytes[..16]);
        u128::from_le_bytes(half)
    }
}

impl fmt::Debug for LinkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LinkKey({:?})", self.role)
    }
}

impl Wire for PeerIdentity {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u128(self.cluster.0);
        writer.u64(self.epoch.0);
        writer.u32(self.groups);
        writer.u16(self.members);
        writer.slice(self.protocol.as_bytes());
        match self.from {
            Peer::Replica(id) => {
                writer.u8(0);
                writer.u64(u64::from(id.0));
            }
            Peer::Frontend(id) => {
                writer.u8(1);
                writer.u64(id.0);
            }
        }
        writer.u16(self.to.0);
        writer.u64(self.incarnation.0);
        writer.u64(self.boot.0);
        writer.u64(self.directory);
        writer.u64(self.session);
        writer.u8(self.lane as u8);
        writer.slice(self.redis.as_bytes());
        writer.slice(self.address.as_bytes());
        writer.slice(&self.descriptor);
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            cluster: ClusterId(reader.u128("cluster")?),
            epoch: EpochNumber(reader.u64("epoch")?),
            groups: reader.u32("groups")?,
            members: reader.u16("members")?,
            protocol: String::from_utf8(reader.blob("protocol")?.to_vec())
                .map_err(|_| DecodeError::Bad("protocol"))?,
            from: match (reader.u8("peer kind")?, reader.u64("peer id")?) {
                (0, id) => Peer::Replica(ReplicaId(
                    u16::try_from(id).map_err(|_| DecodeError::Bad("replica id"))?,
                )),
                (1, id) if id != 0 => Peer::Frontend(FrontendId(id)),
                _ => return Err(DecodeError::Bad("peer kind")),
            },
            to: ReplicaId(reader.u16("addressee")?),
            incarnation: Incarnation(reader.u64("incarnation")?),
            boot: Boot(reader.u64("boot")?),
            directory: reader.u64("directory")?,
            session: reader.u64("session")?,
            lane: match reader.u8("lane")? {
                0 => Lane::Control,
                1 => Lane::Bulk,
                _ => return Err(DecodeError::Bad("lane")),
            },
            redis: address(reader, "redis address")?,
            address: address(reader, "peer address")?,
            descriptor: reader.blob("descriptor")?,
        })
    }
}

impl Wire for JoinRequest {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.directory);
        let (kind, id, epoch) = match self.place {
            JoinPlace::New => (0, ReplicaId(0), EpochNumber(0)),
            JoinPlace::Of(id) => (1, id, EpochNumber(0)),
            JoinPlace::Still(id, epoch) => (2, id, epoch),
            JoinPlace::Vote => (3, ReplicaId(0), EpochNumber(0)),
        };
        writer.u8(kind);
        writer.u16(id.0);
        writer.u64(epoch.0);
        writer.slice(self.peer.as_bytes());
        writer.u32(self.level);
        writer.u32(self.semantics);
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            directory: reader.u64("directory")?,
            place: {
                let (kind, id) = (reader.u8("place")?, ReplicaId(reader.u16("row")?));
                let epoch = EpochNumber(reader.u64("epoch")?);
                match kind {
                    0 => JoinPlace::New,
                    1 => JoinPlace::Of(id),
                    2 => JoinPlace::Still(id, epoch),
                    3 => JoinPlace::Vote,
                    _ => return Err(DecodeError::Bad("place")),
                }
            },
            peer: text(reader, "address")?,
            level: reader.u32("feature level")?,
            semantics: reader.u32("semantics")?,
        })
    }
}

impl Wire for JoinAnswer {
    fn encode(&self, writer: &mut Writer<'_>) {
        match self {
            Self::Waits => writer.u8(0),
            Self::Refused(reason) => {
                writer.u8(1);
                writer.slice(reason.as_bytes());
            }
            Self::Member {
                descriptor,
                base,
                seen,
            } => {
                writer.u8(2);
                writer.slice(descriptor);
                writer.u64(base.slot.0);
                writer.u64(base.position.0);
                writer.length(seen.len());
                for (row, directory, boot) in seen {
                    writer.u16(*row);
                    writer.u64(*directory);
                    writer.u64(*boot);
                }
            }
        }
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match reader.u8("answer")? {
            0 => Self::Waits,
            1 => Self::Refused(text(reader, "reason")?),
            2 => Self::Member {
                descriptor: reader.blob("descriptor")?,
                base: Executed {
                    slot: reader.slot("base")?,
                    position: Position(reader.number("base")?),
                },
                seen: {
                    let count = reader.u32("members")? as usize;
                    if count > ReplicaSet::MEMBERS_MAX {
                        return Err(DecodeError::Bad("members"));
                    }
                    let member = |_| {
                        let row = reader.u16("row")?;
                        Ok((row, reader.u64("directory")?, reader.u64("boot")?))
                    };
                    (0..count).map(member).collect::<Result<_, DecodeError>>()?
                },
            },
            _ => return Err(DecodeError::Bad("answer")),
        })
    }
}

/// An address that can be shown, or nothing.
fn address(reader: &mut Reader, field: &'static str) -> Result<String, DecodeError> {
    let bytes = reader.blob(field)?;
    let text = String::from_utf8(bytes.to_vec()).ok();
    text.filter(|text| text.is_empty() || announce::check(text).is_ok())
        .ok_or(DecodeError::Bad(field))
}

/// A text from outside, without control characters: it goes into logs.
fn text(reader: &mut Reader, field: &'static str) -> Result<String, DecodeError> {
    let bytes = reader.blob(field)?;
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.chars().map(clean).collect())
}

impl Wire for Refusal {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.bool(self.fatal);
        writer.slice(self.reason.as_bytes());
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            fatal: reader.bool("fatal")?,
            reason: text(reader, "reason")?,
        })
    }
}

fn packet(kind: Kind, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    bytes.extend_from_slice(&MAGIC.to_le_bytes());
    bytes.extend_from_slice(&FORMAT.to_le_bytes());
    bytes.extend_from_slice(&[kind as u8, 0]);
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&checksum(&body).to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

/// The body of the packet at the start of `bytes`, if it is all there. Only packets of the kinds in
/// `expected` are waited for.
fn first_packet<'a>(
    bytes: &'a [u8],
    expected: &[Kind],
) -> Result<Option<(Kind, &'a [u8])>, HandshakeError> {
    let magic = MAGIC.to_le_bytes();
    let common = bytes.len().min(magic.len());
    if bytes[..common] != magic[..common] {
        return Err(HandshakeError::Magic);
    }
    let Some(header) = bytes.first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let format = u16::from_le_bytes([header[8], header[9]]);
    if format != FORMAT {
        return Err(HandshakeError::Format(format));
    }
    let word = |at: usize| {
        u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let kind = Kind::of(header[10]).filter(|kind| expected.contains(kind) && header[11] == 0);
    let kind = kind.ok_or(HandshakeError::Malformed)?;
    let length = word(12) as usize;
    let (least, most) = kind.lengths();
    if !(least..=most).contains(&length) {
        return Err(HandshakeError::Malformed);
    }
    let Some(body) = bytes.get(HEADER..HEADER + length) else {
        return Ok(None);
    };
    if checksum(body) != word(16) {
        return Err(HandshakeError::Malformed);
    }
    Ok(Some((kind, body)))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The other side's nonce is due.
    Nonce,
    /// Acceptor: the initiator's proof is due.
    Proof,
    /// The other side is proven, and its identity is due.
    Identity,
    /// It may still refuse.
    Open,
}

/// The received part of the other side's bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// These go back.
    Send(Vec<u8>),
    /// The other side is proven; these go back, if any, and this side's identity may follow them.
    Proven(Vec<u8>),
    /// The description of the proven other side.
    Identity(PeerIdentity),
    /// The proven other side does not want this connection.
    Refusal(Refusal),
    /// The proven other side wants to become a member.
    Join(JoinRequest),
    /// The answer to this side, which wants to become one.
    Told(JoinAnswer),
}

/// One side of the handshake on one connection.
#[derive(Debug)]
pub(crate) struct Handshake {
    role: Role,
    state: State,
    key: PeerKey,
    nonce: Nonce,
    /// The other side's nonce; zeros until it has come.
    theirs: Nonce,
    link: Option<LinkKey>,
}

impl Handshake {
    /// The side that dials, with a nonce never used before, and what it sends first.
    pub fn initiate(key: PeerKey, nonce: Nonce) -> (Self, Vec<u8>) {
        let it = Self {
            role: Role::Initiator,
            state: State::Nonce,
            key,
            nonce,
            theirs: [0; NONCE],
            link: None,
        };
        (it, packet(Kind::Challenge, &[&nonce]))
    }

    /// The side that is dialled, with a nonce never used before.
    pub const fn accept(key: PeerKey, nonce: Nonce) -> Self {
        Self {
            role: Role::Acceptor,
            state: State::Nonce,
            key,
            nonce,
            theirs: [0; NONCE],
            link: None,
        }
    }

    pub const fn role(&self) -> Role {
        self.role
    }

    /// Whether the other side has proved that it knows the secret.
    pub const fn is_proven(&self) -> bool {
        matches!(self.state, State::Identity | State::Open)
    }

    /// The key of the link, once the other side is proven.
    pub fn link_key(&self) -> Option<&LinkKey> {
        self.link.as_ref().filter(|_| self.is_proven())
    }

    /// The nonces of both sides, the initiator's first.
    const fn nonces(&self) -> (&Nonce, &Nonce) {
        match self.role {
            Role::Initiator => (&self.nonce, &self.theirs),
            Role::Acceptor => (&self.theirs, &self.nonce),
        }
    }

    fn proof(&self, of: Role) -> Hmac<Sha256> {
        let (first, second) = self.nonces();
        hmac(&self.key.0, &[LABEL, &[of as u8], first, second])
    }

    /// Takes the other side's nonce; with it there is the key of the link, which differs from
    /// proofs in a byte of what goes into it.
    fn on_nonce(&mut self, theirs: Nonce) -> Result<(), HandshakeError> {
        if theirs == self.nonce {
            return Err(HandshakeError::Reflected);
        }
        self.theirs = theirs;
        let (first, second) = self.nonces();
        self.link = Some(LinkKey {
            key: digest(&self.key.0, &[LABEL, &[0], first, second]),
            role: self.role,
        });
        Ok(())
    }

    /// Whether the other side's proof is one.
    fn verify(&self, proof: &[u8]) -> Result<(), HandshakeError> {
        let expected = self.proof(self.role.other());
        (expected.verify_slice(proof)).map_err(|_| HandshakeError::Proof)
    }

    /// Takes the packet at the start of `bytes`: what it means and how long it was; `None` when
    /// more bytes are needed.
    ///
    /// # Errors
    /// When the handshake has failed: the connection is to be closed.
    pub fn advance(&mut self, bytes: &[u8]) -> Result<Option<(Step, usize)>, HandshakeError> {
        let expected: &[Kind] = match (self.state, self.role) {
            (State::Nonce, Role::Initiator) => &[Kind::Answer, Kind::Denied],
            (State::Nonce, Role::Acceptor) => &[Kind::Challenge],
            (State::Proof, _) => &[Kind::Proof, Kind::Denied],
            (State::Identity, Role::Initiator) => {
                &[Kind::Identity, Kind::Refusal, Kind::Denied, Kind::Told]
            }
            (State::Identity, Role::Acceptor) => {
                &[Kind::Identity, Kind::Refusal, Kind::Denied, Kind::Join]
            }
            (State::Open, _) => &[Kind::Refusal, Kind::Denied],
        };
        let Some((kind, body)) = first_packet(bytes, expected)? else {
            return Ok(None);
        };
        let step = match kind {
            Kind::Challenge => self.on_challenge(body)?,
            Kind::Answer => self.on_answer(body)?,
            Kind::Proof => self.on_proof(body)?,
            Kind::Identity => {
                let identity = PeerIdentity::decode_all(self.authentic(kind, body)?)?;
                self.state = State::Open;
                Step::Identity(identity)
            }
            Kind::Refusal => Step::Refusal(Refusal::decode_all(self.authentic(kind, body)?)?),
            Kind::Join => {
                let request = JoinRequest::decode_all(self.authentic(kind, body)?)?;
                // One question each connection.
                self.state = State::Open;
                Step::Join(request)
            }
            Kind::Told => Step::Told(JoinAnswer::decode_all(self.authentic(kind, body)?)?),
            Kind::Denied => return Err(HandshakeError::Denied),
        };
        Ok(Some((step, HEADER + body.len())))
    }

    fn on_challenge(&mut self, body: &[u8]) -> Result<Step, HandshakeError> {
        self.on_nonce(*body.first_chunk().ok_or(HandshakeError::Malformed)?)?;
        self.state = State::Proof;
        let proof = self.proof(self.role).finalize().into_bytes();
        Ok(Step::Send(packet(Kind::Answer, &[&self.nonce, &proof])))
    }

    fn on_answer(&mut self, body: &[u8]) -> Result<Step, HandshakeError> {
        let (theirs, proof) = (body.split_first_chunk()).ok_or(HandshakeError::Malformed)?;
        self.on_nonce(*theirs)?;
        self.verify(proof)?;
        self.state = State::Identity;
        let proof = self.proof(self.role).finalize().into_bytes();
        Ok(Step::Proven(packet(Kind::Proof, &[&proof])))
    }

    fn on_proof(&mut self, body: &[u8]) -> Result<Step, HandshakeError> {
        self.verify(body)?;
        self.state = State::Identity;
        Ok(Step::Proven(Vec::new()))
    }

    /// The content of a packet of the proven other side.
    fn authentic(&self, kind: Kind, body: &[u8]) -> Result<Bytes, HandshakeError> {
        let link = self.link.as_ref().ok_or(HandshakeError::Malformed)?;
        let (content, tag) = (body.split_last_chunk::<TAG>()).ok_or(HandshakeError::Malformed)?;
        (link.tag(self.role.other(), kind, content).verify_slice(tag))
            .map_err(|_| HandshakeError::Tag)?;
        Ok(Bytes::copy_from_slice(content))
    }

    fn sealed(&self, kind: Kind, content: &[u8]) -> Option<Vec<u8>> {
        let link = self.link_key()?;
        let tag = link.tag(self.role, kind, content).finalize().into_bytes();
        Some(packet(kind, &[content, &tag]))
    }

    /// The packet that tells a proven other side this one's identity; an unproven one gets none.
    pub fn identity(&self, identity: &PeerIdentity) -> Option<Vec<u8>> {
        self.sealed(Kind::Identity, &identity.encode_to_bytes())
    }

    /// The packet by which this side asks a proven one to become a member.
    pub fn join(&self, request: &JoinRequest) -> Option<Vec<u8>> {
        self.sealed(Kind::Join, &request.encode_to_bytes())
    }

    /// The packet that answers it.
    pub fn told(&self, answer: &JoinAnswer) -> Option<Vec<u8>> {
        self.sealed(Kind::Told, &answer.encode_to_bytes())
    }

    /// The packet that tells why the connection is not wanted; an unproven other side gets none.
    pub fn refusal(&self, refusal: &Refusal) -> Option<Vec<u8>> {
        let mut refusal = refusal.clone();
        while refusal.reason.len() > REASON_MAX {
            refusal.reason.pop();
        }
        self.sealed(Kind::Refusal, &refusal.encode_to_bytes())
    }

    /// The packet that tells that a packet was not accepted, and this side's format.
    pub fn denied() -> Vec<u8> {
        packet(Kind::Denied, &[])
    }
}

/// A refusal that a retry may cure once a setting has been corrected.
fn refuse(reason: String) -> Result<(), Refusal> {
    Err(Refusal {
        fatal: false,
        reason,
    })
}

impl PeerIdentity {
    /// Whether what the other side tells fits to this side: the part that needs no memory.
    ///
    /// # Errors
    /// Returns the difference, from this side's point of view.
    pub fn check(&self, theirs: &Self) -> Result<(), Refusal> {
        if theirs.cluster != self.cluster {
            let (ours, theirs) = (self.cluster, theirs.cluster);
            return refuse(format!("cluster id mismatch: ours {ours}, theirs {theirs}"));
        }
        let Peer::Replica(me) = self.from else {
            return Ok(());
        };
        if theirs.from == self.from {
            return refuse(format!("duplicate node id: both are replica {}", me.0));
        }
        if theirs.to != me {
            return refuse(format!(
                "wrong address: this is replica {}, not replica {}",
                me.0, theirs.to.0
            ));
        }
        // A peer in another epoch is told of the newest one over the link.
        if theirs.epoch == self.epoch && theirs.protocol != self.protocol {
            let (ours, theirs) = (&self.protocol, &theirs.protocol);
            return refuse(format!(
                "protocol mismatch: ours '{ours}', theirs '{theirs}'"
            ));
        }
        let differ = theirs.epoch == self.epoch && theirs.members != self.members;
        if theirs.groups != self.groups || differ {
            return refuse(format!(
                "membership mismatch: ours {} members in {} groups, theirs {} in {}",
                self.members, self.groups, theirs.members, theirs.groups
            ));
        }
        match theirs.from {
            Peer::Replica(id) if id.0 >= self.members && theirs.epoch < self.epoch => {
                refuse(no_member(id, self.epoch))
            }
            Peer::Replica(id) if id.0 >= self.members => {
                refuse(format!("replica {} is not a member, or not yet", id.0))
            }
            from => {
                let with_proxy = matches!(from, Peer::Frontend(_));
                check_peer(&self.descriptor, &theirs.descriptor, with_proxy).or_else(refuse)
            }
        }
    }
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
pub(crate) mod tests;
