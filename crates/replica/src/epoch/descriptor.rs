//! The descriptor of an epoch: everything that its members must have in common.
//!
//! ```text
//!   group u32 | number u64 | predecessor u128 | not_after u64     the prefix: every build reads it
//!   length u32 | body                                             begins with the feature level
//!   length u32 | private part                                     addresses, the hash seed
//! ```
//!
//! Prefix and body make the fingerprint. Addresses may change without an agreement; they are told to
//! peers and frontends, which must find members that they have not met. The hash seed never leaves
//! the members' own storage: clients must not learn it.

use crate::{
    ClusterId, CommandTime, DecodeError, Durability, Epoch, EpochNumber, GroupId, Position, Reader,
    ReplicaId, ReplicaSet, Voters, Writer,
};
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use bytes::{Bytes, BytesMut};
use core::fmt;

/// The feature level of this build: formats of wire, batch, journal and snapshot, and the rules of
/// executor and sessions.
pub const FEATURE_LEVEL: u32 = 3;

/// From this level on a [`RequestKind::Seal`](crate::RequestKind::Seal) ends an epoch. Builds of an
/// earlier level know no seals, so that epochs of those levels cannot end.
pub const SEALS_LEVEL: u32 = 2;

/// From this level on rows may be vacant. An epoch of an earlier level that leaves one so rises to
/// it: members that are linked know it, as the formats of their links say.
pub const VACANT_LEVEL: u32 = 3;

/// The most options, terms or limits of a descriptor.
const LIST_MAX: usize = 256;

/// Tells descriptors apart. Guards against accidents, not against forgery: it is no cryptographic
/// hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub u128);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl Fingerprint {
    /// The fingerprint of these bytes: two CRC-64 of different polynomials.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let high = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Xz, bytes);
        let low = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes);
        Self(u128::from(high) << 64 | u128::from(low))
    }
}

/// The head of a descriptor, which is read before anything else, by all builds alike: no build
/// changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SuccessorPrefix {
    /// The group whose epoch it is.
    pub group: GroupId,
    /// The epoch's number.
    pub number: EpochNumber,
    /// The fingerprint of the epoch before.
    pub predecessor: Fingerprint,
    /// The log's time after which it cannot begin any more.
    pub not_after: CommandTime,
}

impl SuccessorPrefix {
    const BYTES: usize = 4 + 8 + 16 + 8;

    /// The prefix of an encoded descriptor; none when these bytes are none.
    #[must_use]
    pub fn read(descriptor: &[u8]) -> Option<Self> {
        public_part(descriptor)?;
        let (group, rest) = descriptor.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let (predecessor, rest) = rest.split_first_chunk()?;
        let not_after = rest.first_chunk()?;
        Some(Self {
            group: GroupId(u32::from_le_bytes(*group)),
            number: EpochNumber(u64::from_le_bytes(*number)),
            predecessor: Fingerprint(u128::from_le_bytes(*predecessor)),
            not_after: CommandTime(u64::from_le_bytes(*not_after)),
        })
    }
}

/// The part of an encoded descriptor that its fingerprint is of, whatever build made it.
#[must_use]
pub fn public_part(descriptor: &[u8]) -> Option<&[u8]> {
    let length = descriptor.get(SuccessorPrefix::BYTES..)?.first_chunk()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    descriptor.get(..SuccessorPrefix::BYTES.checked_add(4)?.checked_add(length)?)
}

/// The role of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum MemberRole {
    /// It counts in quorums.
    #[default]
    Voter = 0,
    /// It has no vote: it is given what the voters execute, to become one of them.
    Learner = 1,
    /// None: the row is vacant, since its member was removed.
    Vacant = 2,
}

impl MemberRole {
    /// `voter`, `learner` or `vacant`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Voter => "voter",
            Self::Learner => "learner",
            Self::Vacant => "vacant",
        }
    }
}

/// One member, or a row that is vacant. The index of a member's row is its number ([`ReplicaId`]),
/// which it keeps as long as it is a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberRow {
    /// Its identity, which no other member ever has; 0 of a vacant row.
    pub node: u64,
    /// Its role.
    pub role: MemberRole,
    /// Where its peers reach it; not part of what is agreed.
    pub peer: String,
}

impl MemberRow {
    /// A vacant row.
    #[must_use]
    pub const fn vacant() -> Self {
        Self {
            node: 0,
            role: MemberRole::Vacant,
            peer: String::new(),
        }
    }

