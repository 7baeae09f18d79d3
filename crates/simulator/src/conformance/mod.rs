//! The conformance kit: one body of scenarios for every registered protocol.
//!
//! ```text
//!   registry ──► protocol × scenario ──► one named test, conformance::NAME::SCENARIO
//!                              │ for several numbers of replicas, both durabilities
//!                              ▼
//!                           Stage ──► the end: healed, level, new commands commit, reads agree,
//!                                     the history is linearizable, acknowledged is durable
//! ```
//!
//! No scenario knows a protocol by name. It asks for the facts that it needs: who leads (roles in
//! the field's words, the newest route), which set may be lost (`viable`), what the transport must
//! promise. A protocol that is registered as stable must pass them all; for one that is not, a
//! scenario that fails is told and forgiven, so that it can be built in the open.

mod cast;
mod crashes;
mod epochs;
mod limits;
mod network;
mod normal;
mod reads;
mod sessions;
mod storage;

use crate::{panics, stage::Setting};
use quintet_protocols::{PROTOCOLS, UnknownProtocol, find};
use quintet_replica::{Durability, Entry};

/// Why a scenario has nothing to say about a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Skip(pub &'static str);

type Play = fn(Setting) -> Result<(), Skip>;

/// With which durabilities a scenario is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum With {
    Both,
    Disk,
    Memory,
}

/// One scenario.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// Its name; the test's name is `conformance::PROTOCOL::NAME`.
    pub name: &'static str,
    /// The events and the required property, in one line.
    pub about: &'static str,
    replicas: &'static [usize],
    with: With,
    play: Play,
    file: &'static str,
}

macro_rules! scenarios {
    ($($file:ident::$name:ident $replicas:tt $with:ident $about:literal;)*) => {
        /// All scenarios.
        pub const SCENARIOS: &[Scenario] = &[$(Scenario {
            name: stringify!($name),
            about: $about,
            replicas: &$replicas,
            with: With::$with,
            play: $file::$name,
            file: stringify!($file),
        }),*];

        #[cfg(test)]
        macro_rules! tests_of {
            ($protocol:ident) => {
                mod $protocol {
                    $(#[test]
                    fn $name() {
                        super::test(stringify!($protocol), stringify!($name));
                    })*
                }
            };
        }
    };
}

