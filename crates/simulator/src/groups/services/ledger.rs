//! The service of these worlds.

use super::subgroup;
use quintet::{
    CallContext, Persistent, PersistentMap, Place, Retention, Service, ShardView,
    archive::WhimsicalArchive,
    hand_off::{Destination, Destinations},
    machine::{Here, ServiceMachine},
    service,
};
use quintet_replica::{Injected, StateMachine};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc};

/// So few that most of what is read of the past was put away.
const PAST_IN_MEMORY: u64 = 40;

/// Counts who has paid, and what was handed off and received.
#[derive(Default, Service)]
pub(in crate::groups) struct Ledger {
    /// By payer: its last payment's number, and how many there were.
    paid: PersistentMap<u64, (u64, u64)>,
    sent: PersistentMap<String, u64>,
    received: PersistentMap<String, u64>,
    /// Payments and receipts that came twice or not in their order.
    disorder: Persistent<u64>,
    /// By number: the members.
    views: PersistentMap<(u64, u64), Vec<u16>>,
    /// Views that came behind a later one, or twice.
    late_views: Persistent<u64>,
}

/// All of a ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::groups) struct Content {
    pub paid: BTreeMap<u64, (u64, u64)>,
    pub sent: BTreeMap<String, u64>,
    pub received: BTreeMap<String, u64>,
    pub disorder: u64,
    pub views: BTreeMap<(u64, u64), Vec<u16>>,
    pub late_views: u64,
}

impl Content {
    /// How many hand-offs were received.
    pub fn receipts(&self) -> u64 {
        self.received.values().sum()
    }
}

#[service]
impl Ledger {
    #[ordered]
    fn pay(
        &mut self,
        context: &mut CallContext,
        payer: u64,
        number: u64,
        from: &str,
        to: &str,
        notices: u64,
    ) {
        for notice in 0..notices {
            context.notify("paid", format!("{payer} {number} {notice}"));
        }
        let (last, count) = self.paid.get(&payer).copied().unwrap_or_default();
        if number <= last {
            *self.disorder += 1;
        }
        self.paid.insert(payer, (number, count + 1));
        if !to.is_empty() {
            let sent = self.sent.get(to).copied().unwrap_or_default() + 1;
            self.sent.insert(to.to_owned(), sent);
            context.then(to, 0, Ledger::calls().receive(from.to_owned(), sent));
        }
    }
    #[ordered]
    fn receive(&mut self, context: &mut CallContext, from: String, count: u64) {
        context.notify("received", from.clone());
        let last = self.received.get(&from).copied().unwrap_or_default();
        if count != last + 1 {
            *self.disorder += 1;
        }
        self.received.insert(from, count);
    }
    #[query]
    fn content(&self) -> Content {
        let numbers = |map: &PersistentMap<String, u64>| {
            let all = map.iter().map(|(name, count)| (name.clone(), *count));
            all.collect()
        };
        let paid = self.paid.iter().map(|(payer, paid)| (*payer, *paid));
        Content {
            paid: paid.collect(),
            sent: numbers(&self.sent),
            received: numbers(&self.received),
            disorder: *self.disorder,
            views: self
                .views
                .iter()
                .map(|(at, of)| (*at, of.clone()))
                .collect(),
            late_views: *self.late_views,
        }
    }
    /// The rank of this member, and all members.
    #[gather]
    fn part(&self, place: &Place) -> (u16, Vec<u16>, Content) {
        let members = place.members().iter().map(|it| *it as u16);
        (place.rank() as u16, members.collect(), self.content())
    }
    /// The content, and that of a sibling.
    #[query]
    fn beside(&self, place: &Place, sibling: &str) -> Option<(Content, Content)> {
        let sibling = place.sibling::<Self>(sibling)?;
        Some((self.content(), sibling.content()))
    }
    #[view]
    fn members_are(&mut self, view: &ShardView) {
        let number = (view.epoch(), view.number());
        let is_late = self.views.iter().any(|(before, _)| *before >= number);
        *self.late_views += u64::from(is_late);
        let members = view.members().iter().map(|it| *it as u16);
        self.views.insert(number, members.collect());
    }
}

/// A ledger that hands off to the ledgers at these places.
pub(in crate::groups) fn machine(
    retention: Retention,
    to: &[usize],
    bug: Injected,
    here: Here,
) -> Box<dyn StateMachine> {
    let destinations = to.iter().map(|place| Destination {
        subgroup: subgroup(*place),
        service: Ledger::NAME,
        shards: 1,
    });
    let destinations = Destinations(destinations.collect());
    let machine = ServiceMachine::<Ledger>::new(retention).handing_off_to(destinations);
    let machine = machine.at_member(Here {
        archive: Arc::new(WhimsicalArchive::new(PAST_IN_MEMORY)),
        ..here
    });
    Box::new(machine.with_injected(bug))
}
