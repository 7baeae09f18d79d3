//! Mistakes in TOML files: where they are, and what was meant.

use crate::{Failure, suggest};

/// The place and the meaning of a mistake.
pub fn failure(error: &toml::de::Error, text: &str, file: &str) -> Failure {
    let line = error.span().map_or(1, |span| {
        1 + text[..span.start.min(text.len())].matches('\n').count()
    });
    let message = error.message().trim();
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let place = format!("{file}:{line}");
    match (message.starts_with("unknown "), quoted.split_first()) {
        (true, Some((typed, known))) if !known.is_empty() => {
            let what = if message.starts_with("unknown variant") {
                "value"
            } else {
                "key"
            };
            Failure::usage(format!("{place}: unknown {what} '{typed}'"))
                .help(suggest::remedy(typed, known))
        }
        _ => Failure::usage(format!("{place}: {message}")),
    }
}
