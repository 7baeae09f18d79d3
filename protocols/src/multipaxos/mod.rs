//! Multi-Paxos.

mod acceptor;
mod config;
mod election;
mod frontend;
mod leader;
mod message;
mod progress;
mod reads;
mod recovery;
mod replica;
mod requests;

#[cfg(test)]
mod tests;

pub use config::Config;
pub use frontend::Frontend;
pub use message::{Accepted, Message, Part, Promised, Proposal, Record, Summary};
pub use replica::MultiPaxos;