scenarios! {
    normal::normal_case [1, 2, 3, 4, 5, 7] Both
        "clients at every replica and remote ones write and read; nothing fails";
    normal::large_commands [3] Both
        "commands of 100 KB and batches of many";
    normal::long_distance [3, 5] Both
        "links of 40 ms, jitter of 20 ms";
    normal::clocks_apart [3, 5] Both
        "synchronised clocks that are seconds off, and jump";
    normal::clock_far_ahead [3, 5] Both
        "one clock is hours ahead: the log's time stays with the others'";
    network::duplicates [3, 5] Both
        "a quarter of all messages arrives twice, clients repeat what was answered";
    network::loss [3, 5] Both
        "a tenth of all messages is lost; over streams, connections break instead";
    network::resets [3, 5] Both
        "every connection breaks again and again, with all that is on it";
    network::partition_full [3, 5, 7] Both
        "sides that cannot reach each other, the leader in the smaller and in the larger one";
    network::partition_one_way [3, 5] Both
        "one replica hears and is not heard, or is heard and does not hear";
    network::partition_bridge [3, 5] Both
        "two halves and one replica that reaches both";
    network::partition_ring [4, 5] Both
        "each replica reaches only its neighbours in a circle";
    network::partition_chained [3, 5] Both
        "each replica reaches only its neighbours in a row";
    network::lost_majority_acknowledges_nothing [3, 5] Both
        "without a viable set no write is acknowledged; healed, each happened once or never";
    network::liveness_after_healing [3, 5] Both
        "everybody is cut off from everybody for long; then all continues";
    crashes::leader_crash [3, 5, 7] Both
        "the replica that orders dies under load; the others continue, and it comes back";
    crashes::member_crash [3, 5] Both
        "one that does not lead dies under load and comes back";
    crashes::head_crash [3, 5] Both
        "the first of the route dies under load and comes back";
    crashes::tail_crash [3, 5] Both
        "the last of the route dies under load and comes back";
    crashes::minority_then_another [5, 7] Both
        "all that may be lost dies at once, comes back, and then others die";
    crashes::rolling_restart [3, 5] Both
        "one after the other is restarted, the load never ends";
    crashes::crash_again_and_again [3, 5] Both
        "one replica dies as soon as it is back";
    crashes::stopped_leader_hands_over [3, 5] Both
        "a leader that is asked to stop hands over and goes";
    crashes::pause_and_resume [3, 5] Both
        "each replica stands still for seconds and continues as if nothing had been";
    storage::total_restart_from_disk [1, 3, 5] Disk
        "all die at once with what was not durable; all that was acknowledged is there";
    storage::memory_rejoin [3, 5] Memory
        "a replica that lost its state takes part again, and then others may be lost";
    storage::laggard_catches_up_under_load_with_short_logs [3] Both
        "a state that takes longer to fetch than a log reaches back, under writes that never stop";
    storage::laggard_catches_up_when_restoring_outlasts_the_log [3] Both
        "a state that takes longer to restore than a log reaches back, under writes that never stop";
    storage::lagging_replica_past_a_trimmed_log [3, 5] Both
        "a replica that missed more than logs keep gets the state";
    storage::snapshot_under_load [1, 3] Both
        "snapshots are taken all the time; restarts continue from them";
    storage::restart_in_the_middle_of_a_snapshot [3] Disk
        "a replica dies at many moments around a snapshot and starts again";
    storage::replica_with_a_damaged_journal_delays_no_other [3, 5] Disk
        "all die, and one lost its journal: the others serve before it has its large state";
    storage::slow_disks [3, 5] Disk
        "one disk does nothing for seconds; nothing is acknowledged too early";
    reads::linearizable_reads_at_every_replica [1, 2, 3, 5] Both
        "a read anywhere sees every write answered before it began";
    reads::no_stale_read_when_cut_off [3, 5] Both
        "a replica that is cut off answers no read from its past";
    reads::no_stale_read_after_a_pause [3, 5] Both
        "a leader that stood still while others continued answers no read from its past";
    reads::reads_in_a_change_of_leader [3, 5] Both
        "reads continue while leaders die";
    sessions::exactly_once_across_retries [3, 5] Both
        "clients repeat everything, at other replicas, around crashes";
    sessions::retries_after_a_snapshot [3] Both
        "a repeated command is known to a state that came as a snapshot";
    sessions::commuting_pairs_in_both_orders [3] Both
        "commands on different keys in both orders: the same replies, the same state";
    epochs::epochs_follow_each_other [3, 5] Both
        "an epoch ends under load, and who offers that dies: all continue in the next";
    epochs::laggard_past_a_trimmed_log_comes_into_the_next_epoch [3] Both
        "epochs end while one is away for longer than logs reach back: it comes after";
    epochs::switch_to_every_other [3] Both
        "the protocol changes under load to each of the others, and back";
    epochs::lost_replica_is_replaced [3, 5] Both
        "a replica that is lost, and one that leads, are replaced by others under load";
    epochs::members_come_and_go [3] Both
        "members are added and removed under load, and others are lost";
    epochs::any_member_is_removed [3] Both
        "any members are removed under load, and others get their numbers; the rest keep theirs";
    epochs::durability_changes [1, 3] Both
        "from disk to memory and back: once acknowledgements promise a disk, all may die at once";
    epochs::all_that_are_lost_are_removed_at_once [3, 5] Disk
        "as many are lost as the protocol turns out to do without, and removed: those left serve";
    epochs::state_is_given_by_one_that_leaves [3] Memory
        "who has entered an epoch is lost in memory, and who leaves gives its state to the rest";
    epochs::learner_has_the_state_when_it_gets_its_vote [1, 3] Both
        "a replica gets the state before its vote, and no quorum needs it until then";
    epochs::state_saved_ahead_leads_into_the_next_epoch [3] Disk
        "members save their state ahead of a change and restore it when all die as it begins";
    epochs::first_state_that_could_not_be_saved_is_saved_later [3] Disk
        "a disk is full for a moment as an epoch begins: who missed the end still comes in";
    epochs::words_of_an_earlier_epoch_count_for_nothing [3] Both
        "frames of an epoch that has ended come late, and no replica hears them";
    epochs::clients_wait_for_no_timer_when_an_epoch_begins [3] Both
        "an epoch begins, at one replica later than elsewhere: no client waits for a timer";
    epochs::clients_cannot_end_the_epoch [3] Both
        "a client whose requests would end the epoch is not heard; the others continue";
    limits::slow_replica_isolated [3, 5] Both
        "one replica's links and disk are a hundred times slower; the others continue";
    limits::one_slow_link [3, 5] Both
        "one direction of one link is a hundred times slower: clients elsewhere wait a bounded time";
    limits::bounded_memory [3] Both
        "under a long load with one replica away, journals and links stay bounded";
}

/// The result of a scenario for one setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Played {
    /// All held.
    Passed,
    /// It has nothing to say here.
    Skipped(&'static str),
    /// Something did not hold.
    Failed(String),
}

/// A scenario, played with one number of replicas and one durability.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Performance {
    /// For example `5 replicas, memory`.
    pub setting: String,
    /// The result.
    pub played: Played,
}

