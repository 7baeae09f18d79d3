//! The shards of a layout, from a configuration to the parts of an event loop.
//!
//! ```text
//!   layout, descriptor of group 0 ──► Plan per shard ──► journal's groups, snapshots ──► ShardPart
//! ```
//!
//! A member of a shard keeps its snapshots in `groups/N/snapshots`; its records and promises stand in
//! the journal that all groups of the process share.

use crate::{
    Config, StartError,
    data::{Data, random},
    directories::sync_directory,
    event_loop::{MemberParts, ShardAbout, ShardPart},
    layout::Layout,
    mail::Mailer,
    replica::Machines,
    snapshots::Snapshots,
    survey::Survey,
    terms,
};
use quintet_protocols::find;
use quintet_replica::{
    Bytes, ClientNode, Descriptor, Durability, Entry, EpochNumber, Executed, FrontendId,
    FrontendSetup, GroupId, Incarnation, MemberRow, Node, NodeSetup, RecoveredBytes, ReplicaId,
    StateMachine,
    journal::{Found, GroupEpoch},
};
use std::path::{Path, PathBuf};

/// A shard as this replica starts it.
pub(crate) struct Plan {
    pub about: ShardAbout,
    descriptor: Descriptor,
    entry: &'static Entry,
    /// Of a member, or of one whose members follow the view.
    machine: Option<Box<dyn StateMachine>>,
    /// The protocol of group 0 serves it.
    is_shared: bool,
    directory: PathBuf,
}

