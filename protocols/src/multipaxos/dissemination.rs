//! SADL under Multi-Paxos: batches go out by themselves, slots name them.
//!
//! ```text
//!   own requests ──► Sadl ──► journals of a quorum ──► completed ──► leader: names, one per slot
//!   a slot is decided ── follows its creator's chain? ── no: nothing is executed in it
//!                                   └─ yes: executed when it is here; Fetch, Found
//! ```
//!
//! One name per slot, so that slots stay what they are: promises, state transfers, reads and the
//! trimming of logs know nothing of dissemination. Slots do not depend on each other, so those of
//! an old leader may come between those of a new one, and a name may stand twice in the log or
//! before one that it follows. Whether it counts is decided where it is executed, by what was
//! executed before it, which is the same everywhere; a leader orders what lies behind the names
//! that count in its own log, so what was passed over is ordered again.

use super::{MultiPaxos, Promised, Record, config::Config, message, replica::Role, replica::Timer};
use crate::sadl::{Dissemination, Head, Heads, Host, Limits, Message, Name, Range, Way};
use quintet_replica::{Bytes, Context};

/// That many decided slots are looked through for batches to ask for together.
const SCANNED_MAX: usize = 1024;

impl Host for MultiPaxos {
    const SHOW: Timer = Timer::Show;
    const FETCH: Timer = Timer::Fetch;

    fn message(message: Message) -> message::Message {
        message::Message::Sadl(message)
    }

    fn record(name: Name, batch: Bytes) -> Record {
        Record::Batch { name, batch }
    }
}

impl MultiPaxos {
    pub(super) const fn limits(config: &Config) -> Limits {
        Limits {
            window: config.sadl_window,
            spread: config.sadl_spread,
            window_bytes: config.window_bytes,
            page_bytes: config.batch_bytes_max,
            history_bytes: config.log_memory_bytes,
            hasty: false,
        }
    }

    /// Whether this replica's requests go out before they are ordered.
    pub(super) fn disseminates(&self) -> bool {
        self.config.dissemination == Way::Sadl
    }

    /// Writes down what was promised, and which chain of batches was begun.
    pub(super) fn write_promise(&mut self, ctx: &mut Context<'_, Self>) {
        let ballot = self.ballots.promised();
        let chain = self.sadl.chain();
        let id = ctx.persist_promise(&Promised { ballot, chain });
        self.sadl.numbered(id);
        self.ballots.written(id);
    }

    /// Begins a chain of this start, if there is or ever was one to begin.
    pub(super) fn begin_chain(&mut self, ctx: &mut Context<'_, Self>) {
        let before = self.sadl.chain();
        if before > 0 || self.disseminates() {
            self.sadl.begin(before + 1);
            self.write_promise(ctx);
        }
    }

    /// The option was changed: requests that wait go the other way.
    pub(super) fn on_dissemination(&mut self, ctx: &mut Context<'_, Self>) {
        ctx.mark("dissemination changed");
        if self.sadl.chain() == 0 {
            self.begin_chain(ctx);
        }
        self.forward_all();
    }

    /// Whether a name counts in the slot after the last one that was executed.
    pub(super) fn follows(&self, name: Name) -> bool {
        let head = self.sadl.heads().get(name.creator.index());
        head.is_some_and(|head| head.leads_to(name))
    }

    /// The batch that the next slot executes when it holds this name; none as long as that is not
    /// here.
    pub(super) fn named(&self, name: Name) -> Option<Bytes> {
        if self.follows(name) {
            self.sadl.fetch(name).cloned()
        } else {
            Some(Bytes::new())
        }
    }

    /// How far each member's batches have come when all that is in the log is executed.
    pub(super) fn heads_ahead(&self) -> Heads {
        let mut heads = self.sadl.heads().to_vec();
        for (_, held) in self.log.iter_from(self.log.executed().next()) {
            if let Some(name) = held.entry.value.name() {
                advance(&mut heads, name);
            }
        }
        heads
    }

    /// Asks for what is decided and cannot be executed because it is not here.
    pub(super) fn want_batches(&mut self, ctx: &mut Context<'_, Self>) {
        if self.stalled.is_some_and(|name| self.sadl.awaits(name)) {
            // It is asked for, and all else waits for it.
            return;
        }
        let next = self.log.executed().next();
        let first = self.log.get(next).and_then(|held| held.entry.value.name());
        self.stalled = first;
        let mut heads = self.sadl.heads().to_vec();
        let committed = self.log.committed();
        let mut ranges = self
            .log
            .iter_from(next)
            .take(SCANNED_MAX)
            .take_while(|(slot, _)| *slot <= committed)
            .filter_map(|(_, held)| held.entry.value.name())
            .filter(|name| advance(&mut heads, *name))
            .map(Range::from);
        let from = self.leader.leader().unwrap_or(self.me.id());
        self.sadl.fetch_causal(&mut ranges, from, ctx);
    }

    /// Batches have come, or are no longer asked for.
    pub(super) fn batches_arrived(&mut self, ctx: &mut Context<'_, Self>) {
        if self.log.executed() < self.log.committed() {
            self.execute(ctx);
        }
        self.maybe_recovered(ctx);
    }

    /// A leader takes up what a quorum holds by now.
    pub(super) fn gather_names(&mut self) {
        let Role::Leader(lead) = &mut self.role else {
            return;
        };
        let space = lead.naming.space();
        if self.sadl.silent() || space == 0 {
            return;
        }
        for range in self.sadl.completed(lead.naming.heads(), space as u64) {
            lead.naming.extend(range);
            // Its clients wait, and it learns at once what is decided.
            lead.peers[range.first.creator.index()].forwarded();
        }
    }
}

/// Moves the head of a chain, if the name follows it.
fn advance(heads: &mut [Head], name: Name) -> bool {
    let Some(head) = heads.get_mut(name.creator.index()) else {
        return false;
    };
    let follows = head.leads_to(name);
    if follows {
        *head = Range::from(name).head();
    }
    follows
}
