//! The first bytes on every connection between peers: who speaks, and whether the two belong
//! together.
//!
//! ```text
//!   dialer ── Hello ──► acceptor        magic u64 | format u16 | kind u8 | zero u8
//!          ◄── Hello ── or ◄── Refusal  | length u32 | crc32c u32 | body
//! ```

use quintet_replica::{
    Boot, Bytes, ClusterId, DecodeError, EpochNumber, FrontendId, Incarnation, Lane, Peer, Reader,
    ReplicaId, Wire, Writer, checksum,
};

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"QUINTET\n");
pub(crate) const FORMAT: u16 = 1;
pub(crate) const HEADER: usize = 20;
/// No hello or refusal is longer.
pub(crate) const BODY_MAX: usize = 4096;
const KIND_HELLO: u8 = 1;
const KIND_REFUSAL: u8 = 2;

/// Who speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub cluster: ClusterId,
    pub epoch: EpochNumber,
    pub groups: u32,
    pub members: u16,
    pub protocol: String,
    /// A replica, or a frontend that is not embedded in one.
    pub from: Peer,
    /// Who it believes to talk to.
    pub to: ReplicaId,
    pub incarnation: Incarnation,
    pub boot: Boot,
    /// Drawn when its data directory was made.
    pub directory: u64,
    /// Both lanes of a link tell the same; ascending from one link to the next.
    pub session: u64,
    pub lane: Lane,
    /// Commitment to the cluster's secret.
    pub commitment: u64,
}

/// Why a connection is not wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Trying again cannot help: the replica must stop.
    pub fatal: bool,
    pub reason: String,
}

/// What came first on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Greeting {
    Hello(Hello),
    Refusal(Refusal),
}

/// Why the first bytes are not a greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GreetingError {
    #[error("the other side does not speak Quintet's peer protocol (is this a client?)")]
    Magic,
    #[error("format version mismatch: ours {FORMAT}, theirs {0}")]
    Format(u16),
    #[error("the hello is damaged")]
    Checksum,
    #[error("the hello makes no sense: {0}")]
    Body(#[from] DecodeError),
}

impl Wire for Hello {
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
        writer.u64(self.commitment);
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
            commitment: reader.u64("commitment")?,
        })
    }
}

impl Wire for Refusal {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.bool(self.fatal);
        writer.slice(self.reason.as_bytes());
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let fatal = reader.bool("fatal")?;
        let reason = reader.blob("reason")?;
        // The text goes into a log: no control characters from outside.
        let clean = |c: char| if c.is_control() { ' ' } else { c };
        let reason = String::from_utf8_lossy(&reason)
            .chars()
            .map(clean)
            .collect();
        Ok(Self { fatal, reason })
    }
}

impl Greeting {
    pub fn encode(&self) -> Vec<u8> {
        let (kind, body) = match self {
            Self::Hello(hello) => (KIND_HELLO, hello.encode_to_bytes()),
            Self::Refusal(refusal) => (KIND_REFUSAL, refusal.encode_to_bytes()),
        };
        let mut bytes = Vec::with_capacity(HEADER + body.len());
        bytes.extend_from_slice(&MAGIC.to_le_bytes());
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        bytes.extend_from_slice(&[kind, 0]);
        bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&checksum(&body).to_le_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }

    /// The greeting at the start of `bytes` with its length; `None` when more bytes are needed.
    ///
    /// # Errors
    /// When no more bytes could make it one.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, GreetingError> {
        let magic = MAGIC.to_le_bytes();
        let common = bytes.len().min(magic.len());
        if bytes[..common] != magic[..common] {
            return Err(GreetingError::Magic);
        }
        let Some(header) = bytes.first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let format = u16::from_le_bytes([header[8], header[9]]);
        if format != FORMAT {
            return Err(GreetingError::Format(format));
        }
        let word = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let length = word(12) as usize;
        if length > BODY_MAX {
            return Err(GreetingError::Checksum);
        }
        let Some(body) = bytes.get(HEADER..HEADER + length) else {
            return Ok(None);
        };
        if checksum(body) != word(16) {
            return Err(GreetingError::Checksum);
        }
        let body = Bytes::copy_from_slice(body);
        let greeting = match header[10] {
            KIND_HELLO => Self::Hello(Hello::decode_all(body)?),
            KIND_REFUSAL => Self::Refusal(Refusal::decode_all(body)?),
            _ => return Err(GreetingError::Body(DecodeError::Bad("greeting kind"))),
        };
        Ok(Some((greeting, HEADER + length)))
    }
}

