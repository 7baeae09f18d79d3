//! SADL: batches of commands reach a quorum before anybody orders them; what is ordered is names.
//!
//! ```text
//!   creator                    others                    ordering protocol
//!     │ New{rounds 4..6} ───────►│ journal                   │
//!     │◄──────────── Vote{6} ────┤                           │ heads: [(1, 6), (2, 9), …]
//!     │ n-f: completed           │                           │ it orders names, or ranges of them
//!     │ New{nothing, 6} ────────►│ head of the creator: 6 ──►│ decided: batches of those rounds,
//!     │                          │◄── Fetch, Found ──────────┤ fetched where they are missing
//! ```
//!
//! Each replica is the creator of a chain of batches and works at its own pace; bytes leave each
//! replica once per other replica, whichever replica leads. Nothing here knows how the names are
//! ordered: an ordering protocol is a [`Host`], and holds something that implements
//! [`Dissemination`]. It asks for [`Dissemination::completed`] when it has something to order, for
//! [`Dissemination::fetch`] when it executes what is decided, and for
//! [`Dissemination::fetch_causal`] when that is not here. [`Sadl`] is the one implementation;
//! behind it, [`Chains`] is the paper's algorithm without messages, timers or a disk.
//!
//! **Paper.** Tennage, Desjardins, Kokoris-Kogias, "RACS and SADL: Towards Robust SMR in the
//! Wide-Area Network", 2024. Section 5, Algorithm 2.
//!
//! # Why what is ordered can be had
//!
//! A vote says that the voter holds the chain up to that round, durably: held from the first round
//! on, or executed. A creator calls a round completed when n-f have voted for it, in the
//! incarnations that they are in now; only completed rounds are ordered. A holder gives a batch up
//! only when it was executed there, and its host's snapshots cover what was. So of n-f that are up
//! one has each ordered batch, or a state that covers it.
//!
//! A replica that lost its state may have voted. Before its host lets it count again, it has what
//! n-f others that did not forget list as held ([`Dissemination::inventory`]): of the f others that
//! voted with it one is among them. If that one voted before it answered, its list shows the batch;
//! if later, its vote tells the creator of the new incarnation, and the old one's vote no longer
//! counts.
//!
//! # What an ordering protocol must see to
//!
//! The batches of one creator are executed in the order of its chain, each once, in a slot of its
//! own. A protocol whose log is a chain of blocks orders ranges that follow what their ancestors
//! name (RACS). One whose slots are independent orders one name per slot, and takes a name that
//! does not follow what was executed before ([`Head::leads_to`]) for nothing: every replica finds
//! that out alike, and the next leader orders it again (Multi-Paxos).
//!
//! # Deviations
//!
//! - *Names* (S6). A creator begins a new chain with every start, of a number that its host has
//!   made durable: no name is ever used twice, whatever was lost. When a batch of a newer chain is
//!   executed, what is left of the older ones is nothing any more.
//! - *The tail* (S1). A creator tells at once when rounds are completed, with its next batches or
//!   alone, and again until they are executed.
//! - *Line 15, lines 5 and 11* (S2). Heads only rise. Votes are cumulative; the replica that does
//!   not keep voting is sent the batches again, ever more rarely unless its connection broke.
//! - *One batch outstanding* (S4). A window of them: the chain keeps their order all the same.
//! - *The vector* (S3). A vector names, for each creator in turn, the rounds after those that were
//!   named before. So nothing is named twice and each batch has its slot when it is ordered.
//! - *Missing batches* (S4) are asked for at their creator, then at all others in turn. A replica
//!   that has given them up says so, and a state is fetched.
//! - *Garbage* (S5). Executed batches are kept for others within a bound of bytes, and those
//!   further behind receive a state: a dead replica stops nothing.
//! - *Votes* (S6) wait for the journal.
//! - *To whom* (the published program's selective mode). A creator may show its batches to a
//!   quorum's worth of those that answer soonest, see `healthy.rs`; the others fetch them once they
//!   are ordered. When nothing is executed for long, it shows them to all.
//! - *One round, one batch of a frontend.* Frontends batch already (§3.1); a message carries all
//!   rounds of a turn.

// Its parts: each has private fields and knows nothing of the protocol that orders.
mod chains;
mod healthy;
mod journal;
mod name;
mod questions;
mod showing;
mod spread;

#[cfg(test)]
mod tests;

pub use chains::Chains;
pub use name::{Head, Heads, Message, Name, Range};
pub use spread::{Limits, Sadl};

use alloc::{format, string::String};
use core::fmt;
use quintet_replica::{
    Bytes, Context, Incarnation, PersistId, Protocol, ReplicaId, Slot, parts::RequestKey,
};

/// How the batches of a replica's clients reach the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Way {
    /// With what the leader sends to order them: nothing of this module takes part.
    #[default]
    Direct,
    /// Before they are ordered, from each replica to all.
    Sadl,
}

quintet_replica::wire! { enum Way { 1 = Direct, 2 = Sadl } }

