//! `quintet mount`: the store, or the shards of services, as files, also as they were.
//!
//! ```text
//!   DIRECTORY/db0/KEY                   what the key holds
//!   DIRECTORY/db0@TIME/KEY              what it held then: permanently the same
//!   DIRECTORY/store/3/items/KEY         a map of a service; store/3/items@TIME/KEY, store/3@TIME/items/KEY
//!   DIRECTORY/counter/0/value           any other field; counter/0/value@v:17
//!
//!   kernel ──► Files ──► Tree: store    ──► QUINTET.AT TIME …                ──► Server: any replica or proxy
//!                         └── services  ──► QUINTET.VALUE … AT TIME          ──► Server: any server of calls
//! ```
//!
//! Read only. A name with a time need not be listed to be entered. An open file keeps what it had when
//! it was opened.

mod files;
mod names;
mod server;
mod services;
mod store;

use crate::cli::password::Password;
use clap::Args;
use files::{Files, Tree};
use fuser::{BackgroundSession, Config, MountOption};
use quintet_cli::{
    Exit, Failure, Outcome, output,
    signals::{Hangup, channel_of_stops},
};
use server::{Ask, Server};
use services::Services;
use std::{io, path::PathBuf, sync::mpsc::RecvTimeoutError, time::Duration};
use store::Store;

/// Requests of the kernel that are answered at once.
const THREADS: usize = 4;

/// Mount the store, or services, as a directory of files, also as it was at a time
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet mount /mnt/store                              the demo
  quintet mount /mnt/store --server 10.0.0.1:6379 --server 10.0.0.2:6379
  cat /mnt/store/db0/greeting
  diff -r /mnt/store/db0@2026-11-21T12:00:00Z /mnt/store/db0
  quintet mount /mnt/services --server 10.0.0.1:7201     where a member serves calls
  cat /mnt/services/store/3/items/pallet /mnt/services/counter/0/value@v:17
  diff -r /mnt/services/store/3/items@2026-11-21T12:00:00Z /mnt/services/store/3/items

Read only. A name with @ and a time need not be listed to be entered; what it shows never changes. In
the store a time is as of QUINTET.AT, and the cluster must keep the past for it: redis-cli -p 7001
QUINTET.RETAIN SECONDS 3600 BYTES 268435456. In services it is 2026-11-21T12:00:00Z or v:VERSION, and
stands behind the name of a shard or a field. Names of keys are percent-encoded where a file's name
needs it; keys with a name above 255 bytes are not shown. Ctrl-C or umount ends it.")]
pub struct Mount {
    /// An empty directory
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,

    /// Where a replica or a proxy serves Redis clients, or a member of a group serves calls; repeated,
    /// another one when it fails
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7001")]
    server: Vec<String>,

    #[command(flatten)]
    password: Password,
}

impl Mount {
    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    pub fn run(self) -> Outcome {
        let password = self.password.as_deref().map(str::to_owned);
        let server = Server::new(self.server.clone(), password);
        server.ask(&[b"PING"]).map_err(|error| {
            Failure::new(
                Exit::Unreachable,
                format!("{}: {error}", self.server.join(", ")),
            )
            .help("name a replica or a server of calls that runs with --server HOST:PORT")
        })?;
        let (_sender, stops) = channel_of_stops(Hangup::Stops)?;
        // Only a server of calls knows the command.
        let session = match server.ask(&[b"QUINTET.SHARDS"]) {
            Ok(_) => self.mount(Services(server)),
            Err(_) => self.mount(Store(server)),
        };
        let directory = self.directory.display();
        let session = session.map_err(|error| {
            let help =
                "the directory must exist, /dev/fuse too, and mounting takes root or fusermount3";
            Failure::new(Exit::Refused, format!("{directory}: {error}")).help(help)
        })?;
        output::print(&format!(
            "{} is mounted on {directory}\n",
            self.server.join(", ")
        ))?;
        loop {
            match stops.recv_timeout(Duration::from_millis(100)) {
                Err(RecvTimeoutError::Timeout) if is_mounted(&session) => {}
                _ => break,
            }
        }
        if !is_mounted(&session) {
            // Another program has unmounted it.
            return Ok(());
        }
        let ended = session.umount_and_join();
        ended.map_err(|error| {
            Failure::new(Exit::Failed, format!("{directory}: {error}"))
                .help("close the files that are open there, then: umount the directory")
        })
    }

    fn mount(&self, tree: impl Tree) -> io::Result<BackgroundSession> {
        let mut options = Config::default();
        options.n_threads = Some(THREADS);
        options.mount_options = vec![
            MountOption::RO,
            MountOption::FSName(self.server.join(",")),
            MountOption::Subtype("quintet".to_owned()),
        ];
        fuser::spawn_mount(Files::new(tree), &self.directory, &options)
    }
}

fn is_mounted(session: &BackgroundSession) -> bool {
    !session.guard.is_finished()
}
