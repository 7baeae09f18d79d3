//! The members that take part in the protocol of each epoch, as its replicas report, and those that
//! could continue.
//!
//! ```text
//!   epoch begun ──► its protocol, where it begins     replica tells a route ──► of its epoch
//!                            └───────────────┬───────────────┘
//!   a fault, a core ──► the newest epoch, and one that most replicas are in yet
//!   an answer ────────► the epoch that its command was executed in, by those that are in it yet,
//!                       and each later one by those that are in that
//! ```

use crate::{stored_epoch, world::World};
use quintet_replica::{
    Descriptor, Entry, EpochNumber, Executed, Incarnation, NodeState, ReplicaId, Slot, Voters,
};
use std::collections::BTreeMap;

/// The members that take part in a protocol, in its order.
type Route = Vec<(ReplicaId, Incarnation)>;

/// One epoch.
#[derive(Debug)]
struct EpochRoutes {
    entry: Entry,
    voters: Voters,
    /// Where it begins.
    base: u64,
    /// The members that take part, and from which slot on, by the latest report.
    route: Route,
    slot: Slot,
    /// The members that may take part next: votes for them have been cast.
    ahead: Vec<(Slot, Route)>,
}

impl EpochRoutes {
    const fn new(entry: Entry, voters: Voters, base: u64) -> Self {
        Self {
            entry,
            voters,
            base,
            route: Vec::new(),
            slot: Slot(0),
            ahead: Vec::new(),
        }
    }

    /// The members that take part from this slot on, or may do so once that is decided.
    fn note(&mut self, slot: Slot, route: Route, agreed: bool) {
        if agreed && slot >= self.slot {
            self.slot = slot;
            self.route = route;
            self.ahead.retain(|(ahead, _)| *ahead > slot);
        } else if !agreed && slot > self.slot {
            let route = (slot, route);
            if !self.ahead.contains(&route) {
                self.ahead.push(route);
            }
        }
    }

    /// Whether the protocol promises to continue with them, whatever is decided next.
    fn promises(&self, states: &[NodeState]) -> bool {
        let viable = |route: &Route| are_viable(&self.entry, self.voters, states, route);
        viable(&self.route) && self.ahead.iter().all(|(_, route)| viable(route))
    }
}

/// Whether a protocol could continue among these voters, whom it knows by their ranks.
pub(crate) fn are_viable(
    entry: &Entry,
    voters: Voters,
    states: &[NodeState],
    route: &[(ReplicaId, Incarnation)],
) -> bool {
    let ranked = (0..).map(ReplicaId).zip(voters.set().iter());
    let ranked = ranked.map(|(id, number)| NodeState {
        id,
        ..states[number.index()]
    });
    let states: Vec<NodeState> = ranked.collect();
    let route = route.iter();
    let route: Route = route
        .filter_map(|(number, incarnation)| Some((voters.rank(*number)?, *incarnation)))
        .collect();
    (entry.viable_in)(voters.len(), &states, &route)
}

/// All epochs that have begun.
#[derive(Debug)]
pub(crate) struct Routes {
    epochs: BTreeMap<EpochNumber, EpochRoutes>,
}

impl Routes {
    /// The first epoch alone.
    pub fn new(entry: Entry, voters: usize) -> Self {
        let first = EpochRoutes::new(entry, Voters::dense(voters), 0);
        Self {
            epochs: [(EpochNumber(1), first)].into(),
        }
    }

    /// Some replica is in this epoch.
    pub fn begin(&mut self, number: EpochNumber, entry: Entry, voters: Voters, base: u64) {
        let begun = || EpochRoutes::new(entry, voters, base);
        self.epochs.entry(number).or_insert_with(begun);
    }

    pub fn note(&mut self, of: EpochNumber, slot: Slot, route: Route, agreed: bool) {
        if let Some(epoch) = self.epochs.get_mut(&of) {
            epoch.note(slot, route, agreed);
        }
    }

    /// Whether all are promised to continue: in the newest epoch, with any of the protocols that
    /// were offered for the next, and in each earlier epoch that no majority has left.
    fn promise(&self, offered: &[Entry], inside: &[EpochNumber], states: &[NodeState]) -> bool {
        let Some((_, last)) = self.epochs.last_key_value() else {
            return true;
        };
        let mut others = offered.iter();
        self.needed(inside).all(|epoch| epoch.promises(states))
            && others.all(|entry| {
                let same = entry.info.name == last.entry.info.name;
                same || are_viable(entry, last.voters, states, &[])
            })
    }