impl Way {
    /// As the option has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Sadl => "sadl",
        }
    }

    /// The way of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Direct, Self::Sadl]
            .into_iter()
            .find(|way| way.name() == name)
    }

    /// The way that an option's value stands for.
    ///
    /// # Errors
    /// When it stands for nothing.
    pub fn parse(value: &str) -> Result<Self, String> {
        Self::named(value).ok_or_else(|| format!("'{value}' is not direct or sadl"))
    }
}

impl fmt::Display for Way {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// To whom a replica shows its batches before they are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Spread {
    /// To all others.
    #[default]
    All,
    /// To as many as make a quorum with itself, those that answer soonest; the others fetch what
    /// they execute.
    Majority,
}

impl Spread {
    /// The meaning of the option's value.
    ///
    /// # Errors
    /// When it stands for nothing.
    pub fn parse(value: &str) -> Result<Self, String> {
        match value {
            "all" => Ok(Self::All),
            "majority" => Ok(Self::Majority),
            _ => Err(format!("'{value}' is not all or majority")),
        }
    }
}

/// The needs of dissemination in the protocol above it: room in its messages, journal and timers.
pub trait Host: Protocol {
    /// Batches are shown again when it fires.
    const SHOW: Self::Timer;
    /// Batches are asked for again when it fires.
    const FETCH: Self::Timer;

    /// A message of the host's that carries this one.
    fn message(message: Message) -> Self::Message;

    /// A record of the host's that keeps this batch.
    fn record(name: Name, batch: Bytes) -> Self::Record;
}

/// The effect of a message, for the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// Nothing that the host must look at.
    Nothing,
    /// Batches have come: what is decided may be executable now.
    Arrived,
    /// The requested batches were executed elsewhere and given up: a newer state is needed.
    Behind,
}

/// Spreads batches among the replicas before anybody orders them; see the module.
///
/// The host forwards messages, timers and finished writes, and calls [`Self::flush`] at the end
/// of each turn. `at` is always the slot after the last one that it has executed.
pub trait Dissemination<H: Host> {
    /// `replicate`: a batch of this replica's clients is to reach the others. One that is on its
    /// way is not begun again.
    fn replicate(&mut self, key: RequestKey, batch: Bytes);

    /// `getClientCommands`: what a quorum holds and what lies behind these heads, at most that many
    /// batches. This may be ordered.
    fn completed(&self, behind: &[Head], count_max: u64) -> alloc::vec::Vec<Range>;

    /// `fetch`: a batch that is here.
    fn fetch(&self, name: Name) -> Option<&Bytes>;

    /// `fetch_causal`: whether all of these are here or were executed, with all before them.
    /// Missing ones are requested: of their creator first, then of `from`, then of all others.
    fn fetch_causal(
        &mut self,
        ranges: &mut dyn Iterator<Item = Range>,
        from: ReplicaId,
        ctx: &mut Context<'_, H>,
    ) -> bool;

    /// The part of a range that is neither here nor was executed.
    fn missing(&self, range: Range) -> Option<Range>;

    /// Whether this one is missing and asked for: until it comes nothing need be looked at.
    fn awaits(&self, name: Name) -> bool;

    /// A batch is executed in this slot, in the order of its chain.
    fn executed(&mut self, name: Name, slot: Slot);

    /// The executed part of each member's chains: snapshots carry it.
    fn heads(&self) -> &[Head];

    /// A state was installed that covers these heads.
    fn install(&mut self, heads: &[Head]);

    /// The batches that are held and not executed: a replica that lost its state must have them
    /// before it counts.
    fn inventory(&self) -> alloc::vec::Vec<Range>;

    /// Forgets those of the batches that wait of which this is true.
    fn drop_waiting(&mut self, gone: &dyn Fn(RequestKey) -> bool);

    /// A member is in this incarnation, or in a later one.
    fn meet(&mut self, peer: ReplicaId, incarnation: Incarnation);

    /// A message of a member.
    fn on_message(
        &mut self,
        from: ReplicaId,
        message: Message,
        at: Slot,
        ctx: &mut Context<'_, H>,
    ) -> News;

    /// [`Host::SHOW`] has fired.
    fn on_show_timer(&mut self, ctx: &mut Context<'_, H>);

    /// [`Host::FETCH`] has fired.
    fn on_fetch_timer(&mut self, ctx: &mut Context<'_, H>);

    /// Writes up to this one are durable.
    fn on_persisted(&mut self, upto: PersistId, ctx: &mut Context<'_, H>);

    /// The end of a turn: what is durable is voted for, what waits goes out, what is completed is
    /// told. `create` says whether batches of this replica may be begun now.
    fn flush(&mut self, create: bool, at: Slot, ctx: &mut Context<'_, H>);

    /// A durable state covers everything up to this slot: the journal is trimmed as far as it may
    /// be.
    fn trim(&mut self, slot: Slot, ctx: &mut Context<'_, H>);
}