    /// Whether a member has it.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.role != MemberRole::Vacant
    }
}

/// Numbers by name, sorted by the names.
pub type Terms = Vec<(String, u64)>;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The cluster.
    pub cluster: ClusterId,
    /// The group whose epoch it is.
    pub group: GroupId,
    /// The epoch's number.
    pub number: EpochNumber,
    /// The fingerprint of the epoch before; 0 in the first.
    pub predecessor: Fingerprint,
    /// The log's time after which this epoch cannot begin any more; [`u64::MAX`] for none.
    pub not_after: CommandTime,
    /// The feature level that its members work at.
    pub level: u32,
    /// The protocol's name.
    pub protocol: String,
    /// Every option of the protocol with its value, sorted by name.
    pub options: Vec<(String, String)>,
    /// The promise of an acknowledgement.
    pub durability: Durability,
    /// The version of the state machine's behaviour.
    pub semantics: u32,
    /// The state machine's replicated numbers.
    pub terms: Terms,
    /// Those of the node.
    pub limits: Terms,
    /// The members.
    pub members: Vec<MemberRow>,
    /// The first leader, in protocols that have a leader.
    pub leader_first: ReplicaId,
    /// The position at which the epoch begins; above 0 when it begins with a state that was kept.
    pub base: Position,
    /// The digest of the state at `base`.
    pub base_digest: u128,
    /// Commits to the hash seed without telling it.
    pub seed_commitment: u128,
    /// Seeds hash tables whose keys clients choose. Private: clients that know it can choose keys
    /// that collide.
    pub hash_seed: u64,
}

/// Why bytes are not a descriptor that this build can work with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DescriptorError {
    /// A newer build made it.
    #[error(
        "its feature level is {0}, and this program knows levels up to {FEATURE_LEVEL}: use a \
         version of quintet that knows level {0}"
    )]
    Level(u32),
    /// The bytes are no descriptor.
    #[error("it is not readable: {0}")]
    Malformed(#[from] DecodeError),
}

/// A value that two descriptors do not share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescriptorDifference {
    /// Which: the name of an option, a limit, or a part of the descriptor.
    pub name: String,
    /// Here.
    pub ours: String,
    /// There.
    pub theirs: String,
}

impl fmt::Display for DescriptorDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: ours {}, theirs {}",
            self.name, self.ours, self.theirs
        )
    }
}

/// The differences in a sentence, the first few of them.
#[must_use]
pub fn list_differences(differences: &[DescriptorDifference]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = differences
        .iter()
        .take(SHOWN)
        .map(|d| d.to_string())
        .collect();
    match differences.len().saturating_sub(SHOWN) {
        0 => shown.join("; "),
        more => format!("{}; and {more} more", shown.join("; ")),
    }
}

/// Whether the other side of a link works under the same descriptor, or in another epoch, given
/// both public parts. A proxy knows what it is configured with and no more.
///
/// # Errors
/// The first differences with both values.
pub fn check_peer(ours: &Bytes, theirs: &Bytes, with_proxy: bool) -> Result<(), String> {
    if ours == theirs {
        return Ok(());
    }
    let read = |bytes: &Bytes, whose: &str| {
        Descriptor::decode(bytes.clone())
            .map_err(|error| format!("{whose} description of the cluster: {error}"))
    };
    // Those of another epoch are told so, and what they were configured with is not asked.
    let numbers = [ours, theirs].map(|bytes| SuccessorPrefix::read(bytes).map(|it| it.number));
    if numbers[0] != numbers[1] && numbers.iter().all(Option::is_some) {
        return Ok(());
    }
    let (ours, theirs) = (read(ours, "our")?, read(theirs, "their")?);
    let differences = if with_proxy {
        // It has no part in what levels are about, as long as it can read this.
        let theirs = Descriptor {
            level: ours.level,
            ..theirs
        };
        ours.differences_in_settings(&theirs)
    } else {
        ours.differences(&theirs)
    };
    if differences.is_empty() {
        return Ok(());
    }
    let remedy = match !with_proxy && ours.level != theirs.level {
        true => LEVEL_REMEDY,
        false => "",
    };
    Err(format!(
        "configuration mismatch: {}{remedy}",
        list_differences(&differences)
    ))
}

