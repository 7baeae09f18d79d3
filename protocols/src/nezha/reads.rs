//! Reads, which take no slot: the leader confirms that it leads, and answers when all that the
//! read saw is committed.

use super::{Nezha, ReplyHeader, bug::Bug, dom::Name, replica::Phase};
use quintet_replica::{Bytes, Context, FrontendId, parts::Taken};

impl Nezha {
    pub(super) fn read_header(&self, frontend: FrontendId, ctx: &Context<'_, Self>) -> ReplyHeader {
        ReplyHeader {
            view: self.view.number(),
            bound: self.receiver.bound_for(frontend, ctx),
            ..ReplyHeader::default()
        }
    }

    pub(super) fn on_read(&mut self, name: Name, batch: Bytes, ctx: &mut Context<'_, Self>) {
        let (ready, slot) = (self.is_ready(), self.log.sync());
        let unconfirmed = self.injected(Bug::ReadsUnconfirmed);
        let Phase::Leader(lead) = &mut self.phase else {
            return self.refuse(name, Taken::Refused, ctx);
        };
        if !ready {
            return self.refuse(name, Taken::Refused, ctx);
        }
        if unconfirmed {
            let header = self.read_header(name.frontend, ctx);
            return ctx.query(batch, slot, false, name.frontend, &header);
        }
        if !lead.push_read(slot, name.frontend, batch) {
            return self.refuse(name, Taken::Busy, ctx);
        }
        self.confirm_reads(ctx);
    }

    /// Runs the reads that came before a round which a majority has echoed by now. Their answers
    /// wait in the executor until all that they saw is committed.
    pub(super) fn confirm_reads(&mut self, ctx: &mut Context<'_, Self>) {
        let Phase::Leader(lead) = &mut self.phase else {
            return;
        };
        for read in lead.take_confirmed() {
            let header = self.read_header(read.frontend, ctx);
            ctx.query(read.batch, read.slot, true, read.frontend, &header);
        }
    }
}
