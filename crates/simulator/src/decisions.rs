//! Every decision that chance makes in a world, so that a run can be written down, edited, and
//! run again.
//!
//! ```text
//!   Random ──(a value is wanted)──► Decisions ─┬─ recording: the seed's stream decides; noted
//!                                              └─ replaying: the script decides, or nothing
//!                                                 happens: no fault, no loss, the least delay
//!
//!   a decision's name = scope · site · how many there were before it
//!                        │      └ file and line that asked
//!                        └ whose event it is: a replica, a client's turn, a fault …
//! ```
//!
//! All randomness comes from [`Random`](crate::random::Random), which asks here; its callers need
//! not know. Names by scope keep an edit in one place from moving the decisions of another: a
//! client that is silenced takes nothing from the next one's chances.

use crate::{
    event::{EVENTS_MAX, Event},
    heal::COMMITS_MIN,
    random::Random,
};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    panic::Location,
    str::FromStr,
    sync::{Arc, Mutex},
};

/// Whose decision it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Scope {
    /// Before the first event.
    #[default]
    Setup,
    /// Of no single replica or client.
    World,
    /// A replica's, or a remote client's place after them.
    Place(u16),
    /// A client's.
    Client(u16),
    /// Of a client's turn, counted per client.
    Turn(u16, u32),
    /// A fault's, by its number in the plan.
    Fault(u16),
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setup => f.write_str("setup"),
            Self::World => f.write_str("world"),
            Self::Place(place) => write!(f, "place {place}"),
            Self::Client(client) => write!(f, "client {client}"),
            Self::Turn(client, turn) => write!(f, "client {client} turn {turn}"),
            Self::Fault(fault) => write!(f, "fault {fault}"),
        }
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split(' ').collect();
        let scope = match words.as_slice() {
            ["setup"] => Some(Self::Setup),
            ["world"] => Some(Self::World),
            ["place", place] => place.parse().ok().map(Self::Place),
            ["client", client] => client.parse().ok().map(Self::Client),
            ["client", client, "turn", turn] => (client.parse().ok())
                .zip(turn.parse().ok())
                .map(|(client, turn)| Self::Turn(client, turn)),
            ["fault", fault] => fault.parse().ok().map(Self::Fault),
            _ => None,
        };
        scope.ok_or_else(|| {
            format!(
                "'{text}' is not whose decision it can be: setup, world, place N, client N, \
                 client N turn N, fault N"
            )
        })
    }
}

impl Event {
    /// Whose decisions are made while this event is handled.
    pub const fn scope(&self) -> Scope {
        match self {
            Self::Step { node, .. }
            | Self::IdleWake { node, .. }
            | Self::Synced { node, .. }
            | Self::SnapshotWritten { node, .. }
            | Self::SnapshotSaved { node, .. }
            | Self::Stopped { node, .. }
            | Self::StandStill { node, .. }
            | Self::Restart { node } => Scope::Place(*node),
            Self::Deliver { to, .. } => Scope::Place(*to),
            Self::Timer { place, .. } => Scope::Place(*place),
            Self::Connect { a, .. } => Scope::Place(*a),
            Self::LinkTold { at, .. } => Scope::Place(*at),
            Self::Turn { client } | Self::Resubmit { client } => Scope::Client(*client),
            Self::Injection { injection, .. } | Self::InjectionEnds { injection } => {
                Scope::Fault(*injection)
            }
            // Kinds of events that this list does not know yet.
            #[allow(unreachable_patterns)]
            _ => Scope::World,
        }
    }
}

/// The kind of a random choice.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ask {
    /// A number below this.
    Below(u64),
    /// Yes in this many of 1,000 cases.
    Chance(u64),
    /// 64 bits: a seed or an id. There is no calm value for these.
    Bits,
}

/// A site in the code that draws, as `file:line`.
pub(crate) type Site = Arc<str>;
/// The decisions per scope, site and ordinal.
pub(crate) type Choices = BTreeMap<Scope, BTreeMap<Site, BTreeMap<u32, u64>>>;

/// A client's turn: it invokes operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TurnAt {
    pub client: u16,
    /// Which of the client's turns.
    pub turn: u32,
    /// Not before this time.
    pub at: u64,
}

/// The decisions prescribed for a world.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    /// For ids, for the replicas' own seeds, and for the sites that are `drawn`.
    pub seed: u64,
    /// Values drawn once, by name, in the order of asking.
    pub profiles: BTreeMap<String, toml::Value>,
    pub choices: Arc<Choices>,
    /// At these sites what is not listed is drawn from the seed.
    pub drawn: BTreeSet<Site>,
    pub turns: Vec<TurnAt>,
    /// For each fault of the plan in the profile, what its number was.
    pub faults: Vec<u16>,
    /// After healing clients continue when their listed turns are over, so that it shows whether
    /// the cluster still commits.
    pub continues: bool,
}

/// Whether chance is noted.
#[derive(Clone, Debug, Default)]
pub(crate) enum Noting {
    /// It is not.
    #[default]
    No,
    /// It is.
    Yes,
    /// The script decides.
    Script(Arc<Script>),
}

