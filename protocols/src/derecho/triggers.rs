//! The triggers of Appendix A, rebuilt from §3.6 and Appendix B: which columns each looks at, when
//! it fires, and what it does then.
//!
//! ```text
//!   put, write done, idle ──► dirty columns ──► predicates over the table ──► actions ──► put
//! ```
//!
//! They run when the inbox is empty, so one evaluation covers all that came (§3.7). Their order is
//! that of a message's way: received, ordered, persisted, delivered; then failures, wedging, the
//! ragged trim, its echo and the next view.

use super::{
    Derecho,
    sst::{
        ON_BARRIER, ON_BLOCKS, ON_ECHO, ON_PERSISTED, ON_PROPOSED, ON_RECEIVED, ON_RING, ON_SELF,
        ON_SHARD, ON_SUSPECTED, ON_VIEW, ON_WEDGED, Trigger,
    },
};
use quintet_replica::Context;

const ENDING: super::sst::Columns = ON_SUSPECTED | ON_WEDGED | ON_PERSISTED | ON_VIEW | ON_SELF;

/// All of them, in the order in which they are looked at.
const TRIGGERS: &[Trigger<Derecho>] = &[
    Trigger {
        columns: ON_RING | ON_VIEW | ON_SELF,
        once: false,
        when: |replica| !replica.membership.wedging(),
        act: |replica, ctx| replica.receive(None, ctx),
    },
    Trigger {
        columns: ON_PERSISTED | ON_VIEW | ON_SELF,
        once: false,
        when: |replica| replica.may_deliver(None),
        act: |replica, ctx| replica.deliver(None, ctx),
    },
    Trigger {
        columns: ON_RECEIVED | ON_VIEW | ON_SELF,
        once: false,
        when: |replica| !replica.stream.outgoing.is_empty(),
        act: |replica, _| replica.drop_acknowledged(None),
    },
    Trigger {
        columns: ON_BLOCKS | ON_RECEIVED | ON_VIEW | ON_SELF,
        once: false,
        when: |replica| !replica.membership.wedging() && replica.stream.rdmc.is_busy(),
        act: |replica, ctx| replica.send_blocks(None, ctx),
    },
    Trigger {
        columns: ON_BARRIER | ON_VIEW,
        once: false,
        when: |replica| !replica.membership.wedging(),
        act: |replica, _| replica.echo_barriers(),
    },
    Trigger {
        columns: ON_ECHO | ON_PERSISTED | ON_VIEW | ON_SELF,
        once: false,
        when: |replica| !replica.stream.reads.is_empty(),
        act: |replica, ctx| replica.release_reads(None, ctx),
    },
    Trigger {
        columns: ON_SHARD | ON_ECHO | ON_VIEW | ON_SELF,
        once: false,
        when: |replica| !replica.shards.is_empty(),
        act: Derecho::run_shards,
    },
    Trigger {
        columns: ON_SUSPECTED | ON_VIEW,
        once: false,
        when: |_| true,
        act: Derecho::learn_suspicions,
    },
    Trigger {
        columns: ENDING,
        once: true,
        when: Derecho::must_wedge,
        act: Derecho::wedge,
    },
    Trigger {
        columns: ON_SELF,
        once: true,
        when: |replica| replica.membership.wedging() && replica.all_is_written(),
        act: Derecho::set_wedged,
    },
    Trigger {
        columns: ENDING | ON_PROPOSED,
        once: false,
        when: Derecho::may_propose,
        act: Derecho::propose,
    },
    Trigger {
        columns: ENDING | ON_PROPOSED,
        once: false,
        when: Derecho::may_echo,
        act: Derecho::echo,
    },
    Trigger {
        columns: ENDING | ON_PROPOSED,
        once: true,
        when: Derecho::is_agreed,
        act: Derecho::end_view,
    },
];

impl Derecho {
    /// Looks at the predicates whose columns have changed, until nothing changes any more.
    pub(super) fn run_triggers(&mut self, ctx: &mut Context<'_, Self>) {
        while self.sst.is_dirty() && self.membership.is_active() {
            let dirty = self.sst.take_dirty();
            for (number, trigger) in TRIGGERS.iter().enumerate() {
                if !self.sst.concerned(trigger.columns, dirty)
                    || trigger.once && self.sst.has_fired(number)
                    || !self.membership.is_active()
                    || !(trigger.when)(self)
                {
                    continue;
                }
                self.sst.fired(number);
                (trigger.act)(self, ctx);
            }
        }
    }
}
