//! A replicated service as a state machine: fields with their versions, methods by number, hand-offs.
//!
//! ```text
//!   #[service] impl ──► Methods ─┐
//!   #[derive(Service)] ──► fields ┴──► ServiceMachine: quintet_replica::StateMachine
//!                                         ▲ Call                  │ answer: value, version, time
//!   quintet::groups (handles, clients) ───┘◄──────────────────────┘
//! ```
//!
//! There is no thread, socket or clock here, so the simulator drives what programs run. Programs use
//! `quintet::groups`, which adds handles and members.

pub mod archive;
pub mod at_members;
pub mod call;
pub mod context;
pub mod delivery;
pub mod encoding;
pub mod error;
pub mod fields;
pub mod hand_off;
pub mod look;
pub mod machine;
pub mod notices;
mod past;
pub mod place;
pub mod service;
pub mod view;
pub mod when;

/// Bytes as a field, an argument or an answer: cheap to clone, and encoded as they are.
pub use bytes::Bytes;
pub use call::Done;
pub use context::{CallContext, CallOf};
pub use error::CallError;
pub use fields::{Field, Key, Persistent, PersistentMap, ServiceMap, Value, Volatile, VolatileMap};
pub use machine::Retention;
pub use place::Place;
pub use quintet_groups_macros::{Service, service};
pub use service::{
    FieldOf, HasHistory, JsonCall, Method, MethodKind, Methods, Reply, Service, Versioned,
};
pub use view::ShardView;
pub use when::{NoTime, Time, Version, When};

/// Where the macros look for their items.
#[doc(hidden)]
pub mod groups {
    pub use crate::*;
}

/// Items for the code of the macros.
#[doc(hidden)]
pub mod macros {
    pub use crate::{
        fields::AnyField,
        no_handles as handles,
        service::{
            JsonBytes, NamedField, RawBytes, answer, answer_to_json, arguments, call_of_empty_json,
            call_of_json,
        },
    };
}

/// Where there are no members there are no handles to call them.
#[doc(hidden)]
#[macro_export]
macro_rules! no_handles {
    ($($item:tt)*) => {};
}

#[cfg(test)]
extern crate self as quintet;