/// The remedy for a member that began at another feature level than the others.
const LEVEL_REMEDY: &str = "; a member begins at the level of the version that first runs in its \
                            data directory: empty the directory of one that was added to older \
                            ones, and start it first with the version that they began with";

fn encode_texts(list: &[(String, String)], writer: &mut Writer<'_>) {
    writer.length(list.len());
    for (name, value) in list {
        writer.slice(name.as_bytes());
        writer.slice(value.as_bytes());
    }
}

fn encode_terms(list: &Terms, writer: &mut Writer<'_>) {
    writer.length(list.len());
    for (name, value) in list {
        writer.slice(name.as_bytes());
        writer.u64(*value);
    }
}

fn text(reader: &mut Reader, field: &'static str) -> Result<String, DecodeError> {
    let bytes = reader.blob(field)?;
    let text = core::str::from_utf8(&bytes).map_err(|_| DecodeError::Bad(field))?;
    // Names and values go into logs and errors.
    if text.chars().any(char::is_control) {
        return Err(DecodeError::Bad(field));
    }
    Ok(text.to_string())
}

fn count(reader: &mut Reader, most: usize, field: &'static str) -> Result<usize, DecodeError> {
    match reader.u32(field)? as usize {
        count if count <= most => Ok(count),
        _ => Err(DecodeError::Bad(field)),
    }
}

fn decode_terms(reader: &mut Reader, field: &'static str) -> Result<Terms, DecodeError> {
    let count = count(reader, LIST_MAX, field)?;
    (0..count)
        .map(|_| Ok((text(reader, field)?, reader.u64(field)?)))
        .collect()
}

impl Descriptor {
    /// The first epoch of a cluster's only group: without options, terms, limits and members, which
    /// are for the caller to add.
    #[must_use]
    pub fn first(cluster: ClusterId, protocol: &str, durability: Durability) -> Self {
        Self {
            cluster,
            group: GroupId(0),
            number: EpochNumber(1),
            predecessor: Fingerprint(0),
            not_after: CommandTime(u64::MAX),
            level: FEATURE_LEVEL,
            protocol: protocol.to_string(),
            options: Vec::new(),
            durability,
            semantics: 1,
            terms: Vec::new(),
            limits: Vec::new(),
            members: Vec::new(),
            leader_first: ReplicaId(0),
            base: Position(0),
            base_digest: 0,
            seed_commitment: 0,
            hash_seed: 0,
        }
    }

    /// The epoch that follows this one, with all else as it is.
    ///
    /// # Panics
    /// After the last number.
    #[must_use]
    pub fn successor(&self) -> Self {
        let number = self.number.0.checked_add(1).expect("a next number");
        Self {
            number: EpochNumber(number),
            predecessor: self.fingerprint(),
            ..self.clone()
        }
    }

    /// With what a member keeps to itself, and the addresses by which it knows the members, as this
    /// one, an earlier epoch's, has them.
    #[must_use]
    pub fn with_private_part_of(mut self, earlier: &Self) -> Self {
        self.hash_seed = earlier.hash_seed;
        for member in &mut self.members {
            let mut rows = earlier.members.iter();
            if let Some(row) = rows.find(|row| row.node == member.node) {
                member.peer.clone_from(&row.peer);
            }
        }
        self
    }

    /// The part that is compared and shown to other members: prefix and body.
    #[must_use]
    pub fn public(&self) -> Bytes {
        let mut scratch = BytesMut::new();
        let mut writer = Writer::new(&mut scratch);
        writer.u32(self.level);
        writer.u128(self.cluster.0);
        writer.slice(self.protocol.as_bytes());
        encode_texts(&self.options, &mut writer);
        writer.bool(self.durability == Durability::Disk);
        writer.u32(self.semantics);
        encode_terms(&self.terms, &mut writer);
        encode_terms(&self.limits, &mut writer);
        writer.length(self.members.len());
        for member in &self.members {
            writer.u64(member.node);
            writer.u8(member.role as u8);
        }
        writer.u16(self.leader_first.0);
        writer.u64(self.base.0);
        writer.u128(self.base_digest);
        writer.u128(self.seed_commitment);
        let body = writer.finish().into_bytes();
        let mut scratch = BytesMut::new();
        let mut writer = Writer::new(&mut scratch);
        writer.u32(self.group.0);
        writer.u64(self.number.0);
        writer.u128(self.predecessor.0);
        writer.u64(self.not_after.0);
        writer.slice(&body);
        writer.finish().into_bytes()
    }