impl Scenario {
    /// Plays it for a protocol in all its settings, with one of them as a group that has another
    /// beside it; with these numbers of replicas, or with its own when there are none.
    #[must_use]
    pub fn play(
        &self,
        entry: Entry,
        options: &[(String, String)],
        replicas: &[usize],
    ) -> Vec<Performance> {
        let mut settings = Vec::new();
        let min = entry.info.replicas_min.max(1);
        let chosen = if replicas.is_empty() {
            self.replicas
        } else {
            replicas
        };
        let mut counts: Vec<usize> = chosen.iter().copied().filter(|n| *n >= min).collect();
        if counts.is_empty() {
            counts.push(min);
        }
        let several = counts.iter().copied().filter(|count| *count >= 3);
        let replicas_of_groups = several.min().unwrap_or(counts[0]);
        for replicas in counts {
            for durability in [Durability::Disk, Durability::Memory] {
                let wanted = match self.with {
                    With::Both => true,
                    With::Disk => durability == Durability::Disk,
                    With::Memory => durability == Durability::Memory,
                };
                if !wanted {
                    continue;
                }
                let mut setting = Setting::new(entry, replicas, durability);
                setting.options = options.to_vec();
                settings.push(setting);
            }
        }
        // Groups have no epochs yet.
        if self.file != "epochs" {
            let several = |setting: &&Setting| setting.replicas == replicas_of_groups;
            let beside = settings.iter().filter(several).cloned();
            let beside: Vec<Setting> = beside.map(Setting::beside_another).collect();
            settings.extend(beside);
        }
        settings
            .into_iter()
            .map(|setting| self.play_one(setting))
            .collect()
    }

    fn play_one(&self, setting: Setting) -> Performance {
        let (replicas, durability) = (setting.replicas, setting.durability.name());
        let neighbour = setting.neighbour.map(|entry| entry.info.name);
        let as_group = neighbour.map_or(String::new(), |name| {
            format!(", as group 7 beside a group of {name}")
        });
        let mut played = Played::Passed;
        let caught = panics::catch(|| {
            if let Err(Skip(why)) = (self.play)(setting) {
                played = Played::Skipped(why);
            }
        });
        if let Err(what) = caught {
            played = Played::Failed(what);
        }
        let setting = format!("{replicas} replicas, {durability}{as_group}");
        Performance { setting, played }
    }
}

/// The kit's report of one protocol.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Scenario and what it gave, in the order of [`SCENARIOS`].
    pub scenarios: Vec<(&'static str, Vec<Performance>)>,
}

impl Verdict {
    /// The failures, as `scenario, setting: failure`.
    #[must_use]
    pub fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        for (name, performances) in &self.scenarios {
            for performance in performances {
                if let Played::Failed(what) = &performance.played {
                    failures.push(format!("{name}, {}: {what}", performance.setting));
                }
            }
        }
        failures
    }
}

/// Plays all scenarios whose name contains `filter` for one protocol, with these numbers of
/// replicas, or with each scenario's own when there are none.
///
/// # Errors
/// When there is no such protocol.
pub fn verdict(
    protocol: &str,
    filter: &str,
    options: &[(String, String)],
    replicas: &[usize],
) -> Result<Verdict, UnknownProtocol> {
    let entry = *find(protocol)?;
    let chosen = SCENARIOS
        .iter()
        .filter(|scenario| scenario.name.contains(filter));
    let scenarios = chosen
        .map(|scenario| (scenario.name, scenario.play(entry, options, replicas)))
        .collect();
    Ok(Verdict { scenarios })
}

/// The names of all registered protocols.
#[must_use]
pub fn protocols() -> Vec<&'static str> {
    PROTOCOLS.iter().map(|entry| entry.info.name).collect()
}

#[cfg(test)]
fn test(protocol: &str, scenario: &str) {
    let entry = *find(protocol).expect("the folder's name is the protocol's");
    let scenario = SCENARIOS
        .iter()
        .find(|it| it.name == scenario)
        .expect("in the table");
    for Performance { setting, played } in scenario.play(entry, &[], &[]) {
        match played {
            Played::Passed => println!("{setting}: passed"),
            Played::Skipped(why) => println!("{setting}: skipped: {why}"),
            Played::Failed(what) if entry.info.stable => panic!("{setting}: {what}"),
            Played::Failed(what) => println!("{setting}: fails, and is not called stable: {what}"),
        }
    }
}

#[cfg(test)]
macro_rules! tests_of_all {
    ($($protocol:ident)*) => { $(tests_of! { $protocol })* };
}

#[cfg(test)]
quintet_protocols::for_each_protocol! { tests_of_all }