    /// The newest epoch, and those that no majority has left.
    fn needed(&self, inside: &[EpochNumber]) -> impl Iterator<Item = &EpochRoutes> {
        let newest = self.epochs.keys().next_back();
        let needed = move |(number, epoch): &(&EpochNumber, &EpochRoutes)| {
            let voters = epoch.voters.set().iter();
            let left = voters.filter(|it| inside[it.index()] > **number).count();
            Some(*number) == newest || left <= epoch.voters.len() / 2
        };
        self.epochs.iter().filter(needed).map(|(_, epoch)| epoch)
    }

    /// Whether all epochs that are needed have these voters.
    fn all_have(&self, voters: Voters, inside: &[EpochNumber]) -> bool {
        self.needed(inside).all(|epoch| epoch.voters == voters)
    }

    /// Whether replicas without the command that was executed here could continue by themselves.
    fn continue_without(&self, position: u64, inside: &[EpochNumber], without: &[usize]) -> bool {
        let mut begun = self.epochs.iter().rev();
        let first = begun.find(|(_, epoch)| epoch.base < position);
        let Some((first, _)) = first else {
            return false;
        };
        self.epochs.range(first..).any(|(number, epoch)| {
            let is_in = |at: &EpochNumber| at == number || number == first && at < first;
            let state = |(id, at): (usize, &EpochNumber)| NodeState {
                id: ReplicaId(id as u16),
                up: without.contains(&id) && is_in(at),
                state_lost: false,
            };
            let states: Vec<NodeState> = inside.iter().enumerate().map(state).collect();
            are_viable(&epoch.entry, epoch.voters, &states, &epoch.route)
        })
    }
}

impl World {
    /// The epoch that each replica is in, as its disk has it.
    fn epochs_inside(&self) -> Vec<EpochNumber> {
        let processes = self.processes.iter();
        processes
            .map(|process| stored_epoch::number(&process.disk.epoch))
            .collect()
    }

    /// Whether the protocol promises to continue with them, by who takes part in it now or may
    /// soon.
    pub fn viable(&self, states: &[NodeState]) -> bool {
        let inside = self.epochs_inside();
        self.routes.promise(&self.protocols, &inside, states)
            && self.sizes_offered_are_viable(states)
    }

    /// Whether all epochs that are needed have these voters.
    pub fn all_have(&self, voters: Voters) -> bool {
        self.routes.all_have(voters, &self.epochs_inside())
    }

    /// Whether replicas without the command that was executed here could continue by themselves.
    pub fn continue_without(&self, position: u64, without: &[usize]) -> bool {
        let inside = self.epochs_inside();
        self.routes.continue_without(position, &inside, without)
    }

