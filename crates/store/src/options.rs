//! The limits of a store.

use crate::error::CommandError;
use quintet_replica::{Terms, limits};

/// Limits of a store. Part of the replicated state: all replicas of a group must have the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// The longest key, in bytes.
    pub max_key_bytes: usize,
    /// The longest string, field, member or element, in bytes.
    pub max_value_bytes: usize,
    /// The longest reply to one command, in bytes.
    pub max_reply_bytes: usize,
    /// Once the replies of a request, or of a transaction, have that many bytes, its further
    /// commands are executed only if they answer with one line.
    pub max_request_reply_bytes: usize,
    /// How many databases there are, at least 1.
    pub databases: u8,
    /// Seeds the hash that places keys. Derived from a cluster's secret it keeps clients from
    /// choosing keys that collide; SCAN's order and footprints follow from it.
    pub hash_seed: u64,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            max_key_bytes: 512 * 1024 * 1024,
            max_value_bytes: 512 * 1024 * 1024,
            max_reply_bytes: limits::reply_bytes_max(limits::VALUE_BYTES_MAX),
            max_request_reply_bytes: limits::REQUEST_REPLY_BYTES,
            databases: 16,
            hash_seed: 0x7175_696e_7465_7400,
        }
    }
}

impl StoreOptions {
    /// The options that replies and state depend on, by name; without the hash seed, which is
    /// secret.
    #[must_use]
    pub fn terms(&self) -> Terms {
        let number = |name: &str, value: usize| (name.to_owned(), value as u64);
        vec![
            number("databases", usize::from(self.databases)),
            number("key_bytes_max", self.max_key_bytes),
            number("reply_bytes_max", self.max_reply_bytes),
            number("replies_bytes_max", self.max_request_reply_bytes),
            number("value_bytes_max", self.max_value_bytes),
        ]
    }

    /// Refuses a value that is longer than the store takes.
    ///
    /// # Errors
    /// When `bytes` is above the limit.
    pub fn check_value_len(&self, bytes: usize) -> Result<(), CommandError> {
        if bytes > self.max_value_bytes {
            return Err(CommandError::value_too_long(
                bytes as u64,
                self.max_value_bytes as u64,
            ));
        }
        Ok(())
    }

    /// Refuses a key that is longer than the store takes.
    ///
    /// # Errors
    /// When `bytes` is above the limit.
    pub fn check_key_len(&self, bytes: usize) -> Result<(), CommandError> {
        if bytes > self.max_key_bytes {
            return Err(CommandError::key_too_long(
                bytes as u64,
                self.max_key_bytes as u64,
            ));
        }
        Ok(())
    }
}
