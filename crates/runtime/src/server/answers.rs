//! Shared by all commands that are answered without the log.

use quintet_store::{CommandError, Op};

/// The result of a command that is answered here.
pub(super) type Answer = Result<(), CommandError>;

pub(super) fn owned(text: impl Into<String>) -> CommandError {
    CommandError::Owned(text.into())
}

pub(super) fn is(given: &[u8], name: &str) -> bool {
    given.eq_ignore_ascii_case(name.as_bytes())
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether a command is answered here although the store's table has no answer to it.
pub(super) const fn is_answered(op: Op) -> bool {
    matches!(
        op,
        Op::Wait
            | Op::Cluster
            | Op::Readonly
            | Op::Readwrite
            | Op::Asking
            | Op::Latency
            | Op::Slowlog
            | Op::Module
    )
}
