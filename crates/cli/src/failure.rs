//! How a command ends: an exit code that scripts can rely on, and a message that says what to do.
//!
//! ```text
//!   Err(Failure) ──► stderr: "error: message" + "  help: remedy" ──► exit code
//! ```

use std::{fmt, process::ExitCode};

/// The exit codes, as `--help` documents them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// It failed for a reason that has no code of its own.
    Failed = 1,
    /// The command line or the configuration is invalid, or a port is taken.
    Usage = 2,
    /// No server answers at the address.
    Unreachable = 3,
    /// Too few replicas reach each other.
    NoQuorum = 4,
    /// The server answers, but not all is well.
    Unhealthy = 5,
    /// A check found a violation.
    Violated = 6,
    /// Data of another cluster, a newer format or a different kind: left as it is.
    Refused = 7,
    /// The disk failed.
    Storage = 8,
}

impl Exit {
    /// The code of a child process as one of ours.
    pub const fn from_code(code: i32) -> Self {
        match code {
            2 => Self::Usage,
            3 => Self::Unreachable,
            4 => Self::NoQuorum,
            5 => Self::Unhealthy,
            6 => Self::Violated,
            7 => Self::Refused,
            8 => Self::Storage,
            _ => Self::Failed,
        }
    }
}

/// Shown at the end of `quintet --help`.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  ok
  1  failed
  2  usage: an unknown flag, key or option, a bad value, a port in use
  3  cannot connect
  4  no quorum
  5  unhealthy
  6  a check was violated
  7  data refused: of another cluster, another kind or a newer format
  8  storage failed";

/// Why a command did not do what it was asked.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The process's exit code.
    pub exit: Exit,
    message: String,
    help: Option<String>,
}

/// The result of every command.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure without a remedy.
    pub fn new(exit: Exit, message: impl fmt::Display) -> Self {
        Self {
            exit,
            message: message.to_string(),
            help: None,
        }
    }

    /// A mistake on the command line or in the configuration.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// With what the person can do about it.
    #[must_use]
    pub fn help(mut self, help: impl fmt::Display) -> Self {
        self.help = Some(help.to_string());
        self
    }

    /// It failed for a reason that has no exit code of its own.
    pub fn failed(message: impl fmt::Display) -> Self {
        Self::new(Exit::Failed, message)
    }

    /// With where the cause stands.
    #[must_use]
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }

    /// Prints it and gives the process's exit code.
    pub fn report(&self) -> ExitCode {
        eprintln!("error: {}", self.message);
        if let Some(help) = &self.help {
            eprintln!("  help: {help}");
        }
        ExitCode::from(self.exit as u8)
    }
}

/// On one line, for logs and for messages that contain it.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.help {
            Some(help) => write!(f, " ({help})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::new(Exit::Failed, format!("{error:#}"))
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(Exit::Failed, error)
    }
}
