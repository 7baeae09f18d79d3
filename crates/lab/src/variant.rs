//! A protocol as it is to be measured: with options of its own, or with reads that may be old.
//!
//! ```text
//!   "chain_paxos+reads=chain+stale" ──parse──► protocol, options, whether reads may be old
//!   "racs/sadl"                     ──parse──► protocol, with the options that a scenario has
//!                                              under this name
//! ```
//!
//! What is to be compared stands in one run, so that a variant is named where a protocol is.

use crate::scenario::Scenario;

use std::fmt::{self, Display, Formatter};

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    /// The protocol, perhaps with a word of the scenario's behind it.
    pub named: String,
    /// Options: name and value.
    pub options: Vec<(String, String)>,
    /// Reads are answered from the state of the replica that is asked, however old.
    pub stale: bool,
}

impl Variant {
    /// Reads `PROTOCOL[/WORD][+stale][+OPTION=VALUE]…`.
    ///
    /// # Errors
    /// With what is accepted.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split('+');
        let mut variant = Self {
            named: words.next().unwrap_or_default().to_owned(),
            options: Vec::new(),
            stale: false,
        };
        for word in words {
            match word.split_once('=') {
                Some((name, value)) => variant.options.push((name.to_owned(), value.to_owned())),
                None if word == "stale" => variant.stale = true,
                None => {
                    return Err(format!(
                        "'{text}': behind '+' stands 'stale' or OPTION=VALUE, not '{word}'"
                    ));
                }
            }
        }
        let entry =
            quintet_protocols::find(variant.protocol()).map_err(|error| error.to_string())?;
        (entry.check)(&variant.options).map_err(|error| format!("'{text}': {error}"))?;
        Ok(variant)
    }

    /// What the registry calls it.
    pub fn protocol(&self) -> &str {
        Scenario::base(&self.named)
    }
}

impl Display for Variant {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.named)?;
        for (name, value) in &self.options {
            write!(f, "+{name}={value}")?;
        }
        f.write_str(if self.stale { "+stale" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variant_is_read_and_written_alike() {
        for text in [
            "multipaxos",
            "multipaxos+stale",
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
    fn what_is_no_variant_is_refused_with_what_is_accepted() {
        for (text, expected) in [
            ("chain_paxso", "chain_paxos"),
            ("chain_paxos+fast", "'stale' or OPTION=VALUE"),
            ("chain_paxos+reads=tail", "neither 'local' nor 'chain'"),
            ("chain_paxos+red=tail", "red"),
        ] {
            let error = Variant::parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
