//! A command on one key, ready to be carried out.

use quintet_replica::Bytes;

/// Under which condition SET writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Only {
    #[default]
    Always,
    IfMissing,
    IfPresent,
}

/// A number in an act or an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Count {
    /// 1 when it did something, else 0.
    Done,
    /// OK when it did, nothing else.
    OkOrNil,
    /// The value that was there before.
    Before,
}

/// See the module. Texts are the arguments as given.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Act {
    Get,
    StringLength,
    Exists,
    Kind,
    Ttl,
    Set {
        value: Bytes,
        only: Only,
        count: Count,
        /// `None` keeps what there is.
        expires: Option<bool>,
    },
    CompareAndSet {
        expected: Bytes,
        new: Bytes,
    },
    GetDelete,
    Append(Bytes),
    Add(i64),
    Delete,
    Expire,
    Persist,
    HashSet(Vec<(Bytes, Bytes)>),
    HashSetMissing(Bytes, Bytes),
    HashGet(Bytes),
    HashDelete(Vec<Bytes>),
    HashLength,
    HashExists(Bytes),
    HashGetAll,
    HashAdd(Bytes, i64),
    Push {
        front: bool,
        values: Vec<Bytes>,
    },
    Pop {
        front: bool,
    },
    ListLength,
    /// Length, and a hash over the elements taken as numbers.
    ListDigest,
    ListRange(i64, i64),
    ListIndex(i64),
    SetAdd(Vec<Bytes>),
    SetRemove(Vec<Bytes>),
    SetMembers,
    SetHas(Bytes),
    SetSize,
    /// The key is watched from here on, under the number of the transaction that it is for.
    Watch,
}

impl Act {
    /// Whether it changes no value, whatever the state.
    pub fn only_reads(&self) -> bool {
        matches!(
            self,
            Self::Get
                | Self::StringLength
                | Self::Exists
                | Self::Kind
                | Self::Ttl
                | Self::HashGet(_)
                | Self::HashLength
                | Self::HashExists(_)
                | Self::HashGetAll
                | Self::ListLength
                | Self::ListDigest
                | Self::ListRange(..)
                | Self::ListIndex(_)
                | Self::SetMembers
                | Self::SetHas(_)
                | Self::SetSize
                | Self::Watch
        )
    }
}