impl Noting {
    /// The source of chance of a seed.
    pub fn random(&self, seed: u64) -> (Random, Option<Arc<Mutex<Decisions>>>) {
        let random = Random::new(seed);
        let script = match self {
            Self::No => return (random, None),
            Self::Yes => None,
            Self::Script(script) => Some(script.clone()),
        };
        let (random, decisions) = random.noted(script);
        (random, Some(decisions))
    }
}

/// How far a world goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The second phase begins then, instead of when everything drawn has happened.
    pub heal_at: Option<u64>,
    /// The world ends then, checked by what was seen so far.
    pub end_at: u64,
    /// Commits that the healed core must bring about.
    pub commits_min: u64,
    /// More events than this: something runs in circles.
    pub events_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            heal_at: None,
            end_at: u64::MAX,
            commits_min: COMMITS_MIN,
            events_max: EVENTS_MAX,
        }
    }
}

/// A client's possible actions when its turn has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Now,
    Later(u64),
    Never,
}

/// The clients' actions in their turns, as text.
pub(crate) type Does = BTreeMap<(u16, u32), Vec<String>>;

/// The decisions made while a world ran.
#[derive(Clone, Debug, Default)]
pub(crate) struct Made {
    pub profiles: BTreeMap<String, toml::Value>,
    pub choices: Choices,
    pub turns: Vec<TurnAt>,
    /// Faults that were injected, by number.
    pub injected: BTreeSet<u16>,
    /// The actions of each turn, for people.
    pub does: Does,
    /// Decisions in all.
    pub count: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Decisions {
    script: Option<Arc<Script>>,
    scope: Scope,
    /// Within a profile: what is drawn is noted as a whole.
    in_profile: bool,
    labels: HashMap<usize, Site>,
    counts: HashMap<(Scope, Site), u32>,
    turns_taken: HashMap<u16, u32>,
    /// The script does not choose the turn in progress: it is drawn from the seed.
    unlisted: bool,
    made: Made,
}

impl Decisions {
    /// Notes what the seed decides, or makes a world follow `script`.
    pub fn new(script: Option<Arc<Script>>) -> Self {
        Self {
            script,
            ..Self::default()
        }
    }

    /// The decisions made so far.
    pub fn take(&mut self) -> Made {
        std::mem::take(&mut self.made)
    }

    /// The decisions that follow are made while `event` is handled.
    pub fn begin(&mut self, event: &Event) {
        let scope = match (event.scope(), &self.script) {
            (Scope::Fault(index), Some(script)) => {
                let number = script.faults.get(usize::from(index));
                Scope::Fault(number.copied().unwrap_or(index))
            }
            (scope, _) => scope,
        };
        if let (Event::Injection { .. }, Scope::Fault(number)) = (event, scope) {
            self.made.injected.insert(number);
        }
        self.enter(scope);
    }

    /// The decisions that follow are this one's; gives whose they were before.
    pub fn enter(&mut self, scope: Scope) -> Scope {
        self.unlisted = false;
        std::mem::replace(&mut self.scope, scope)
    }

    /// Decides; `stream` is what the seed's stream has to say.
    pub fn decide(&mut self, ask: Ask, at: &'static Location<'static>, stream: u64) -> u64 {
        if self.in_profile {
            return stream;
        }
        self.made.count += 1;
        let site = self
            .labels
            .entry(std::ptr::from_ref(at) as usize)
            .or_insert_with(|| label(at))
            .clone();
        let count = self.counts.entry((self.scope, site.clone())).or_default();
        let nth = *count;
        *count += 1;
        let Some(script) = &self.script else {
            self.note(site, nth, stream);
            return stream;
        };
        let listed = (script.choices.get(&self.scope))
            .and_then(|sites| sites.get(&site)?.get(&nth))
            .copied();
        if let Some(value) = listed {
            let value = match ask {
                Ask::Below(bound) => value.min(bound.saturating_sub(1)),
                Ask::Chance(_) => value.min(1),
                Ask::Bits => value,
            };
            self.note(site, nth, value);
            return value;
        }
        let hashed = || hash(script.seed, self.scope, &site, nth);
        let drawn = self.unlisted || script.drawn.contains(&site);
        let scaled = |bound| ((u128::from(hashed()) * u128::from(bound)) >> 64) as u64;
        match ask {
            Ask::Bits => hashed(),
            Ask::Below(bound) if drawn => scaled(bound),
            Ask::Chance(share) if drawn => u64::from(scaled(1000) < share),
            Ask::Below(_) | Ask::Chance(_) => 0,
        }
    }

    fn note(&mut self, site: Site, nth: u32, value: u64) {
        // A decision that is not listed is 0, unless its site is drawn from the seed.
        let drawn = self
            .script
            .as_ref()
            .is_some_and(|s| s.drawn.contains(&site));
        if value != 0 || drawn {
            let sites = self.made.choices.entry(self.scope).or_default();
            sites.entry(site).or_default().insert(nth, value);
        }
    }

