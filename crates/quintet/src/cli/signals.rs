//! Ctrl-C and SIGTERM as messages on a channel.

use crate::cli::failure::{Exit, Failure, Outcome};
use std::sync::mpsc::{Receiver, Sender, channel};

/// From now on every Ctrl-C (SIGINT), SIGTERM and SIGHUP is a message here instead of the end of
/// the process.
///
/// # Errors
/// When the operating system refuses.
pub fn channel_of_stops() -> Outcome<(Sender<()>, Receiver<()>)> {
    let (sender, receiver) = channel();
    let handler = sender.clone();
    ctrlc::set_handler(move || {
        // Nobody listens any more: the process is about to end anyway.
        let _ = handler.send(());
    })
    .map_err(|error| Failure::new(Exit::Failed, format!("cannot handle signals: {error}")))?;
    Ok((sender, receiver))
}
