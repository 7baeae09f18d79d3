//! Two programs: `quintet` serves, `quintet-lab` simulates, tests and measures. The one that serves
//! cannot reach the code of the other; it starts it in its own place, so that signals and the exit
//! code are the other's own.
//!
//! ```text
//!   quintet simulate X ──► exec quintet-lab simulate X
//!   quintet lab X      ──► exec quintet-lab X            ──► starts quintet serve …
//! ```

use crate::{Exit, Failure, Outcome};
use std::{
    env,
    ffi::OsString,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
};

/// The program that serves, and the variable that may name another build of it.
pub const QUINTET: (&str, &str) = ("quintet", "QUINTET_PROGRAM");

/// The program that measures, and the variable that may name another build of it.
pub const LAB: (&str, &str) = ("quintet-lab", "QUINTET_LAB");

/// The command of `quintet` whose arguments name a command of `quintet-lab`.
pub const LAB_COMMAND: &str = "lab";

/// The commands of `quintet` that `quintet-lab` carries out, with what `--help` says of each.
pub const LAB_COMMANDS: [(&str, &str); 5] = [
    ("bench", "Measure a store's throughput and latency"),
    (
        LAB_COMMAND,
        "Measure protocols and systems beside each other",
    ),
    (
        "simulate",
        "Run a protocol's code under faults, in virtual time, and check what it promises",
    ),
    (
        "check",
        "Check a recorded history of clients for linearizability",
    ),
    (
        "torture",
        "Run real replicas under real faults, and check what their clients saw",
    ),
];

/// Finds a program of the same installation: where its variable says, beside this program, or on
/// the path.
///
/// # Errors
/// When it is in none of these places, with how to build it.
pub fn find((name, variable): (&str, &str)) -> Outcome<PathBuf> {
    if let Some(named) = env::var_os(variable).filter(|value| !value.is_empty()) {
        let path = PathBuf::from(named);
        if is_program(&path) {
            return Ok(path);
        }
        return Err(Failure::usage(format!(
            "{variable}: there is no program {}",
            path.display()
        )));
    }
    let own = env::current_exe()?;
    let beside = own.parent().map(|directory| directory.join(name));
    let on_path = env::var_os("PATH").unwrap_or_default();
    beside
        .into_iter()
        .chain(
            env::split_paths(&on_path)
                .filter(|directory| directory.is_absolute())
                .map(|directory| directory.join(name)),
        )
        .find(|path| is_program(path))
        .ok_or_else(|| {
            Failure::usage(format!("the program '{name}' is not installed")).help(format!(
                "run `cargo build --release -p {name}`, or set {variable} to where it is"
            ))
        })
}

fn is_program(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Keeps this program's settings from one that it starts, but for what is logged.
pub fn without_settings(command: &mut Command) {
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("QUINTET_") && name != "QUINTET_LOG" {
            command.env_remove(name);
        }
    }
}

/// Becomes `quintet-lab` with these arguments; returns only with why it cannot.
pub fn become_lab(command: &str, arguments: &[OsString], log: Option<&str>) -> Failure {
    let program = match find(LAB) {
        Ok(program) => program,
        Err(failure) => return failure,
    };
    let mut process = Command::new(&program);
    // As people called it, for what it says of its usage.
    if command == LAB_COMMAND {
        process.arg0(format!("{} {LAB_COMMAND}", QUINTET.0));
    } else {
        process.arg0(QUINTET.0).arg(command);
    }
    process.args(arguments);
    if let Some(filter) = log {
        process.env("QUINTET_LOG", filter);
    }
    if env::var_os(QUINTET.1).is_none()
        && let Ok(own) = env::current_exe()
    {
        // The child starts and measures this build.
        process.env(QUINTET.1, own);
    }
    let error = process.exec();
    Failure::new(Exit::Failed, format!("{}: {error}", program.display()))
}
