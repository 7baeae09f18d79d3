//! A protocol that serves several groups has a node for each, and is in one of them at a time.
//!
//! ```text
//!   host ──lend_protocol──► node of group 2 ──input──► protocol ─┬─ effects of group 2
//!     ▲                                                          └─ of group 3: take_foreign
//!     └──lend_protocol──── and back                                     │
//!   node of group 3 ◄──carry_out_foreign── with the protocol lent to it ┘
//! ```

use super::*;
use core::iter::{Peekable, from_fn};

/// The next run of effects in one group, of those that [`Node::take_foreign`] gave, with the group.
/// Effects of the run that the caller does not take stay.
pub fn next_foreign<I: Iterator<Item = (GroupId, Effect)>>(
    foreign: &mut Peekable<I>,
) -> Option<(GroupId, impl Iterator<Item = Effect>)> {
    let group = foreign.peek()?.0;
    let next = move || Some(foreign.next_if(|(other, _)| *other == group)?.1);
    Some((group, from_fn(next)))
}

impl Node {
    /// A node of a group that the protocol of another node serves. Each call that may reach the
    /// protocol, the start included, is made while the protocol is lent to this node.
    ///
    /// # Errors
    /// When the epoch's options are not the protocol's.
    pub fn sharing(
        setup: NodeSetup,
        protocol: &Entry,
        machine: Box<dyn StateMachine>,
    ) -> Result<Self, OptionError> {
        let voters = Voters::dense(setup.epoch.members);
        Self::made(voters, setup, protocol, machine, false)
    }

    /// Exchanges the protocols of two nodes: one of them has none.
    pub const fn lend_protocol(&mut self, to: &mut Self) {
        core::mem::swap(&mut self.replica, &mut to.replica);
    }

    /// The effects that the protocol has in groups other than those of the nodes that called it.
    pub fn take_foreign(&mut self, into: &mut Vec<(GroupId, Effect)>) {
        self.replica.take_foreign(into);
    }

    /// Carries out effects in this group that another group's event has had. The protocol is lent to
    /// this node.
    pub fn carry_out_foreign(
        &mut self,
        effects: impl Iterator<Item = Effect>,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) {
        self.effects.extend(effects);
        self.carry_out(world, out);
        if self.disk.is_hung() {
            fall_silent(out);
        }
    }

    /// The parts in the groups that the node's protocol serves besides the node's own, as it last
    /// told them.
    #[must_use]
    pub fn roles(&self) -> &[crate::Role] {
        &self.roles.1
    }

    /// The number of the view of a group that follows this node's protocol, and the members in it; none
    /// where the group does not order.
    #[must_use]
    pub fn view_in(&self, group: GroupId) -> Option<(u64, ReplicaSet)> {
        let (number, roles) = &self.roles;
        let role = roles.iter().find(|role| role.group == group)?;
        let active = role.state == crate::RoleState::Active;
        active.then_some((*number, role.members))
    }

    /// The number of the view in this epoch, and the members in it: those that the protocol has told
    /// last, or all voters in view 0 where it never changes them. None before its protocol has begun.
    #[must_use]
    pub const fn view(&self) -> Option<(u64, ReplicaSet)> {
        self.view
    }

    /// The voters of the node's epoch.
    #[must_use]
    pub const fn voters(&self) -> Voters {
        self.voters
    }

    /// The status of the node's protocol in a group that it serves.
    #[must_use]
    pub fn status_in(&self, group: GroupId) -> Status {
        self.replica.status(group)
    }
}
