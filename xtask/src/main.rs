//! Tasks of developers: `cargo xtask help` lists them.
//!
//! ```text
//!   words, layout ──► rules that no compiler checks, in this crate
//!   the others    ──► scripts in ci/, with the arguments that follow
//! ```

mod layout;
mod words;

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

/// A script and its help.
type Script = (&'static str, &'static str, &'static str);

const SCRIPTS: [Script; 11] = [
    (
        "ci",
        ".ci/run",
        "all that a change must pass, from a clean clone",
    ),
    (
        "fast",
        "ci/fast",
        "what is worth running before every commit [--strict]",
    ),
    (
        "tests",
        "ci/tests",
        "test programs with the time of each test",
    ),
    (
        "lines",
        "ci/lines",
        "lines of Rust of each protocol [--code]",
    ),
    (
        "simulate",
        "ci/simulate",
        "simulator campaigns of every protocol",
    ),
    (
        "exhaustive",
        "ci/exhaustive",
        "every state of a small scope of each protocol",
    ),
    (
        "bugs",
        "ci/bugs",
        "injects every known bug and looks for it",
    ),
    ("kill", "ci/kill", "kills real replicas under load"),
    (
        "journey",
        "ci/journey",
        "changes all of a cluster that can be changed, under load",
    ),
    (
        "clients",
        "ci/clients",
        "real clients against a real cluster",
    ),
    (
        "af-xdp",
        "ci/af-xdp",
        "datagrams past the kernel's sockets, as root",
    ),
];

/// The checkout around the current directory: this program may run in another than it was built in.
fn root() -> Result<PathBuf, String> {
    let mut git = Command::new("git");
    git.args(["rev-parse", "--show-toplevel"]);
    let output = git.output().map_err(|error| format!("git: {error}"))?;
    match String::from_utf8_lossy(&output.stdout).trim_end() {
        "" => Err("run this in a checkout of the repository".into()),
        root => Ok(PathBuf::from(root)),
    }
}

/// All files that git knows or would add, but for those that are gone.
fn files(root: &Path) -> Result<Vec<String>, String> {
    let mut git = Command::new("git");
    git.args(["ls-files", "--cached", "--others", "--exclude-standard"]);
    let output = git.current_dir(root).output();
    let output = output.map_err(|error| format!("git ls-files: {error}"))?;
    if !output.status.success() {
        return Err("git ls-files failed: run this in a checkout".into());
    }
    let listed = String::from_utf8_lossy(&output.stdout);
    let mut files: Vec<String> = listed.lines().map(str::to_owned).collect();
    files.retain(|file| root.join(file).is_file());
    Ok(files)
}

fn help() -> String {
    let mut text = String::from("cargo xtask TASK [ARGUMENT]…\n\n");
    let own = [
        (
            "words",
            "words that are not used here [--lower | --show PATTERN]",
        ),
        ("layout", "protocols apart, files short, nothing half done"),
    ];
    let scripts = SCRIPTS.iter().map(|(name, _, about)| (*name, *about));
    for (name, about) in own.into_iter().chain(scripts) {
        text += &format!("  {name:<11} {about}\n");
    }
    text
}

/// Runs a script and gives its exit code.
fn run(root: &Path, script: &str, arguments: &[String]) -> Result<ExitCode, String> {
    let mut command = Command::new(root.join(script));
    let status = command.args(arguments).current_dir(root).status();
    let status = status.map_err(|error| format!("{script}: {error}"))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(1)))
}

fn task(arguments: &[String]) -> Result<ExitCode, String> {
    let root = root()?;
    let rest = arguments.get(1..).unwrap_or_default();
    let report = match arguments.first().map(String::as_str) {
        Some("words") => words::main(&root, &files(&root)?, rest)?,
        Some("layout") => layout::main(&root, &files(&root)?)?,
        None | Some("help" | "--help" | "-h") => help(),
        Some(name) => {
            let script = SCRIPTS.iter().find(|(known, ..)| *known == name);
            let (_, script, _) =
                script.ok_or(format!("no task '{name}'; `cargo xtask help` lists them"))?;
            return run(&root, script, rest);
        }
    };
    println!("{}", report.trim_end());
    Ok(ExitCode::SUCCESS)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match task(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_exists_and_is_listed() {
        let root = root().expect("tests run in a checkout");
        let help = help();
        for (name, script, _) in SCRIPTS {
            assert!(root.join(script).is_file(), "{script}");
            assert!(help.contains(&format!("\n  {name} ")), "{name}");
        }
    }

    #[test]
    fn unknown_task_is_an_error() {
        let error = task(&["nonsense".to_owned()]).err();
        assert!(error.is_some_and(|error| error.contains("nonsense")));
    }
}
