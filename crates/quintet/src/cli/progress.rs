//! How a change of a cluster comes along, told on standard error while it is waited for.
//!
//! ```text
//!   /status ──► ordering ──► the epoch has ended, its state is saved or fetched ──► (done)
//! ```

use crate::cli::status;
use quintet_cli::http::{self, Answer};
use serde_json::Value;
use std::{
    io,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

/// Between two looks at what is waited for.
pub const LOOK: Duration = Duration::from_millis(200);
const ANSWER: Duration = Duration::from_secs(1);

/// Tells each line once.
#[derive(Debug, Default)]
pub struct Progress {
    last: String,
}

impl Progress {
    /// Whether this line is another than the last one told.
    pub fn is_new(&mut self, line: &str) -> bool {
        let new = self.last != line;
        if new {
            line.clone_into(&mut self.last);
        }
        new
    }

    /// Tells a line on standard error.
    pub fn tell(&mut self, line: &str) {
        if self.is_new(line) {
            eprintln!("{line}");
        }
    }

    fn look(&mut self, address: &str) {
        let status = http::get(address, "/status", ANSWER).ok();
        let status = status.and_then(|answer| serde_json::from_slice(&answer.body).ok());
        if let Some(line) = status.as_ref().and_then(line_of) {
            self.tell(&line);
        }
    }
}

/// The step that a replica is at, if others may wait for it.
pub fn line_of(status: &Value) -> Option<String> {
    if let Some(line) = status::transfer(status) {
        return Some(line);
    }
    let (id, epoch) = (&status["id"], &status["epoch"]);
    match status["change"].as_str()? {
        "preparing" => Some(format!(
            "replica {id}: members save their state before epoch {epoch} ends"
        )),
        "ordering" => Some(format!(
            "replica {id}: the change is being ordered in epoch {epoch}"
        )),
        "sealed" => Some(format!(
            "replica {id}: epoch {epoch} has ended; its state is being saved for the next one"
        )),
        _ => None,
    }
}

/// Posts a request and tells meanwhile what happens at that replica.
///
/// # Errors
/// As [`http::request_with`].
pub fn post(address: &str, path: &str, body: &str, timeout: Duration) -> io::Result<Answer> {
    let (sender, answer) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            // It is waited for until it comes.
            let _ = sender.send(http::request_with("POST", address, path, body, timeout));
        });
        let mut progress = Progress::default();
        loop {
            match answer.recv_timeout(LOOK) {
                Ok(answer) => return answer,
                Err(RecvTimeoutError::Timeout) => progress.look(address),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(io::Error::other("the request was not made"));
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn steps_of_a_change_are_told_each_once() {
        let ordering = json!({"id": 1, "epoch": 4, "change": "ordering"});
        let told = line_of(&ordering).unwrap();
        assert_eq!(told, "replica 1: the change is being ordered in epoch 4");
        let sealed = json!({"id": 1, "epoch": 4, "change": "sealed"});
        assert!(line_of(&sealed).unwrap().contains("epoch 4 has ended"));
        let transfer =
            json!({"phase": "receiving", "donor": 0, "bytes": 1 << 20, "total": 2 << 20});
        let receiving = json!({"id": 1, "epoch": 4, "change": "none", "transfer": transfer});
        let told = line_of(&receiving).unwrap();
        assert!(told.contains("1.0 of 2.0 MiB (50 %)"), "{told}");
        assert_eq!(
            line_of(&json!({"id": 1, "epoch": 5, "change": "none"})),
            None
        );
        let mut progress = Progress::default();
        assert!(progress.is_new("a") && !progress.is_new("a") && progress.is_new("b"));
    }
}
