//! Which faults a torture may use, and what each was worth.
//!
//! ```text
//!   --faults kill,stop ──► FaultSet ──► one drawn after another ──► counted under kind and variant
//! ```

use std::{fmt, str::FromStr};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// kill -9: the leader, one, a minority, all (disk durability only).
    Kill,
    /// SIGSTOP, later SIGCONT: the leader, one, a minority, a majority.
    Stop,
    /// Links that carry nothing, in one direction or both.
    Partition,
    /// Connections that break, what was in progress lost.
    Reset,
    /// A disk without room.
    Disk,
    /// A disk that is slow: others write and sync on it without pause.
    Slow,
    /// Corrupted bytes in the files of one replica, or of a minority.
    Corrupt,
    /// SIGTERM to one after the other.
    Rolling,
    /// Replicas that are replaced, more of them, and fewer again.
    Members,
    /// Another protocol.
    Protocol,
    /// Hostile clients and strangers.
    Clients,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 11] = [
        Self::Kill,
        Self::Stop,
        Self::Partition,
        Self::Reset,
        Self::Disk,
        Self::Slow,
        Self::Corrupt,
        Self::Rolling,
        Self::Members,
        Self::Protocol,
        Self::Clients,
    ];

    /// As on the command line and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Partition => "partition",
            Self::Reset => "reset",
            Self::Disk => "disk",
            Self::Slow => "slow",
            Self::Corrupt => "corrupt",
            Self::Rolling => "rolling",
            Self::Members => "members",
            Self::Protocol => "protocol",
            Self::Clients => "clients",
        }
    }
}

/// The kinds that may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultSet(u16);

impl FaultSet {
    /// No faults.
    pub const NONE: Self = Self(0);

    /// All of them but changes of the cluster, which other faults are named with, and hostile clients,
    /// who need replicas that nothing else troubles: what they cause is told from what faults cause
    /// by that alone.
    #[must_use]
    pub fn all() -> Self {
        let all = Kind::ALL.into_iter().fold(Self::NONE, Self::with);
        let changes = [Kind::Members, Kind::Protocol, Kind::Clients];
        changes.into_iter().fold(all, Self::without)
    }

    /// Whether members change, and so their addresses.
    #[must_use]
    pub const fn moves(self) -> bool {
        self.has(Kind::Members)
    }

    /// With this kind, too.
    #[must_use]
    pub const fn with(self, kind: Kind) -> Self {
        Self(self.0 | 1 << kind as u16)
    }

    /// Without this kind.
    #[must_use]
    pub const fn without(self, kind: Kind) -> Self {
        Self(self.0 & !(1 << kind as u16))
    }

    /// Whether this kind may be used.
    #[must_use]
    pub const fn has(self, kind: Kind) -> bool {
        self.0 & (1 << kind as u16) != 0
    }

    /// The kinds in it.
    #[must_use]
    pub fn kinds(self) -> Vec<Kind> {
        Kind::ALL
            .into_iter()
            .filter(|kind| self.has(*kind))
            .collect()
    }
}

impl FromStr for FaultSet {
    type Err = String;

    /// `none`, `all`, or names separated by commas.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut set = Self::NONE;
        for name in text.split(',').map(str::trim) {
            match (name, Kind::ALL.into_iter().find(|kind| kind.name() == name)) {
                (_, Some(kind)) => set = set.with(kind),
                ("all", None) => set = Self::all(),
                ("none", None) => {}
                _ => {
                    let names: Vec<_> = Kind::ALL.iter().map(|kind| kind.name()).collect();
                    return Err(format!(
                        "'{name}' is no kind of fault: none, {}, all, or several separated by \
                         commas",
                        names.join(", ")
                    ));
                }
            }
        }
        Ok(set)
    }
}

impl fmt::Display for FaultSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.kinds().into_iter().map(Kind::name).collect();
        match names.as_slice() {
            [] => f.write_str("none"),
            _ if *self == Self::all() => f.write_str("all"),
            names => f.write_str(&names.join(",")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_read_as_they_are_shown() {
        for text in [
            "none",
            "all",
            "kill,stop",
            "disk",
            "reset,rolling",
            "kill,members,protocol",
            "clients",
        ] {
            assert_eq!(text.parse::<FaultSet>().unwrap().to_string(), text);
        }
        let error = "kill,flood".parse::<FaultSet>().unwrap_err();
        assert!(error.contains("'flood'") && error.contains("partition"));
    }
}
