//! A protocol as it is to be measured: with options of its own, or with other reads.
//!
//! ```text
//!   "chain_paxos+reads=chain+stale" ──parse──► protocol, options, what reads need
//!   "racs/sadl"                     ──parse──► protocol, with the options that a scenario has
//!                                              under this name
//! ```
//!
//! All compared variants stand in one run, so that a variant is named where a protocol is.

use quintet_replica::Level;
use std::fmt::{self, Display, Formatter};

/// The name of a protocol or a variant in the registry. A scenario may have it several times, with
/// options of their own: `racs` and `racs/sadl`.
pub fn base(protocol: &str) -> &str {
    protocol.split(['/', '+']).next().unwrap_or(protocol)
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    /// The protocol, perhaps with a word of the scenario's behind it.
    pub named: String,
    /// Options: name and value.
    pub options: Vec<(String, String)>,
    /// The consistency of reads: `stale` ones need the state of the replica that is asked, however
    /// old, `ordered` ones a place in the log, as if they were writes.
    pub reads: Level,
}

impl Variant {
    /// Reads `PROTOCOL[/WORD][+stale|+ordered][+OPTION=VALUE]…`.
    ///
    /// # Errors
    /// With what is accepted.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split('+');
        let mut variant = Self {
            named: words.next().unwrap_or_default().to_owned(),
            options: Vec::new(),
            reads: Level::Linearizable,
        };
        for word in words {
            match word.split_once('=') {
                Some((name, value)) => variant.options.push((name.to_owned(), value.to_owned())),
                None if word == "stale" => variant.reads = Level::Stale,
                None if word == "ordered" => variant.reads = Level::Ordered,
                None => {
                    return Err(format!(
                        "'{text}': behind '+' stands 'stale', 'ordered' or OPTION=VALUE, not '{word}'"
                    ));
                }
            }
        }
        let entry =
            quintet_protocols::find(variant.protocol()).map_err(|error| error.to_string())?;
        (entry.check)(&variant.options).map_err(|error| format!("'{text}': {error}"))?;
        Ok(variant)
    }

    /// The name in the registry.
    pub fn protocol(&self) -> &str {
        base(&self.named)
    }
}

impl Display for Variant {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.named)?;
        for (name, value) in &self.options {
            write!(f, "+{name}={value}")?;
        }
        f.write_str(match self.reads {
            Level::Linearizable => "",
            Level::Stale => "+stale",
            Level::Ordered => "+ordered",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variant_is_read_and_written_alike() {
        for text in [
            "multipaxos",
            "multipaxos+stale",
            "chain_paxos+ordered",
            "racs/sadl",
            "chain_paxos+reads=chain",
            "chain_paxos+reads=chain+window=8+stale",
        ] {
            assert_eq!(Variant::parse(text).unwrap().to_string(), text);
        }
        let variant = Variant::parse("chain_paxos+stale+reads=chain").unwrap();
        assert_eq!(variant.to_string(), "chain_paxos+reads=chain+stale");
    }

    #[test]
    fn unknown_variant_is_rejected_with_accepted_ones() {
        for (text, expected) in [
            ("chain_paxso", "chain_paxos"),
            ("chain_paxos+fast", "'ordered' or OPTION=VALUE"),
            ("chain_paxos+reads=tail", "neither 'local' nor 'chain'"),
            ("chain_paxos+red=tail", "red"),
        ] {
            let error = Variant::parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
