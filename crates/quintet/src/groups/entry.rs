//! The services and shards that a program serves.

use super::{
    Retention,
    hand_off::Destinations,
    machine::{Here, ServiceMachine},
    shards::Known,
};
use quintet_groups::{
    JsonCall, Method, Methods,
    service::{NamedField, terms_of},
};
use quintet_replica::StateMachine;
use std::fmt;

/// A service that a group can run.
#[derive(Clone, Copy)]
pub(super) struct ServiceEntry {
    pub name: &'static str,
    pub terms: u32,
    /// Whether it can be kept.
    pub check: fn() -> Result<(), String>,
    pub machine: fn(Retention, Destinations, Here) -> Box<dyn StateMachine>,
    pub methods: &'static [Method],
    pub fields: &'static [NamedField],
    pub is_versioned: bool,
    /// Whether it is told of the members of its shard.
    pub has_view: bool,
    pub call_of_json: fn(&str, &str) -> Option<Result<JsonCall, String>>,
    pub answer_to_json: fn(u32, &[u8]) -> Option<String>,
}

impl fmt::Debug for ServiceEntry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name)
    }
}

impl ServiceEntry {
    pub fn of<S: Methods>() -> Self {
        Self {
            name: S::NAME,
            terms: terms_of::<S>(),
            check: ServiceMachine::<S>::check,
            methods: S::METHODS,
            fields: S::NAMED_FIELDS,
            is_versioned: S::VERSIONED,
            has_view: S::VIEW.is_some(),
            call_of_json: S::call_of_json,
            answer_to_json: S::answer_to_json,
            machine: |retention, destinations, here| {
                let machine = ServiceMachine::<S>::new(retention);
                Box::new(machine.handing_off_to(destinations).at_member(here))
            },
        }
    }
}

/// A shard that this program serves.
#[derive(Debug)]
pub(super) struct ShardEntry {
    pub known: Known,
    pub service: ServiceEntry,
    pub destinations: Destinations,
}

impl ShardEntry {
    pub fn new(known: Known, service: ServiceEntry) -> Self {
        Self {
            known: Known {
                service: service.name.to_owned(),
                terms: service.terms,
                ..known
            },
            service,
            destinations: Destinations::default(),
        }
    }
}