/// A refusal that a retry may cure once somebody has corrected a setting.
fn refuse(reason: String) -> Result<(), Refusal> {
    Err(Refusal {
        fatal: false,
        reason,
    })
}

impl Hello {
    /// Whether what the other side tells fits to this side: the part that needs no memory.
    ///
    /// # Errors
    /// What does not fit, from this side's point of view.
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
        if theirs.epoch != self.epoch {
            let (ours, theirs) = (self.epoch.0, theirs.epoch.0);
            return refuse(format!("epoch mismatch: ours {ours}, theirs {theirs}"));
        }
        if theirs.protocol != self.protocol {
            let (ours, theirs) = (&self.protocol, &theirs.protocol);
            return refuse(format!(
                "protocol mismatch: ours '{ours}', theirs '{theirs}'"
            ));
        }
        if (theirs.groups, theirs.members) != (self.groups, self.members) {
            return refuse(format!(
                "membership mismatch: ours {} members in {} groups, theirs {} in {}",
                self.members, self.groups, theirs.members, theirs.groups
            ));
        }
        match theirs.from {
            Peer::Replica(id) if id.0 >= self.members => {
                return refuse(format!("replica {} is not a member", id.0));
            }
            // A frontend without the secret would get past the clients' password.
            _ if theirs.commitment != self.commitment => {
                return refuse("the cluster's secret is not the same on both sides".to_owned());
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub fn hello(from: u16, to: u16) -> Hello {
        Hello {
            cluster: ClusterId(0xabc),
            epoch: EpochNumber(1),
            groups: 1,
            members: 3,
            protocol: "multipaxos".to_owned(),
            from: Peer::Replica(ReplicaId(from)),
            to: ReplicaId(to),
            incarnation: Incarnation(1),
            boot: Boot(4),
            directory: 9,
            session: 7,
            lane: Lane::Bulk,
            commitment: 3,
        }
    }

    #[test]
    fn a_greeting_reads_back_and_no_damaged_one_does() {
        let refusal = Refusal {
            fatal: true,
            reason: "no".to_owned(),
        };
        for greeting in [Greeting::Hello(hello(1, 2)), Greeting::Refusal(refusal)] {
            let bytes = greeting.encode();
            assert_eq!(Greeting::decode(&bytes), Ok(Some((greeting, bytes.len()))));
            for cut in 0..bytes.len() {
                assert_eq!(Greeting::decode(&bytes[..cut]), Ok(None), "cut at {cut}");
            }
            for at in (0..bytes.len()).filter(|at| ![10, 11].contains(at)) {
                let mut damaged = bytes.clone();
                damaged[at] ^= 0x10;
                assert!(
                    !matches!(Greeting::decode(&damaged), Ok(Some(_))),
                    "byte {at}"
                );
            }
        }
        assert_eq!(
            Greeting::decode(b"GET / HTTP/1.1"),
            Err(GreetingError::Magic)
        );
    }

    #[test]
    fn every_mismatch_is_named_with_both_sides() {
        let ours = hello(1, 2);
        let theirs = hello(2, 1);
        assert_eq!(ours.check(&theirs), Ok(()));
        let reason = |change: fn(&mut Hello)| {
            let mut theirs = theirs.clone();
            change(&mut theirs);
            ours.check(&theirs).expect_err("refused").reason
        };
        let text = reason(|hello| hello.cluster = ClusterId(0xdef));
        assert!(
            text.starts_with("cluster id mismatch: ours 0") && text.contains("def"),
            "{text}"
        );
        let same = reason(|hello| hello.from = Peer::Replica(ReplicaId(1)));
        assert_eq!(same, "duplicate node id: both are replica 1");
        assert!(reason(|hello| hello.to = ReplicaId(0)).contains("wrong address"));
        assert!(reason(|hello| hello.epoch = EpochNumber(2)).contains("epoch mismatch"));
        assert!(reason(|hello| hello.protocol = "chain".to_owned()).contains("'chain'"));
        assert!(reason(|hello| hello.members = 5).contains("membership mismatch"));
        assert!(reason(|hello| hello.from = Peer::Replica(ReplicaId(3))).contains("not a member"));
        assert!(reason(|hello| hello.commitment = 0).contains("secret"));
    }
}