    /// All of it, for the members' own storage.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        self.with_private(self.hash_seed)
    }

    /// All but the hash seed: the form that is ordered, and told to peers and frontends.
    #[must_use]
    pub fn told(&self) -> Bytes {
        self.with_private(0)
    }

    /// The number of the member with this identity.
    #[must_use]
    pub fn row_of(&self, node: u64) -> Option<ReplicaId> {
        let is_it = |row: &MemberRow| row.is_taken() && row.node == node;
        let row = self.members.iter().position(is_it)?;
        u16::try_from(row).ok().map(ReplicaId)
    }

    fn numbers(&self, of: impl Fn(&MemberRow) -> bool) -> ReplicaSet {
        let rows = (0..).map(ReplicaId).zip(&self.members);
        let rows = rows.filter(|(_, row)| of(row));
        rows.map(|(number, _)| number).collect()
    }

    /// The voters.
    #[must_use]
    pub fn voters(&self) -> Voters {
        Voters::of(self.numbers(|row| row.role == MemberRole::Voter))
    }

    /// Voters and learners.
    #[must_use]
    pub fn all(&self) -> ReplicaSet {
        self.numbers(MemberRow::is_taken)
    }

    /// The row that the next new member gets: the first vacant one, or one behind the last.
    #[must_use]
    pub fn row_for_new(&self) -> usize {
        let mut rows = self.members.iter();
        let vacant = rows.position(|row| !row.is_taken());
        vacant.unwrap_or(self.members.len())
    }

    /// A new member in this row, which is there, vacant or not, or is the next.
    ///
    /// # Panics
    /// When it is further behind.
    pub fn place(&mut self, row: usize, member: MemberRow) {
        match self.members.get_mut(row) {
            Some(place) => *place = member,
            None => {
                assert_eq!(row, self.members.len(), "rows are dense");
                self.members.push(member);
            }
        }
    }

    /// These rows are vacant from now on. The other members keep theirs.
    pub fn vacate(&mut self, rows: ReplicaSet) {
        for row in rows.iter() {
            if let Some(place) = self.members.get_mut(row.index()) {
                *place = MemberRow::vacant();
            }
        }
        while self.members.last().is_some_and(|row| !row.is_taken()) {
            self.members.pop();
        }
        if !self.members.iter().all(MemberRow::is_taken) {
            self.level = self.level.max(VACANT_LEVEL);
        }
    }

    /// Whether this member of the epoch before is none of this one: its row is another's, or
    /// vacant.
    #[must_use]
    pub fn replaces(&self, earlier: &Self, id: ReplicaId) -> bool {
        let node = |descriptor: &Self| {
            let row = descriptor.members.get(id.index());
            row.filter(|row| row.is_taken()).map(|row| row.node)
        };
        node(earlier).is_some() && node(self) != node(earlier)
    }

    fn with_private(&self, hash_seed: u64) -> Bytes {
        let mut scratch = BytesMut::new();
        let mut writer = Writer::new(&mut scratch);
        writer.u64(hash_seed);
        writer.length(self.members.len());
        for member in &self.members {
            writer.slice(member.peer.as_bytes());
        }
        let private = writer.finish().into_bytes();
        let mut scratch = BytesMut::new();
        let mut writer = Writer::new(&mut scratch);
        writer.raw(&self.public());
        writer.slice(&private);
        writer.finish().into_bytes()
    }

    /// Reads what [`Self::encode`], [`Self::told`] or [`Self::public`] wrote. The last has no
    /// addresses, and only the first has the hash seed, which is 0 otherwise.
    ///
    /// # Errors
    /// When a newer build made it, or the bytes are none.
    pub fn decode(bytes: Bytes) -> Result<Self, DescriptorError> {
        let mut reader = Reader::new(bytes);
        let group = GroupId(reader.u32("group")?);
        let number = EpochNumber(reader.u64("epoch")?);
        let predecessor = Fingerprint(reader.u128("predecessor")?);
        let not_after = CommandTime(reader.u64("not after")?);
        let mut body = Reader::new(reader.blob("descriptor")?);
        let level = body.u32("feature level")?;
        if level > FEATURE_LEVEL {
            return Err(DescriptorError::Level(level));
        }
        let cluster = ClusterId(body.u128("cluster")?);
        let protocol = text(&mut body, "protocol")?;
        let options = (0..count(&mut body, LIST_MAX, "options")?)
            .map(|_| Ok((text(&mut body, "option")?, text(&mut body, "option")?)))
            .collect::<Result<_, DecodeError>>()?;
        let durability = match body.bool("durability")? {
            true => Durability::Disk,
            false => Durability::Memory,
        };
        let semantics = body.u32("semantics")?;
        let terms = decode_terms(&mut body, "terms")?;
        let limits = decode_terms(&mut body, "limits")?;
        let mut members = (0..count(&mut body, ReplicaSet::MEMBERS_MAX, "members")?)
            .map(|_| {
                Ok(MemberRow {
                    node: body.u64("node")?,
                    role: match body.u8("role")? {
                        0 => MemberRole::Voter,
                        1 => MemberRole::Learner,
                        2 if level >= VACANT_LEVEL => MemberRole::Vacant,
                        _ => return Err(DecodeError::Bad("role")),
                    },
                    peer: String::new(),
                })
            })
            .collect::<Result<Vec<_>, DecodeError>>()?;
        // Voters came first, and there was no vacant row.
        let ordered = members.is_sorted_by_key(|row| row.role as u8);
        if level < VACANT_LEVEL && !ordered {
            return Err(DecodeError::Bad("role").into());
        }
        let is_empty = |row: &MemberRow| row.role == MemberRole::Vacant;
        let has_none = |row: &MemberRow| row.node == 0 && row.peer.is_empty();
        if members.last().is_some_and(is_empty)
            || members.iter().any(|row| is_empty(row) && !has_none(row))
        {
            return Err(DecodeError::Bad("vacant row").into());
        }
        let leader_first = ReplicaId(body.u16("first leader")?);
        let base = Position(body.u64("base")?);
        let base_digest = body.u128("digest at the base")?;
        let seed_commitment = body.u128("commitment to the hash seed")?;
        if body.remaining() > 0 {
            return Err(DecodeError::Trailing(body.remaining()).into());
        }
        let mut hash_seed = 0;
        if reader.remaining() > 0 {
            let mut private = Reader::new(reader.blob("private part")?);
            hash_seed = private.u64("hash seed")?;
            if count(&mut private, members.len(), "addresses")? != members.len() {
                return Err(DecodeError::Bad("addresses").into());
            }
            for member in &mut members {
                member.peer = text(&mut private, "address")?;
            }
            let more = private.remaining() + reader.remaining();
            if more > 0 {
                return Err(DecodeError::Trailing(more).into());
            }
        }
        Ok(Self {
            cluster,
            group,
            number,
            predecessor,
            not_after,
            level,
            protocol,
            options,
            durability,
            semantics,
            terms,
            limits,
            members,
            leader_first,
            base,
            base_digest,
            seed_commitment,
            hash_seed,
        })
    }

    /// Its fingerprint.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.public())
    }

    /// The part that protocols see of it.
    #[must_use]
    pub fn epoch(&self, secret: [u8; 32]) -> Epoch {
        let voters = self.voters();
        Epoch {
            cluster: self.cluster,
            number: self.number,
            members: voters.len(),
            options: self.options.clone(),
            secret,
            leader_first: voters.rank(self.leader_first).unwrap_or_default(),
        }
    }

    /// A limit or term by its name.
    #[must_use]
    pub fn number_of(&self, name: &str) -> Option<u64> {
        let mut all = self.limits.iter().chain(&self.terms);
        all.find(|(known, _)| known == name)
            .map(|(_, value)| *value)
    }

    /// Everything that a configuration decides and that is not the same in both, named, with both
    /// values: what members must share, and proxies as well.
    #[must_use]
    pub fn differences_in_settings(&self, theirs: &Self) -> Vec<DescriptorDifference> {
        let mut differences = Differences::default();
        differences.see("cluster", self.cluster, theirs.cluster);
        differences.see("epoch", self.number.0, theirs.number.0);
        differences.see("feature level", self.level, theirs.level);
        differences.see("protocol", &self.protocol, &theirs.protocol);
        if self.protocol == theirs.protocol {
            differences.lists("option", &self.options, &theirs.options);
        }
        let (ours, others) = (self.durability.name(), theirs.durability.name());
        differences.see("durability", ours, others);
        differences.see(
            "version of the state machine",
            self.semantics,
            theirs.semantics,
        );
        differences.lists("limit", &self.terms, &theirs.terms);
        differences.lists("limit", &self.limits, &theirs.limits);
        let (ours, others) = (self.all().len(), theirs.all().len());
        differences.see("number of members", ours, others);
        differences.0
    }

    /// Everything that makes two descriptors differ, named, with both values.
    #[must_use]
    pub fn differences(&self, theirs: &Self) -> Vec<DescriptorDifference> {
        let mut differences = Differences(self.differences_in_settings(theirs));
        differences.see("group", self.group, theirs.group);
        differences.see("epoch before", self.predecessor, theirs.predecessor);
        differences.see("last time to begin", self.not_after.0, theirs.not_after.0);
        let nodes = |descriptor: &Self| {
            let nodes = descriptor.members.iter().map(|member| member.node);
            nodes.collect::<Vec<_>>()
        };
        if self.all().len() == theirs.all().len() && nodes(self) != nodes(theirs) {
            let shown = |nodes: Vec<u64>| {
                let nodes: Vec<_> = nodes.iter().map(|node| format!("{node:016x}")).collect();
                nodes.join(" ")
            };
            differences.see("nodes", shown(nodes(self)), shown(nodes(theirs)));
        }
        differences.see("first leader", self.leader_first, theirs.leader_first);
        differences.see("position at its beginning", self.base.0, theirs.base.0);
        let digests = (self.base_digest, theirs.base_digest);
        differences.see(
            "digest at its beginning",
            format!("{:032x}", digests.0),
            format!("{:032x}", digests.1),
        );
        if self.seed_commitment != theirs.seed_commitment {
            differences.0.push(DescriptorDifference {
                name: "hash_seed".to_string(),
                ours: "one that is not shown".to_string(),
                theirs: "another one".to_string(),
            });
        }
        differences.0
    }
}