impl Plan {
    /// The plans of a layout that has been checked, in the order of its groups.
    pub fn all(
        config: &Config,
        layout: &Layout,
        top: &Descriptor,
        machines: Machines<'_>,
    ) -> Result<Vec<Self>, StartError> {
        let plan = |shard: crate::layout::Shard<'_>| {
            let (of, members) = (shard.subgroup, shard.members());
            let entry = find(&of.protocol).map_err(|it| StartError::Config(it.to_string()))?;
            let is_shared = of.view.is_some();
            // Any replica may become a member.
            let mut machine = match members.contains(config.id) || is_shared {
                true => Some(machines(shard.group)),
                false => None,
            };
            if let Some(machine) = &mut machine {
                machine.set_hash_seed(top.hash_seed);
            }
            let rows = top.members.iter().zip((0..).map(ReplicaId));
            let row = |(row, id): (&MemberRow, ReplicaId)| match members.contains(id) || is_shared {
                true => row.clone(),
                false => MemberRow::vacant(),
            };
            let mut rows: Vec<_> = rows.map(row).collect();
            while rows.last().is_some_and(|row| !row.is_taken()) {
                rows.pop();
            }
            let descriptor = Descriptor {
                group: shard.group,
                options: of.options.clone(),
                semantics: top.semantics,
                terms: top.terms.clone(),
                limits: top.limits.clone(),
                members: rows,
                level: top.level,
                seed_commitment: top.seed_commitment,
                hash_seed: top.hash_seed,
                ..Descriptor::first(config.cluster, &of.protocol, of.durability)
            };
            let about = ShardAbout {
                group: shard.group,
                name: shard.name(),
                protocol: of.protocol.clone(),
                durability: of.durability,
                members,
                viable: entry.viable_in,
            };
            let group = shard.group.0.to_string();
            Ok(Self {
                about,
                descriptor,
                entry,
                machine,
                is_shared,
                directory: config.data.join("groups").join(group).join("snapshots"),
            })
        };
        layout.shards().map(plan).collect()
    }

    /// Whether this replica is a member.
    pub const fn is_member(&self) -> bool {
        self.machine.is_some()
    }

    /// Whether the members keep it on their disks.
    pub fn keeps(&self) -> bool {
        self.is_member() && self.about.durability == Durability::Disk
    }

    /// The group as the journal knows it.
    pub const fn journal_group(&self) -> GroupEpoch {
        GroupEpoch {
            group: self.about.group,
            epoch: EpochNumber(1),
        }
    }

    /// Whether the other members alone can bring back what this replica has lost. Where members follow
    /// the view, `alone` names the groups of whose logs no other replica has a copy.
    pub fn others_suffice(&self, id: ReplicaId, alone: &[GroupId]) -> bool {
        if self.is_shared {
            return !alone.contains(&self.about.group);
        }
        let voters = self.descriptor.voters();
        voters.is_majority(voters.set().without(id))
    }

    /// Those of these shards whose members follow the view and of which no other replica has a copy,
    /// as the promise of group 0 says.
    pub fn kept_alone(all: &[Self], id: ReplicaId, promise: Option<&Bytes>) -> Vec<GroupId> {
        let shared: Vec<&Self> = all.iter().filter(|plan| plan.is_shared).collect();
        let (Some(plan), Some(promise)) = (shared.first(), promise) else {
            return Vec::new();
        };
        let places = (plan.entry.kept_alone)(promise.clone(), id).into_iter();
        let alone = places.filter_map(|at| shared.get(at));
        alone.map(|plan| plan.about.group).collect()
    }

    /// Looks through its snapshots.
    pub fn survey(&self, config: &Config) -> Result<Survey, StartError> {
        let failed = StartError::failed(&config.data);
        if !self.is_member() {
            return Ok(Survey::default());
        }
        make_durably(&config.data, &self.directory).map_err(failed)?;
        if !self.keeps() {
            return Ok(Survey::default());
        }
        Survey::of(&self.directory, config.cluster, Some(EpochNumber(1)))
            .map_err(failed)?
            .map_err(StartError::refused(&config.data))
    }

    /// Its snapshots that cannot be read go out of the way; with `all`, those that a journal which
    /// is begun again does not lead from, too.
    pub fn set_aside(&self, survey: &Survey, data: &Data, all: bool) -> std::io::Result<()> {
        let aside = data.aside().join(format!("group-{}", self.about.group.0));
        if all {
            survey.set_older_aside(&self.directory, &aside)?;
        }
        survey.set_aside(&self.directory, &aside)
    }

    /// Makes its part of the event loop. `found` is what the journal has of it.
    pub fn part(
        self,
        config: &Config,
        data: &Data,
        found: Option<Found>,
        frontend: FrontendId,
        mailer: &Mailer,
    ) -> Result<(ShardAbout, ShardPart), StartError> {
        let keeps = self.keeps();
        let secret = terms::secret_of_group(&config.secret, self.about.group);
        let mut epoch = self.descriptor.epoch(secret);
        epoch.inject_bugs_of(&config.options);
        let refused = |error: quintet_replica::OptionError| StartError::Config(error.to_string());
        let voters = self.descriptor.voters();
        let Some(machine) = self.machine else {
            let setup = FrontendSetup {
                id: frontend,
                embedded: None,
                epoch,
                durability: self.about.durability,
                options: (),
            };
            let find = |name: &str| find(name).ok();
            let client = ClientNode::new(setup, self.entry, find, random()).map_err(refused)?;
            let client = client.as_guest(self.about.group, voters);
            return Ok((self.about, ShardPart::Guest(Box::new(client))));
        };
        let failed = StartError::failed(&config.data);
        let of = (config.cluster, EpochNumber(1));
        let mailer = mailer.of_group(self.about.group);
        let snapshots = Snapshots::start(self.directory, of, keeps, mailer).map_err(failed)?;
        if let Some(check) = machine.state_check() {
            snapshots.check_states(check);
        }
        let in_memory = self.about.durability == Durability::Memory;
        let lost_memory = in_memory && !data.first_boot && !config.bootstrap_again;
        let found = found.expect("the journal was opened with it");
        let recovered = RecoveredBytes {
            first_boot: data.first_boot,
            state_lost: lost_memory || data.is_repairing(self.about.group),
            promise: found.promise,
            checkpoint: None,
            records: match keeps {
                true => found.records,
                false => Vec::new(),
            },
        };
        let setup = NodeSetup {
            id: config.id,
            // Data in memory lasts for one run of the process; a protocol of several groups counts
            // the runs itself.
            incarnation: match in_memory && !self.is_shared {
                true => Incarnation(data.boot.0),
                false => data.incarnation,
            },
            boot: data.boot,
            group: self.about.group,
            epoch,
            durability: self.about.durability,
            seed: random(),
            frontend,
            snapshot_bytes_min: config.snapshot_bytes_min,
            limits: terms::agreed_limits(config, &self.descriptor),
        };
        let node = match self.is_shared {
            true => Node::sharing(setup, self.entry, machine),
            // Its protocol knows the members by their ranks.
            false => Node::among(voters, setup, self.entry, machine)
                .map(|node| node.with_base(Executed::default())),
        };
        let node = (node.map_err(refused)?).with_descriptor(self.descriptor.encode());
        let parts = MemberParts {
            node,
            recovered,
            snapshots,
            is_shared: self.is_shared,
        };
        Ok((self.about, ShardPart::Member(Box::new(parts))))
    }
}

/// Makes a directory below another, with all between them, so that a crash does not take any of them
/// away again.
fn make_durably(above: &Path, directory: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    for parent in directory.ancestors().skip(1) {
        sync_directory(parent)?;
        if parent == above {
            break;
        }
    }
    Ok(())
}