    /// A replica is in this epoch.
    pub fn note_epoch(&mut self, descriptor: &Descriptor, base: Executed) {
        let entry = stored_epoch::protocol(descriptor, self.setup.entry);
        let (number, voters) = (descriptor.number, descriptor.voters());
        self.routes.begin(number, entry, voters, base.position.0);
        if number > self.epoch_begun {
            self.epoch_begun = number;
            self.begin_size(descriptor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quintet_replica::Incarnation;

    const E1: EpochNumber = EpochNumber(1);
    const E2: EpochNumber = EpochNumber(2);

    fn entry(name: &str) -> Entry {
        *quintet_protocols::find(name).unwrap()
    }

    fn of(members: &[u16]) -> Route {
        let member = |id: &u16| (ReplicaId(*id), Incarnation(1));
        members.iter().map(member).collect()
    }

    fn up(members: &[usize]) -> Vec<NodeState> {
        let state = |id: usize| NodeState {
            id: ReplicaId(id as u16),
            up: members.contains(&id),
            state_lost: false,
        };
        (0..5).map(state).collect()
    }

    /// A quorum of all in the first epoch, views from position 15 on.
    fn routes() -> Routes {
        let mut routes = Routes::new(entry("multipaxos"), 5);
        routes.begin(E2, entry("derecho"), Voters::dense(5), 15);
        routes
    }

    #[test]
    fn answer_is_checked_by_the_protocol_that_executed_it() {
        let mut routes = routes();
        let inside = [E2; 5];
        assert!(routes.continue_without(23, &inside, &[0, 2, 3]));
        routes.note(E2, Slot(4), of(&[1, 4]), true);
        assert!(!routes.continue_without(23, &inside, &[0, 2, 3]));
        assert!(routes.continue_without(23, &inside, &[1, 4]));
        // And where views come first, a majority must hold what follows them.
        let mut routes = Routes::new(entry("derecho"), 5);
        routes.note(E1, Slot(4), of(&[1, 4]), true);
        routes.begin(E2, entry("multipaxos"), Voters::dense(5), 15);
        assert!(routes.continue_without(23, &inside, &[0, 2, 3]));
    }

    #[test]
    fn replicas_in_a_later_epoch_do_not_continue_an_earlier_one() {
        let mut routes = Routes::new(entry("derecho"), 5);
        routes.note(E1, Slot(4), of(&[1, 4]), true);
        let behind = [E1; 5];
        assert!(!routes.continue_without(9, &behind, &[0, 2, 3]));
        assert!(routes.continue_without(9, &behind, &[0, 1, 2, 3, 4]));
        // One has the state and continues: the others cannot follow it before they have it as well.
        routes.begin(E2, entry("multipaxos"), Voters::dense(5), 15);
        let one = [E1, E1, E1, E1, E2];
        assert!(!routes.continue_without(9, &one, &[0, 2, 3]));
        // In the later epoch, without what it began with.
        let all = [E2; 5];
        assert!(routes.continue_without(9, &all, &[0, 2, 3]));
    }

    #[test]
    fn epoch_that_few_have_left_must_be_able_to_continue() {
        let mut routes = Routes::new(entry("derecho"), 5);
        routes.note(E1, Slot(4), of(&[1, 4]), true);
        routes.begin(E2, entry("multipaxos"), Voters::dense(5), 15);
        let offered = [entry("derecho"), entry("multipaxos")];
        let few = [E1, E1, E1, E1, E2];
        let most = [E2, E1, E2, E1, E2];
        assert!(!routes.promise(&offered, &few, &up(&[0, 2, 3])));
        assert!(routes.promise(&offered, &few, &up(&[0, 1, 4])));
        assert!(routes.promise(&offered, &most, &up(&[0, 2, 3])));
        assert!(!routes.promise(&offered, &most, &up(&[1, 4])));
    }

    #[test]
    fn route_that_may_come_next_counts_until_it_is_decided() {
        let mut routes = routes();
        let inside = [E2; 5];
        let mut promise = |slot, route: &[u16], agreed, members: &[usize]| {
            routes.note(E2, Slot(slot), of(route), agreed);
            routes.promise(&[], &inside, &up(members))
        };
        assert!(promise(2, &[1, 2, 4], true, &[1, 2]));
        assert!(!promise(3, &[2, 4], false, &[1, 2]));
        assert!(promise(4, &[1, 4], true, &[1, 4]), "what came before it");
        assert!(promise(3, &[0, 2], true, &[1, 4]), "an older one");
        routes.note(E1, Slot(99), of(&[0]), true);
        assert!(
            routes.promise(&[], &inside, &up(&[1, 4])),
            "another epoch's"
        );
    }

    #[test]
    fn each_epoch_counts_its_own_voters() {
        let mut routes = Routes::new(entry("multipaxos"), 3);
        routes.begin(E2, entry("multipaxos"), Voters::dense(5), 15);
        let few = [E1, E1, E2, E2, E2];
        let most = [E1, E2, E2, E2, E2];
        assert!(!routes.promise(&[], &few, &up(&[0, 3, 4])));
        assert!(routes.promise(&[], &few, &up(&[0, 1, 4])));
        assert!(routes.promise(&[], &most, &up(&[0, 3, 4])));
        assert!(!routes.all_have(Voters::dense(5), &few));
        assert!(routes.all_have(Voters::dense(5), &most));
        assert!(!routes.continue_without(9, &[E1; 5], &[0, 3, 4]));
        assert!(routes.continue_without(9, &[E1; 5], &[0, 1]));
        assert!(routes.continue_without(23, &[E2; 5], &[0, 3, 4]));
        assert!(!routes.continue_without(23, &[E2; 5], &[0, 1]));
    }
}