#[derive(Default)]
struct Differences(Vec<DescriptorDifference>);

impl Differences {
    fn see<T: ToString>(&mut self, name: &str, ours: T, theirs: T) {
        let (ours, theirs) = (ours.to_string(), theirs.to_string());
        if ours != theirs {
            let name = name.to_string();
            self.0.push(DescriptorDifference { name, ours, theirs });
        }
    }

    fn lists<T: ToString>(&mut self, kind: &str, ours: &[(String, T)], theirs: &[(String, T)]) {
        let value_in = |list: &[(String, T)], name: &str| {
            let found = list.iter().find(|(known, _)| known == name);
            found.map_or_else(|| "none".to_string(), |(_, value)| value.to_string())
        };
        let only_theirs = (theirs.iter()).filter(|(name, _)| !ours.iter().any(|(n, _)| n == name));
        for (name, _) in ours.iter().chain(only_theirs) {
            self.see(
                &format!("{kind} '{name}'"),
                value_in(ours, name),
                value_in(theirs, name),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor() -> Descriptor {
        let pair = |name: &str, value: &str| (name.to_string(), value.to_string());
        Descriptor {
            options: [pair("heartbeat_ms", "100"), pair("window", "64")].to_vec(),
            terms: [("value_bytes_max".to_string(), 64 << 20)].to_vec(),
            limits: [("session_lifetime_ms".to_string(), 120_000)].to_vec(),
            members: (0..3)
                .map(|node| MemberRow {
                    node: node + 5,
                    role: MemberRole::Voter,
                    peer: format!("h{node}:1"),
                })
                .collect(),
            seed_commitment: 99,
            hash_seed: 0x5eed_5eed_5eed_5eed,
            ..Descriptor::first(ClusterId(7), "multipaxos", Durability::Disk)
        }
    }

    #[test]
    fn descriptor_reads_back_and_no_cut_one_does() {
        let descriptor = descriptor();
        let bytes = descriptor.encode();
        assert_eq!(Descriptor::decode(bytes.clone()), Ok(descriptor.clone()));
        let public = descriptor.public();
        for cut in (0..bytes.len()).filter(|cut| *cut != public.len()) {
            assert!(Descriptor::decode(bytes.slice(..cut)).is_err(), "{cut}");
        }
        let shown = Descriptor::decode(public).expect("reads");
        assert_eq!(shown.fingerprint(), descriptor.fingerprint());
        assert_eq!(shown.hash_seed, 0);
    }

    /// A stored descriptor of today must stay readable, and keep its fingerprint.
    #[test]
    fn encoding_and_fingerprint_never_change() {
        let first = Descriptor {
            level: 1,
            ..descriptor()
        };
        let bytes = first.encode();
        assert_eq!(bytes.len(), 301, "{bytes:?}");
        assert_eq!(
            first.fingerprint().to_string(),
            "88a7d0bc4540fb2af80206c5a4f60ccb"
        );
    }

    #[test]
    fn removed_member_leaves_its_row_and_the_others_keep_theirs() {
        let earlier = Descriptor {
            level: SEALS_LEVEL,
            ..descriptor()
        };
        let mut next = earlier.successor();
        next.vacate(ReplicaSet::EMPTY.with(ReplicaId(2)));
        assert_eq!((next.members.len(), next.level), (2, SEALS_LEVEL));
        let mut next = earlier.successor();
        next.leader_first = ReplicaId(2);
        next.vacate(ReplicaSet::EMPTY.with(ReplicaId(1)));
        assert_eq!((next.members.len(), next.level), (3, VACANT_LEVEL));
        assert_eq!((next.all().len(), next.voters().len()), (2, 2));
        let ids = (0..3).map(ReplicaId);
        let gone: Vec<_> = ids.filter(|id| next.replaces(&earlier, *id)).collect();
        assert_eq!(gone, [ReplicaId(1)]);
        let epoch = next.epoch([0; 32]);
        assert_eq!((epoch.members, epoch.leader_first), (2, ReplicaId(1)));
        assert_eq!(Descriptor::decode(next.encode()), Ok(next.clone()));
        // Without it nothing is left behind the first one.
        let mut last = next.successor();
        last.vacate(ReplicaSet::EMPTY.with(ReplicaId(2)));
        assert_eq!(last.members.len(), 1);
        // Another one may have the row: it is no member of the epoch before.
        let mut again = next.successor();
        let row = again.row_for_new();
        assert_eq!(row, 1);
        again.place(
            row,
            MemberRow {
                node: 77,
                role: MemberRole::Learner,
                peer: "h7:1".to_string(),
            },
        );
        assert_eq!(again.row_of(77), Some(ReplicaId(1)));
        assert!(!again.replaces(&next, ReplicaId(1)));
        assert!(again.replaces(&earlier, ReplicaId(1)));
        assert_eq!((again.all().len(), again.voters().len()), (3, 2));
        assert_eq!(Descriptor::decode(again.encode()), Ok(again.clone()));
        assert_eq!(again.row_for_new(), 3);
    }

    #[test]
    fn rows_are_vacant_only_where_all_builds_know_them() {
        let mut next = descriptor();
        next.vacate(ReplicaSet::EMPTY.with(ReplicaId(0)));
        next.level = VACANT_LEVEL - 1;
        assert!(Descriptor::decode(next.encode()).is_err());
        next.level = VACANT_LEVEL;
        next.members[0].node = 5;
        assert!(Descriptor::decode(next.encode()).is_err(), "of a node");
        next.members[0].node = 0;
        next.members.push(MemberRow::vacant());
        assert!(Descriptor::decode(next.encode()).is_err(), "the last one");
    }

    #[test]
    fn public_part_holds_neither_seed_nor_addresses() {
        let one = descriptor();
        let mut other = one.clone();
        other.hash_seed = 1;
        other.members[1].peer = "elsewhere:2".to_string();
        assert_eq!(one.public(), other.public());
        assert_ne!(one.encode(), other.encode());
        let seed = one.hash_seed.to_le_bytes();
        assert!(!one.public().windows(8).any(|bytes| bytes == seed));
    }

    #[test]
    fn newer_level_is_refused_with_both_numbers() {
        let mut newer = descriptor();
        newer.level = FEATURE_LEVEL + 1;
        let error = Descriptor::decode(newer.encode()).expect_err("refused");
        assert_eq!(error, DescriptorError::Level(FEATURE_LEVEL + 1));
        let text = error.to_string();
        let (theirs, ours) = (FEATURE_LEVEL + 1, FEATURE_LEVEL);
        let both = [format!("level is {theirs}"), format!("up to {ours}")];
        assert!(both.iter().all(|part| text.contains(part)), "{text}");
    }

    #[test]
    fn link_is_refused_when_descriptors_differ() {
        let ours = descriptor();
        let mut theirs = ours.clone();
        theirs.seed_commitment = 4;
        let (one, other) = (ours.public(), theirs.public());
        assert_eq!(check_peer(&one, &one, false), Ok(()));
        // A proxy knows no hash seed.
        assert_eq!(check_peer(&one, &other, true), Ok(()));
        let refused = check_peer(&one, &other, false).expect_err("two seeds");
        assert!(refused.contains("hash_seed"), "{refused}");
        theirs.options[1].1 = "32".to_string();
        let refused = check_peer(&one, &theirs.public(), true).expect_err("two windows");
        let both = "configuration mismatch: option 'window': ours 64, theirs 32";
        assert_eq!(refused, both);
        let refused = check_peer(&one, &Bytes::new(), false).expect_err("nothing to read");
        assert!(refused.starts_with("their description"), "{refused}");
    }

    #[test]
    fn members_of_two_levels_reject_each_other_and_proxies_do_not() {
        let ours = descriptor();
        let mut earlier = ours.clone();
        earlier.level = FEATURE_LEVEL - 1;
        let (one, other) = (ours.public(), earlier.public());
        let refused = check_peer(&one, &other, false).expect_err("two levels");
        let levels = format!(
            "feature level: ours {FEATURE_LEVEL}, theirs {}",
            earlier.level
        );
        assert!(refused.contains(&levels), "{refused}");
        assert!(refused.contains("empty the directory"), "{refused}");
        assert_eq!(check_peer(&one, &other, true), Ok(()));
        let mut proxy = earlier.clone();
        proxy.options[0].1.push('9');
        let refused = check_peer(&one, &proxy.public(), true).expect_err("two values");
        assert!(!refused.contains("empty the directory"), "{refused}");
        earlier.level = FEATURE_LEVEL + 1;
        let refused = check_peer(&one, &earlier.public(), true).expect_err("not known here");
        assert!(refused.contains("feature level is"), "{refused}");
    }

    #[test]
    fn prefix_and_public_part_are_those_of_the_descriptor() {
        let descriptor = descriptor();
        let bytes = descriptor.encode();
        assert_eq!(public_part(&bytes), Some(&descriptor.public()[..]));
        let prefix = SuccessorPrefix::read(&bytes).expect("it has one");
        let read = Descriptor::decode(bytes.clone()).expect("reads");
        let of = (read.group, read.number, read.predecessor, read.not_after);
        let SuccessorPrefix {
            group,
            number,
            predecessor,
            not_after,
        } = prefix;
        assert_eq!((group, number, predecessor, not_after), of);
        let cut = descriptor.public().len() - 1;
        assert_eq!(SuccessorPrefix::read(&bytes[..cut]), None);
    }

    #[test]
    fn every_difference_is_named_with_both_values() {
        let ours = descriptor();
        assert_eq!(ours.differences(&ours), []);
        type Change = fn(&mut Descriptor);
        let changes: [(Change, &str); 14] = [
            (|d| d.cluster.0 += 1, "cluster"),
            (|d| d.number.0 += 1, "epoch: ours 1, theirs 2"),
            (|d| d.protocol = "nezha".to_string(), "theirs nezha"),
            (
                |d| d.options[1].1 = "32".to_string(),
                "option 'window': ours 64, theirs 32",
            ),
            (
                |d| d.options.truncate(1),
                "option 'window': ours 64, theirs none",
            ),
            (|d| d.durability = Durability::Memory, "theirs memory"),
            (|d| d.semantics += 1, "state machine: ours 1, theirs 2"),
            (
                |d| d.terms[0].1 = 1 << 20,
                "limit 'value_bytes_max': ours 67108864, theirs 1048576",
            ),
            (
                |d| d.limits[0].1 = 1,
                "limit 'session_lifetime_ms': ours 120000, theirs 1",
            ),
            (|d| d.members.truncate(2), "members: ours 3, theirs 2"),
            (|d| d.members[0].node = 1, "nodes"),
            (|d| d.base = Position(4), "beginning: ours 0, theirs 4"),
            (|d| d.base_digest = 4, "digest"),
            (|d| d.seed_commitment = 4, "hash_seed: ours one that is not"),
        ];
        for (change, expected) in changes {
            let mut theirs = ours.clone();
            change(&mut theirs);
            assert_ne!(theirs.fingerprint(), ours.fingerprint(), "{expected}");
            let found = list_differences(&ours.differences(&theirs));
            assert!(found.contains(expected), "{found} lacks {expected}");
        }
    }
}
