//! A configuration file, as `quintet serve --config FILE` reads it.

use crate::cli::settings;
use std::{cell::RefCell, fs};
use tempfile::NamedTempFile;

thread_local! {
    static FILE: RefCell<Option<NamedTempFile>> = const { RefCell::new(None) };
}

/// A file of these bytes is a configuration, or is refused with a message.
pub fn configuration(bytes: &[u8]) {
    FILE.with_borrow_mut(|slot| {
        if slot.is_none() {
            *slot = NamedTempFile::new().ok();
        }
        let Some(file) = slot else { return };
        if fs::write(file.path(), bytes).is_err() {
            return;
        }
        match settings::load_own(file.path()) {
            Ok(loaded) => {
                let rows = loaded.rows();
                assert!(rows.iter().all(|(name, _, _)| !name.is_empty()));
            }
            Err(failure) => assert!(!failure.to_string().is_empty()),
        }
    });
}

/// A small one, one that sets much, and one with every key.
pub fn samples() -> Vec<Vec<u8>> {
    let small = "cluster = \"6058b469bb0c4b73e048ae9b40302214\"\n\
                 secret = \"4e3d31be33653cbb6f1fd373088ca640f788e3dc2961919f5b225d6767d66da1\"\n\
                 id = 0\n\
                 members = [\"127.0.0.1:7201\", \"127.0.0.1:7202\", \"127.0.0.1:7203\"]\n\
                 data = \"data\"\n\
                 redis_listen = \"127.0.0.1:7001\"\n";
    let more = "protocol = \"multipaxos\"\n\
                durability = \"memory\"\n\
                admin_listen = \"none\"\n\
                [limits]\n\
                memory_max = \"64MiB\"\n\
                [options]\n\
                heartbeat_ms = 50\n\
                pre_vote = false\n";
    let every: String = settings::schema::KEYS
        .iter()
        .map(|key| format!("{} = \"64MiB\"\n", key.name))
        .collect();
    vec![
        small.into(),
        format!("{small}{more}").into_bytes(),
        every.into_bytes(),
    ]
}
