//! Why a call has no answer.

use crate::{Time, Version, call::Fault, past};
use quintet_replica::CommandTime;
use std::time::Duration;

/// Why a call has no answer, and whether it was executed: certainly not, unless it says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Perhaps executed: no answer came in time.
    #[error("no answer in time: the call may or may not have been executed")]
    Uncertain,
    /// Too few members of the shard are running, or too few of those have its log.
    #[error("shard '{shard}' has too few members: the call was not executed")]
    NoQuorum {
        /// The shard.
        shard: String,
    },
    /// Some shards do not answer.
    #[error("these shards have too few members: {shards}")]
    NotReady {
        /// Their names.
        shards: String,
    },
    /// Too much is in progress.
    #[error("too many calls are in progress: the call was not executed")]
    Busy,
    /// The call is longer than any may be.
    #[error("the call has {bytes} bytes; accepted are at most {bytes_max}")]
    TooLarge {
        /// Its length.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// The answer is longer than any may be. An ordered call was executed.
    #[error(
        "the answer has {bytes} bytes; at most {bytes_max} are given; an ordered call was executed"
    )]
    LongAnswer {
        /// Its length.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// The disk is full.
    #[error("the disk is full: the call was not executed")]
    DiskFull,
    /// All members have stopped, or the one that was asked for.
    #[error("the members have stopped: the call was not executed")]
    Stopped,
    /// The group has no such member.
    #[error("the group has no member {member}")]
    NoSuchMember {
        /// As asked for.
        member: usize,
    },
    /// That member runs in another process, and this one was not told where it serves calls.
    #[error(
        "member {member} runs in another process: name the addresses at which members serve calls \
         (calls_at)"
    )]
    NoWay {
        /// The member that was asked for.
        member: usize,
    },
    /// The member that was asked for does not answer for that shard: it is none of its members now,
    /// or their protocol has others answer.
    #[error("member {member} does not answer for shard '{shard}'")]
    NotThere {
        /// The shard.
        shard: String,
        /// The member.
        member: usize,
    },
    /// Versions of two shards are not comparable.
    #[error("shard '{shard}' reads other shards, whose versions differ: ask for a time")]
    NoCommonVersion {
        /// The shard.
        shard: String,
    },
    /// The group has no such shard.
    #[error("there is no shard '{shard}' of service '{service}' in this group")]
    NoSuchShard {
        /// As asked for.
        shard: String,
        /// The service's name.
        service: &'static str,
    },
    /// Caller and members were built from different services.
    #[error(
        "shard '{shard}' has no such method, or none with these types: caller and members were \
         built from different services"
    )]
    Schema {
        /// The shard.
        shard: String,
    },
    /// The call was executed, and what it has handed off has not been yet; it will be.
    #[error("the call was executed; its hand-offs wait for {}", shards.join(", "))]
    NotHandedOff {
        /// The shards that they are for.
        shards: Vec<String>,
    },
    /// A handler must not wait for another call, nor look at the answer of one that was made elsewhere:
    /// it runs at its place in the order, and the same at every member.
    #[error("a handler runs at its place in the order and must not wait for another call")]
    InsideHandler,
    /// A handler panicked. An ordered one did so at every member: where `stopped` is true the shard
    /// executes nothing any more, its past can still be read.
    #[error(
        "method '{method}' of shard '{shard}' panicked behind version {version}: {message}{}",
        if *stopped { "; the shard has stopped, its past can be read" } else { "" }
    )]
    Panicked {
        /// The shard.
        shard: String,
        /// The handler's method.
        method: String,
        /// The last version before.
        version: Version,
        /// The text of the panic.
        message: String,
        /// Whether the shard has stopped.
        stopped: bool,
    },
    /// The caller has seen a time of another shard that this one's log will not reach soon: the
    /// clocks of the members differ. Call again.
    #[error(
        "shard '{shard}' is {ahead:?} behind a time that this program has seen elsewhere: the call \
         was not executed; the clocks of the members differ"
    )]
    ClockSkew {
        /// The shard.
        shard: String,
        /// By this much.
        ahead: Duration,
    },
    /// That version or time is not kept any more.
    #[error("the past of shard '{shard}' is kept from version {oldest} ({time}) on")]
    Trimmed {
        /// The shard.
        shard: String,
        /// The oldest version that is kept.
        oldest: Version,
        /// Its time.
        time: Time,
    },
    /// One read of the past takes more values from the member's disk than a member reads at once, while
    /// its shards wait: ask for fewer keys in each call.
    #[error(
        "one read of the past of shard '{shard}' takes more than {} values or {} MiB from its member's \
         disk: read fewer keys in each call",
        past::VALUES_MAX,
        past::BYTES_MAX >> 20
    )]
    TooMuchPast {
        /// The shard.
        shard: String,
    },
    /// That version or time has not come.
    #[error("that version or time has not come yet, by the log's clock")]
    NotYet,
    /// The service has fields without a past.
    #[error("the service has a field that keeps no versions")]
    NotKept,
}

impl CallError {
    /// The error that a caller is told.
    #[must_use]
    pub fn of_fault(fault: Fault, shard: &str) -> Self {
        let shard = shard.to_owned();
        match fault {
            Fault::Schema => Self::Schema { shard },
            Fault::TooLarge { bytes, bytes_max } => Self::TooLarge {
                bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
                bytes_max: usize::try_from(bytes_max).unwrap_or(usize::MAX),
            },
            Fault::LongAnswer { bytes, bytes_max } => Self::LongAnswer {
                bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
                bytes_max: usize::try_from(bytes_max).unwrap_or(usize::MAX),
            },
            Fault::Busy | Fault::Early { .. } | Fault::NotLent => Self::Busy,
            Fault::NotThere { member } => Self::NotThere {
                shard,
                member: member.into(),
            },
            Fault::Panicked {
                method,
                version,
                message,
                stopped,
            } => Self::Panicked {
                shard,
                method,
                version: Version(version),
                message,
                stopped,
            },
            Fault::ClockSkew { ahead } => Self::ClockSkew {
                shard,
                ahead: Duration::from_nanos(ahead),
            },
            Fault::TooMuchPast => Self::TooMuchPast { shard },
            Fault::Trimmed { version, time } => Self::Trimmed {
                shard,
                oldest: Version(version),
                time: Time(CommandTime(time)),
            },
        }
    }
}
