//! Which replicas are to propose: those that bring a part of the load and do not make all wait.

use super::Chora;
use quintet_replica::{Context, ReplicaId, ReplicaSet, Slot, Time};

impl Chora {
    /// Of these replicas those that bring a part of the load, as they report.
    pub(super) fn loaded(&self, among: ReplicaSet) -> ReplicaSet {
        let brings = |id: &ReplicaId| {
            if *id == self.me.id() {
                self.load.demand.is_loaded()
            } else {
                self.peers[id.index()].is_loaded()
            }
        };
        among.iter().filter(brings).collect()
    }

    /// Looks every heartbeat where the load comes from, but for what comes by a slow replica.
    pub(super) fn watch_load(&mut self) {
        self.load.demand.assess(self.me.members());
        if let Some(init) = self.view.init() {
            let now: ReplicaSet = init.proposers.iter().copied().collect();
            let loaded = self.loaded(self.quick(init.live));
            self.load.demand.compare(loaded, now);
        }
    }

    /// A proposal for this slot, or that nothing comes there, has been taken in: it waits for
    /// others before it, or one that waited for it need not wait any more.
    pub(super) fn watch_wait(&mut self, slot: Slot, ctx: &Context<'_, Self>) {
        let (view, end, now) = (self.view.number(), self.log.end(), ctx.arrived());
        let since = self.load.drag.on_proposal(view, slot, end, now);
        let owner = self.view.init().and_then(|init| init.owner(slot));
        if let Some(since) = since
            && let Some(owner) = owner.filter(|id| *id != self.me.id())
        {
            self.load.drag.waited(owner, now.since(since));
        }
    }

    /// A heartbeat.
    pub(super) fn watch_drag(&mut self, now: Time) {
        if let Some(init) = self.view.init() {
            let proposers: ReplicaSet = init.proposers.iter().copied().collect();
            self.load.drag.assess(proposers.without(self.me.id()), now);
        }
    }

    /// Of these replicas those that at least half of the others call slow.
    fn slow(&self, among: ReplicaSet) -> ReplicaSet {
        let reports = |by: ReplicaId, id: ReplicaId| {
            if by == self.me.id() {
                self.load.drag.slow().contains(id)
            } else {
                self.peers[by.index()].slow().contains(id)
            }
        };
        let slow = |id: &ReplicaId| {
            let others = among.without(*id);
            let votes = others.iter().filter(|by| reports(*by, *id)).count();
            votes > 0 && votes * 2 >= others.len()
        };
        among.iter().filter(slow).collect()
    }

    /// Of these replicas those that may propose without making all wait; all of them when that
    /// leaves none.
    pub(super) fn quick(&self, among: ReplicaSet) -> ReplicaSet {
        let slow = self.slow(among);
        match ReplicaSet(among.0 & !slow.0) {
            ReplicaSet::EMPTY => among,
            quick => quick,
        }
    }
}
