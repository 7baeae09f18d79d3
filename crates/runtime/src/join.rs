//! Becoming a member of a cluster that runs: one more, or in the place of one that is lost.
//!
//! ```text
//!   directory: who this is ──► seed: a member ──► the cluster continues in an epoch with this replica
//!        ▲ started again: the same ──┘ asked again until it is, or told why not
//!        └── epoch, members, options, limits ──► Config ──► Replica::start ──► the state is fetched
//! ```
//!
//! A join that is interrupted can be repeated with the same directory: it stays the same replica, and
//! a step that was done changes nothing.

use crate::{
    Config, StartError, announce, data,
    data::Joiner,
    terms,
    transports::handshake::{Handshake, JoinAnswer, JoinPlace, JoinRequest, PeerKey, Step},
};
use quintet_replica::{Descriptor, Executed, FEATURE_LEVEL, ReplicaId, StateMachine};
use std::{
    io::{self, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    time::{Duration, Instant},
};

/// Between two questions.
const ASK_EVERY: Duration = Duration::from_millis(200);
/// A member that does not answer for so long is given up, and the next one asked.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// A reason to refuse that passes by itself, such as a link that is not known to be broken, does so
/// within this time.
const REFUSED_MAX: Duration = Duration::from_secs(1);
/// No handshake is longer.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// The membership that a replica asks for.
#[derive(Clone, Debug)]
pub struct Join {
    /// Peer addresses of members, as `host:port`: the first that answers is asked.
    pub seeds: Vec<String>,
    /// The member whose place this one takes; it is one more otherwise.
    pub replaces: Option<ReplicaId>,
    /// How long to wait.
    pub timeout: Duration,
}

/// The epoch that a new member is in, where it began, and the directories that are known of others.
type Told = (Descriptor, Executed, Vec<(u16, u64, u64)>);

/// Why a member did not make this replica one.
pub(crate) enum Failure {
    /// Another may.
    Unreachable(String),
    Refused(String),
}

/// Makes `config` that of a member: of the epoch that its data directory knows, or else of one that
/// the cluster continues in for its sake. Of `config` are needed the data directory, the secret,
/// where there is none the cluster's id, and what is each member's own: addresses (with
/// `peer_announce`), journal, threads.
///
/// # Errors
/// Why it is none, and what to do.
pub fn join(
    config: &mut Config,
    machine: &dyn StateMachine,
    wanted: Option<&Join>,
) -> Result<(), StartError> {
    // Locked until the end: the directory becomes one member.
    let Joiner {
        directory, member, ..
    } = &data::join(&config.data)?;
    if let Some((id, descriptor)) = member {
        config.adopt(*id, descriptor);
        return Ok(());
    }
    let wanted = wanted.ok_or_else(|| {
        StartError::Config("it is no member yet: name one to ask (--seed HOST:PORT)".to_owned())
    })?;
    let request = JoinRequest {
        directory: *directory,
        place: wanted.replaces.map_or(JoinPlace::New, JoinPlace::Of),
        peer: config.peer_announce.clone().unwrap_or_default(),
        level: FEATURE_LEVEL,
        semantics: machine.semantics(),
    };
    announce::check(&request.peer).map_err(StartError::Config)?;
    let (mut descriptor, base, seen) = wanted.ask_all(config, &request)?;
    let Some(id) = descriptor.row_of(*directory) else {
        return Err(StartError::Config(
            "the member that was asked has answered with an epoch that this replica is not in"
                .to_owned(),
        ));
    };
    terms::find_hash_seed(&config.secret, &mut descriptor).map_err(StartError::Config)?;
    data::store_member(&config.data, (id, &descriptor, base), &seen)
        .map_err(StartError::failed(&config.data))?;
    config.adopt(id, &descriptor);
    Ok(())
}

impl Join {
    fn ask_all(&self, config: &Config, request: &JoinRequest) -> Result<Told, StartError> {
        let key = PeerKey::new(&config.secret, config.cluster);
        let until = Instant::now() + self.timeout;
        let (mut last, mut refused_since) = (String::new(), None::<Instant>);
        let mut told = String::new();
        loop {
            // Another member may know better than one that refuses.
            let (mut refused, mut waits) = (String::new(), false);
            for seed in &self.seeds {
                match ask(seed, &key, request) {
                    Ok(JoinAnswer::Member {
                        descriptor,
                        base,
                        seen,
                    }) => {
                        let read = Descriptor::decode(descriptor);
                        let read = read.map_err(|error| StartError::Config(error.to_string()))?;
                        return Ok((read, base, seen));
                    }
                    Ok(JoinAnswer::Waits) => {
                        last = format!("{seed}: the change of members is not done yet");
                        waits = true;
                        break;
                    }
                    Ok(JoinAnswer::Refused(reason)) | Err(Failure::Refused(reason)) => {
                        refused = format!("{seed}: {reason}");
                    }
                    Err(Failure::Unreachable(reason)) => {
                        last = format!("{seed}: {reason}");
                    }
                }
            }
            if told != last {
                tracing::info!("{last}");
                told.clone_from(&last);
            }
            if waits || refused.is_empty() {
                refused_since = None;
            } else if refused_since.get_or_insert_with(Instant::now).elapsed() > REFUSED_MAX {
                return Err(StartError::Config(refused));
            }
            if Instant::now() >= until {
                let last = if refused.is_empty() { last } else { refused };
                return Err(StartError::System(io::Error::other(format!(
                    "not a member within {:?}: {last}; start it again to continue",
                    self.timeout
                ))));
            }
            std::thread::sleep(ASK_EVERY);
        }
    }
}

/// Asks one member, on a connection of its own.
pub(crate) fn ask(seed: &str, key: &PeerKey, request: &JoinRequest) -> Result<JoinAnswer, Failure> {
    let unreachable = |error: io::Error| Failure::Unreachable(error.to_string());
    let mut addresses = seed.to_socket_addrs().map_err(unreachable)?;
    let address = addresses
        .next()
        .ok_or_else(|| Failure::Unreachable("the name has no address".to_owned()))?;
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_MAX).map_err(unreachable)?;
    stream
        .set_read_timeout(Some(ANSWER_MAX))
        .and_then(|()| stream.set_write_timeout(Some(ANSWER_MAX)))
        .map_err(unreachable)?;
    let nonce = data::nonce().map_err(unreachable)?;
    let (mut handshake, challenge) = Handshake::initiate(key.clone(), nonce);
    stream.write_all(&challenge).map_err(unreachable)?;
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let step = handshake.advance(&bytes);
        match step.map_err(|error| Failure::Refused(error.to_string()))? {
            None => {
                let read = stream.read(&mut buffer).map_err(unreachable)?;
                if read == 0 || bytes.len() > ANSWER_BYTES_MAX {
                    let reason = "it closed the connection; is it a peer address of a member?";
                    return Err(Failure::Unreachable(reason.to_owned()));
                }
                bytes.extend_from_slice(&buffer[..read]);
            }
            Some((step, length)) => {
                bytes.drain(..length);
                match step {
                    Step::Send(answer) => stream.write_all(&answer).map_err(unreachable)?,
                    Step::Proven(answer) => {
                        stream.write_all(&answer).map_err(unreachable)?;
                        let asks = handshake.join(request).unwrap_or_default();
                        stream.write_all(&asks).map_err(unreachable)?;
                    }
                    Step::Told(answer) => return Ok(answer),
                    Step::Refusal(refusal) => return Err(Failure::Refused(refusal.reason)),
                    Step::Identity(_) | Step::Join(_) => {
                        let reason = "it answers what was not asked".to_owned();
                        return Err(Failure::Refused(reason));
                    }
                }
            }
        }
    }
}
