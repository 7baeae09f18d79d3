//! Protocols and their options as arguments name them.

use crate::{Failure, Outcome, suggest};
use quintet_replica::{Entry, OptionError};

/// The registered protocol of that name.
///
/// # Errors
/// With a suggestion when there is none.
pub fn find(name: &str) -> Outcome<&'static Entry> {
    let entries = quintet_protocols::PROTOCOLS.iter();
    let known: Vec<_> = entries.clone().map(|entry| entry.info.name).collect();
    entries
        .into_iter()
        .find(|entry| entry.info.name == name)
        .ok_or_else(|| {
            Failure::usage(format!("unknown protocol '{name}'")).help(suggest::remedy(name, &known))
        })
}

/// Checks a protocol's options.
///
/// # Errors
/// With the option's name, if one is to blame, and a suggestion.
pub fn check_options(
    entry: &Entry,
    options: &[(String, String)],
) -> Result<(), (Option<String>, Failure)> {
    (entry.check)(options).map_err(|error| match error {
        OptionError::Unknown { protocol, name } => {
            let known: Vec<_> = entry.options.iter().map(|spec| spec.name).collect();
            let failure = Failure::usage(format!("protocol '{protocol}' has no option '{name}'"))
                .help(suggest::remedy(&name, &known));
            (Some(name), failure)
        }
        OptionError::Value { name, reason } => {
            let failure = Failure::usage(format!("option '{name}': {reason}"));
            (Some(name), failure)
        }
        error @ (OptionError::Together(_)
        | OptionError::Unordered(_)
        | OptionError::UnorderedOnDisk(_)) => (None, Failure::usage(error.to_string())),
    })?;
    if (entry.unordered)(options) {
        let error = OptionError::Unordered(entry.info.name);
        let help = "leave the option out; it is for services of one's own and for `quintet lab`";
        return Err((None, Failure::usage(error.to_string()).help(help)));
    }
    Ok(())
}

/// Reads `option=value`.
///
/// # Errors
/// With what is accepted.
pub fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err(format!("'{text}' is not option=value")),
    }
}
