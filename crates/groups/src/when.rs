//! Versions and times, and which of them a query asks for.

use quintet_replica::CommandTime;
use serde::{Deserialize, Serialize};
use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// A version of a shard: 0 before the first command that changes something, then one more for each.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Version(pub u64);

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// A time by the log's clock, which never goes back and is equal at all members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub CommandTime);

impl fmt::Display for Time {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = UNIX_EPOCH + Duration::from_nanos(self.0.0);
        humantime::format_rfc3339_nanos(time).fmt(formatter)
    }
}

impl From<SystemTime> for Time {
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(CommandTime(
            u64::try_from(since.as_nanos()).unwrap_or(u64::MAX - 1),
        ))
    }
}

/// Which state a query asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// That of a version: permanently the same, until it is trimmed.
    Version(Version),
    /// That of a time: the last version with a time up to it, permanently the same. A time that is
    /// to come is waited for.
    Time(Time),
}

impl When {
    /// The time that a text such as `2026-11-21T12:00:00Z` means.
    ///
    /// # Errors
    /// When it is none.
    pub fn time(text: &str) -> Result<Self, NoTime> {
        let time = humantime::parse_rfc3339_weak(text).map_err(|_| NoTime(text.to_owned()))?;
        Ok(Self::from(time))
    }
}

impl When {
    /// A time as [`Self::time`] reads it, `now`, or `v:VERSION`.
    ///
    /// # Errors
    /// When it is none of these.
    pub fn read(text: &str) -> Result<Self, NoTime> {
        match text.strip_prefix("v:") {
            _ if text.eq_ignore_ascii_case("now") => Ok(SystemTime::now().into()),
            Some(version) => {
                let version = version.parse().map_err(|_| NoTime(text.to_owned()))?;
                Ok(Self::Version(Version(version)))
            }
            None => Self::time(text),
        }
    }
}

/// A text that is no time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a time; accepted are such as 2026-11-21T12:00:00Z, now, v:VERSION")]
pub struct NoTime(String);

impl From<Version> for When {
    fn from(version: Version) -> Self {
        Self::Version(version)
    }
}

impl From<Time> for When {
    fn from(time: Time) -> Self {
        Self::Time(time)
    }
}

impl From<SystemTime> for When {
    fn from(time: SystemTime) -> Self {
        Self::Time(time.into())
    }
}
