//! Ctrl-C, SIGTERM and SIGHUP as messages on a channel.

use crate::{Exit, Failure, Outcome};
use signal_hook::{
    consts::signal::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};
use std::sync::mpsc::{Receiver, Sender, channel};

/// How the process handles SIGHUP, which comes when a terminal closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hangup {
    /// It stops what a person watches.
    Stops,
    /// A server continues, as Redis does.
    Ignored,
}

/// From now on every Ctrl-C (SIGINT) and SIGTERM is a message here instead of the end of the
/// process; SIGHUP too, or it is ignored.
///
/// # Errors
/// When the operating system refuses.
pub fn channel_of_stops(hangup: Hangup) -> Outcome<(Sender<()>, Receiver<()>)> {
    let failed = |error| Failure::new(Exit::Failed, format!("cannot handle signals: {error}"));
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(failed)?;
    let (sender, receiver) = channel();
    let handler = sender.clone();
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                if signal == SIGHUP && hangup == Hangup::Ignored {
                    tracing::info!("SIGHUP is ignored; SIGTERM stops");
                    continue;
                }
                // Without a listener the process is about to end anyway.
                let _ = handler.send(());
            }
        })
        .map_err(failed)?;
    Ok((sender, receiver))
}
