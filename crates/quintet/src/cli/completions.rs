//! `quintet completions SHELL`.

use crate::cli::program;
use clap::Args;
use clap_complete::Shell;
use quintet_cli::{Failure, Outcome, output};

/// Print a completion script for a shell
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet completions bash > ~/.local/share/bash-completion/completions/quintet
  quintet completions zsh > ~/.zfunc/_quintet
  quintet completions fish > ~/.config/fish/completions/quintet.fish")]
pub struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    /// Prints the script.
    pub fn run(self) -> Outcome {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut program(), "quintet", &mut script);
        output::print(&String::from_utf8(script).map_err(Failure::usage)?)
    }
}
