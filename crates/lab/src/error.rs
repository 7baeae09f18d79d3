//! What can go wrong in the lab, and what to do about it.

use std::fmt;

/// Which kind of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What was asked for makes no sense.
    Usage,
    /// Something that is needed is not installed or does not answer.
    Missing,
    /// It failed otherwise.
    Failed,
}

/// A failure with its remedy.
#[derive(Clone, Debug, thiserror::Error)]
pub struct Error {
    /// Which kind.
    pub kind: Kind,
    /// What is wrong, and where.
    pub message: String,
    /// What can be done about it.
    pub help: Option<String>,
}

/// What the lab returns.
pub type Result<T> = std::result::Result<T, Error>;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.message)?;
        match &self.help {
            Some(help) => write!(f, " ({help})"),
            None => Ok(()),
        }
    }
}

impl Error {
    /// A failure without a remedy.
    pub fn new(kind: Kind, message: impl fmt::Display) -> Self {
        Self {
            kind,
            message: message.to_string(),
            help: None,
        }
    }

    /// What was asked for makes no sense.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self::new(Kind::Usage, message)
    }

    /// It failed.
    pub fn failed(message: impl fmt::Display) -> Self {
        Self::new(Kind::Failed, message)
    }

    /// With what can be done about it.
    #[must_use]
    pub fn help(mut self, help: impl fmt::Display) -> Self {
        self.help = Some(help.to_string());
        self
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::failed(error)
    }
}