    /// A value that is drawn as a whole. A script that lists it under `name` has the last word.
    pub fn profile<T: Serialize + DeserializeOwned>(&mut self, name: &str) -> Option<T> {
        let script = self.script.as_ref()?;
        let value = script.profiles.get(name)?.clone();
        self.made.profiles.insert(name.to_string(), value.clone());
        value.try_into().ok()
    }

    /// Notes a value that was drawn as a whole.
    pub fn keep_profile<T: Serialize>(&mut self, name: &str, value: &T) {
        self.in_profile = false;
        if let Ok(value) = toml::Value::try_from(value) {
            self.made.profiles.insert(name.to_string(), value);
        }
    }

    /// The following decisions are drawn as a whole, until [`Self::keep_profile`].
    pub fn begin_profile(&mut self) {
        self.in_profile = true;
    }

    /// The actions of the turn in progress, for people.
    pub fn does(&mut self, what: Vec<String>) {
        if let Scope::Turn(client, turn) = self.scope {
            self.made.does.insert((client, turn), what);
        }
    }

    /// A client could take its turn now; `checked` once the faults are over.
    pub fn turn(&mut self, client: u16, now: u64, checked: bool) -> Turn {
        let taken = self.turns_taken.entry(client).or_default();
        let mut turn = *taken;
        if let Some(script) = &self.script {
            let next = (script.turns.iter())
                .filter(|listed| listed.client == client && listed.turn >= turn)
                .min_by_key(|listed| listed.turn);
            match next {
                None if checked && script.continues => {
                    *taken = turn + 1;
                    (self.scope, self.unlisted) = (Scope::Turn(client, turn), true);
                    return Turn::Now;
                }
                None => return Turn::Never,
                Some(next) if next.at > now => return Turn::Later(next.at),
                Some(next) => turn = next.turn,
            }
        }
        *taken = turn + 1;
        self.made.turns.push(TurnAt {
            client,
            turn,
            at: now,
        });
        self.scope = Scope::Turn(client, turn);
        Turn::Now
    }
}

fn label(at: &Location<'_>) -> Site {
    let file = at.file().rsplit(['/', '\\']).next().unwrap_or_default();
    format!("{file}:{}", at.line()).into()
}

/// Bits that depend on the seed and on the decision's name only.
fn hash(seed: u64, scope: Scope, site: &str, nth: u32) -> u64 {
    let (kind, a, b) = match scope {
        Scope::Setup => (0, 0, 0),
        Scope::World => (1, 0, 0),
        Scope::Place(place) => (2, place, 0),
        Scope::Client(client) => (3, client, 0),
        Scope::Turn(client, turn) => (4, client, turn),
        Scope::Fault(fault) => (5, fault, 0),
    };
    let words = [seed, kind, u64::from(a), u64::from(b), u64::from(nth)];
    let bytes = site.bytes().map(u64::from);
    words.into_iter().chain(bytes).fold(0, crate::machine::mix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_decision_it_is_reads_back() {
        for scope in [
            Scope::Setup,
            Scope::World,
            Scope::Place(3),
            Scope::Client(7),
            Scope::Turn(7, 12),
            Scope::Fault(2),
        ] {
            assert_eq!(scope.to_string().parse(), Ok(scope));
        }
        assert!("place x".parse::<Scope>().unwrap_err().contains("place x"));
    }

    fn draw(random: &mut Random) -> Vec<u64> {
        let mut drawn = Vec::new();
        for _ in 0..20 {
            drawn.push(random.between(3, 90));
            drawn.push(u64::from(random.chance(300)));
        }
        drawn.push(random.draw());
        drawn
    }

    #[test]
    fn recorded_decisions_repeat_and_removed_ones_are_calm() {
        let (mut random, noted) = Random::new(4).noted(None);
        let first = draw(&mut random);
        assert_eq!(first, draw(&mut Random::new(4)), "noting changes nothing");
        let made = noted.lock().unwrap().take();
        let mut script = Script {
            seed: 9,
            choices: Arc::new(made.choices),
            ..Script::default()
        };
        let (mut random, _) = Random::new(5).noted(Some(Arc::new(script.clone())));
        assert_eq!(draw(&mut random), first);
        script.choices = Arc::default();
        let (mut random, _) = Random::new(5).noted(Some(Arc::new(script)));
        let calm = draw(&mut random);
        assert!(calm[..40].iter().all(|value| [0, 3].contains(value)));
    }

    fn draw_here(random: &mut Random) -> u64 {
        random.below(1 << 40)
    }

    #[test]
    fn edit_in_one_scope_moves_nothing_in_another() {
        let (mut random, noted) = Random::new(4).noted(None);
        draw_here(&mut random);
        let made = noted.lock().unwrap().take();
        let drawn = made.choices[&Scope::Setup].keys().cloned().collect();
        let script = Arc::new(Script {
            drawn,
            ..Script::default()
        });
        let draw = |silenced: bool| {
            let (mut random, _) = Random::new(4).noted(Some(script.clone()));
            if !silenced {
                random.enter(Scope::Client(0));
                draw_here(&mut random);
            }
            random.enter(Scope::Client(1));
            draw_here(&mut random)
        };
        assert_eq!(draw(true), draw(false));
        assert_ne!(draw(true), 0);
    }
}
