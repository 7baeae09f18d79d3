//! Plays transcripts and shows where what happens differs from what is written.
//!
//! ```text
//!   transcript PROTOCOL [--rewrite] [FILE]… [OPTION=VALUE]…     all of the protocol's, or these
//!   transcript                                                  the language
//! ```
//!
//! Exit 1 when something differs. `--rewrite` writes what happens into the files.

use quintet_simulator::transcript::{COMMANDS, check_file, files};
use std::{path::PathBuf, process::ExitCode};

fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let rewrite = words.iter().any(|word| word == "--rewrite");
    words.retain(|word| word != "--rewrite");
    let Some(protocol) = words.first().cloned() else {
        println!("{COMMANDS}");
        return ExitCode::SUCCESS;
    };
    let (options, named): (Vec<String>, Vec<String>) = words
        .split_off(1)
        .into_iter()
        .partition(|word| word.contains('='));
    let options: Vec<(String, String)> = (options.iter())
        .filter_map(|option| option.split_once('='))
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .collect();
    let mut chosen: Vec<PathBuf> = named.iter().map(PathBuf::from).collect();
    if chosen.is_empty() {
        chosen = files(&protocol);
    }
    let mut wrong = 0;
    for file in &chosen {
        if let Err(what) = check_file(&protocol, file, &options, rewrite) {
            println!("{what}");
            wrong += 1;
        }
    }
    println!("{} transcripts, {wrong} differ", chosen.len());
    ExitCode::from(u8::from(wrong > 0))
}
