//! A private place for what needs rights: mounts and network namespaces that vanish with the
//! process.
//!
//! ```text
//!   quintet torture ──exec──► unshare --mount [--net] [--user --map-root-user] ──exec──►
//!       quintet torture --inside …      same process id, same terminal, same Ctrl-C
//!         ├─ mount tmpfs            a small disk that can be filled
//!         └─ ip netns add, ip link  namespaces and a private bridge
//! ```
//!
//! Nothing has to be taken down: the kernel does it when the last process inside is gone, even if
//! that was killed. Without the right to do so the faults that need it are skipped, with a reason.

use std::{
    io,
    path::Path,
    process::{Command, Stdio},
};

/// The private parts of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Private {
    /// The network, too; mounts always are.
    pub network: bool,
}

/// Runs a program to its end.
///
/// # Errors
/// With what it said, when it failed or could not be run.
pub fn command(program: &str, arguments: &[&str]) -> io::Result<()> {
    let shown = || format!("{program} {}", arguments.join(" "));
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", shown())))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{}: {}", shown(), said.trim())))
}

/// How to make a sandbox here: the arguments of `unshare`.
///
/// # Errors
/// Why it cannot be made.
pub fn arguments(private: Private) -> Result<Vec<&'static str>, String> {
    let mut wanted = vec!["--mount"];
    if private.network {
        wanted.push("--net");
    }
    let as_root = [wanted.as_slice(), &["--user", "--map-root-user"]].concat();
    let mut reason = String::new();
    for arguments in [wanted, as_root] {
        // The probe does what will be done: a small file system, and a namespace inside.
        let mut script = "mount -t tmpfs -o size=1m none /run".to_owned();
        if private.network {
            script.push_str(
                " && mkdir -p /run/netns && ip netns add qtprobe && ip link add qtb type bridge \
                 && command -v ss > /dev/null && command -v nsenter > /dev/null",
            );
        }
        let mut words = arguments.clone();
        words.extend(["--", "sh", "-c", script.as_str()]);
        match command("unshare", &words) {
            Ok(()) => return Ok(arguments),
            Err(error) => reason = error.to_string(),
        }
    }
    Err(reason)
}

/// Makes the sandbox's own `/run`, where namespaces get their names. To be called inside, once.
///
/// # Errors
/// When a right is missing.
pub fn prepare() -> io::Result<()> {
    command("mount", &["-t", "tmpfs", "-o", "size=8m", "none", "/run"])?;
    std::fs::create_dir_all("/run/netns")
}

/// Mounts a small file system in memory.
///
/// # Errors
/// When a right is missing.
pub fn mount_small(at: &Path, bytes: u64) -> io::Result<()> {
    let size = format!("size={bytes}");
    let at = at
        .to_str()
        .ok_or_else(|| io::Error::other("the path is not UTF-8"))?;
    command("mount", &["-t", "tmpfs", "-o", &size, "none", at])
}

/// Undoes [`mount_small`].
///
/// # Errors
/// When it is in use.
pub fn unmount(at: &Path) -> io::Result<()> {
    let at = at
        .to_str()
        .ok_or_else(|| io::Error::other("the path is not UTF-8"))?;
    command("umount", &[at])
}
