//! Sessions: how a command is executed exactly once however often it is sent.
/// A client's session: its owner (one per server process or client library) and the owner's
/// number for it, ascending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId {
    /// Who opened it, drawn at random when the owner starts.
    pub owner: u64,
    /// The owner's number for it, from 1; never used twice.
    pub number: u64,
}
