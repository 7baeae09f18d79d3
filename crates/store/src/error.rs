//! Why a command failed, in Redis's words.

/// The result of a command.
pub type CommandResult = Result<(), CommandError>;

/// An error reply. Clients match on these texts, so they are Redis's own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The key holds a value of another type.
    #[error("WRONGTYPE Operation against a key holding the wrong kind of value")]
    WrongType,
    /// An argument or a value is no integer of 64 bits.
    #[error("ERR value is not an integer or out of range")]
    NotInteger,
    /// An argument or a value is no number.
    #[error("ERR value is not a valid float")]
    NotFloat,
    /// Options that are invalid.
    #[error("ERR syntax error")]
    Syntax,
    /// Any other, with its code in front.
    #[error("{0}")]
    Text(&'static str),
    /// Any other that names what was given, with its code in front.
    #[error("{0}")]
    Owned(String),
}

impl CommandError {
    /// Redis's answer to a subcommand that it does not know.
    #[must_use]
    pub fn unknown_subcommand(subcommand: &[u8], command: &str) -> Self {
        let shown: String = String::from_utf8_lossy(subcommand)
            .chars()
            .take(128)
            .collect();
        Self::Owned(format!(
            "ERR unknown subcommand '{shown}'. Try {command} HELP."
        ))
    }

    /// Redis's answer to a wrong number of arguments of a subcommand, named `object|encoding`.
    #[must_use]
    pub fn arity(command: &str) -> Self {
        Self::Owned(format!(
            "ERR wrong number of arguments for '{command}' command"
        ))
    }

    /// A value would become longer than this store takes.
    #[must_use]
    pub fn value_too_long(bytes: u64, bytes_max: u64) -> Self {
        Self::Owned(format!(
            "ERR value exceeds limits.value_bytes_max ({bytes} > {bytes_max})"
        ))
    }

    /// A key is longer than this store takes.
    #[must_use]
    pub fn key_too_long(bytes: u64, bytes_max: u64) -> Self {
        Self::Owned(format!(
            "ERR key exceeds limits.key_bytes_max ({bytes} > {bytes_max})"
        ))
    }
}
