//! The context of an ordered call, and calls as values.

use crate::{
    Time, Version, encoding,
    hand_off::{Destinations, WAITING_MAX},
    notices::{NAME_MAX, PER_COMMAND_MAX, TEXT_MAX},
    service::Service,
};
use quintet_replica::{At, CommandTime};
use serde::Serialize;
use std::marker::PhantomData;

/// Bytes of one hand-off, and of all of a command.
const HAND_OFF_MAX: usize = 32 << 20;
const HAND_OFFS_MAX: usize = 64 << 20;

/// The circumstances of an `#[ordered]` call beside its arguments: equal at every member. There is no
/// rank and no address in it, so that a handler cannot become different per member by accident.
#[derive(Debug)]
pub struct CallContext<'a> {
    at: At,
    /// No earlier than that of any version before.
    time: u64,
    version: u64,
    makes_version: bool,
    chance: u64,
    destinations: &'a Destinations,
    wanted: Wanted,
}

/// Calls and texts that a command leaves for others.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    /// Destination, method, arguments.
    pub hand_offs: Vec<(String, u32, Vec<u8>)>,
    /// Name and text.
    pub notices: Vec<(String, String)>,
}

impl<'a> CallContext<'a> {
    pub(crate) const fn new(
        at: At,
        time: u64,
        version: u64,
        destinations: &'a Destinations,
    ) -> Self {
        Self {
            at,
            time,
            version,
            makes_version: false,
            chance: 0,
            destinations,
            wanted: Wanted {
                hand_offs: Vec::new(),
                notices: Vec::new(),
            },
        }
    }

    /// Whether there is a version, and what the command leaves.
    pub(crate) fn into_parts(self) -> (bool, Wanted) {
        (self.makes_version, self.wanted)
    }

    /// Tells those who follow this name of something (`Shards::follow` of `quintet::groups`), when
    /// this command is final. A shard keeps its last 1,024 notifications, up to 1 MiB.
    ///
    /// # Panics
    /// At every member: when the name is longer than 64 bytes or the text than 16 KiB, and at more than
    /// 64 notifications of one command.
    pub fn notify(&mut self, name: &str, text: impl Into<String>) {
        let text = text.into();
        assert!(
            name.len() <= NAME_MAX && text.len() <= TEXT_MAX,
            "a notification is longer than {NAME_MAX} bytes of name and {TEXT_MAX} of text"
        );
        assert!(
            self.wanted.notices.len() < PER_COMMAND_MAX,
            "a command makes more than {PER_COMMAND_MAX} notifications"
        );
        self.wanted.notices.push((name.to_owned(), text));
    }

    /// Hands a call off to another shard: it is executed there exactly once, later than this command,
    /// and behind all that this shard has handed off to that one before. There is no answer.
    ///
    /// # Panics
    /// At every member: when the layout does not declare that this subgroup hands off to that one, or
    /// there is no such shard; when the arguments are longer than 32 MiB, or those of all hand-offs of
    /// the command than 64 MiB; and at more than 4,096 of them.
    pub fn then<S: Service>(&mut self, subgroup: &str, shard: usize, call: CallOf<S>) {
        let name = self.destinations.name(S::NAME, subgroup, shard);
        let name = name.unwrap_or_else(|| {
            panic!(
                "a call of {} was handed off to shard '{subgroup}/{shard}', which the layout does not \
                 declare (hands_off_to)",
                S::NAME
            )
        });
        let all = self
            .wanted
            .hand_offs
            .iter()
            .map(|(_, _, arguments)| arguments.len());
        let all = all.sum::<usize>() + call.arguments.len();
        assert!(
            call.arguments.len() <= HAND_OFF_MAX && all <= HAND_OFFS_MAX,
            "a command hands off more than 32 MiB at once, or than 64 MiB"
        );
        assert!(
            self.wanted.hand_offs.len() < WAITING_MAX,
            "a command makes too many hand-offs"
        );
        let hand_off = (name, call.method, call.arguments);
        self.wanted.hand_offs.push(hand_off);
    }

    /// The time of the command by the log's clock: no earlier than that of any command before, and
    /// later than all that its caller has seen in any shard.
    #[must_use]
    pub const fn time(&self) -> Time {
        Time(CommandTime(self.time))
    }

    /// The version that this command makes. Asking makes one, even if the command changes no field.
    pub const fn version(&mut self) -> Version {
        self.makes_version = true;
        Version(self.version + 1)
    }

    /// A random number, the same at every member: another one at each call.
    pub const fn chance(&mut self) -> u64 {
        self.chance += 1;
        self.at.id.mixed(self.chance)
    }
}

/// A call as a value, to be handed off: `Cache::calls().fill(…)`.
pub struct CallOf<S> {
    pub(crate) method: u32,
    pub(crate) arguments: Vec<u8>,
    service: PhantomData<fn() -> S>,
}

impl<S: Service> std::fmt::Debug for CallOf<S> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "a call of {}", S::NAME)
    }
}

impl<S> CallOf<S> {
    /// A call of this method with these arguments. For the macro's code.
    #[must_use]
    pub fn new(method: u32, arguments: &impl Serialize) -> Self {
        Self {
            method,
            arguments: encoding::encode(arguments),
            service: PhantomData,
        }
    }
}
