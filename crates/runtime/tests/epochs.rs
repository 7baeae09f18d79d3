//! A running cluster continues with other protocols and other options.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::{Cluster, Counter};
use quintet_replica::{Durability, Level, ReplicaId};
use quintet_runtime::{
    ChangeReport, ChangeRequest, Config, Join, Listeners, PeerReport, Replica, Running, Transport,
    join,
};
use std::{
    net::{Ipv4Addr, TcpListener},
    time::Duration,
};
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(60);

fn to(protocol: &str, options: &[(&str, &str)]) -> ChangeRequest {
    let options = options.iter();
    ChangeRequest {
        protocol: Some(protocol.to_owned()),
        options: options
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        ..ChangeRequest::default()
    }
}

/// Adds one at a replica; the number that this makes.
fn add(cluster: &Cluster, id: usize) -> u64 {
    let reply = cluster.handle(id).submit(Level::Ordered, b"1");
    String::from_utf8(reply.unwrap()).unwrap().parse().unwrap()
}

fn switch(cluster: &Cluster, id: usize, request: ChangeRequest) -> Result<ChangeReport, String> {
    cluster.handle(id).change(request, TIMEOUT)
}

/// Commands are executed once each, in every epoch, at every replica.
fn continues(cluster: &Cluster, sum: &mut u64) {
    let running = cluster.replicas.iter().enumerate();
    for (id, _) in running.filter(|(_, replica)| replica.is_some()) {
        *sum += 1;
        assert_eq!(add(cluster, id), *sum, "replica {id}");
    }
}

/// A cluster that works, with the sum that its counters have.
fn started(count: usize, durability: Durability) -> (TempDir, Cluster, u64) {
    let directory = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(directory.path(), count, durability);
    let mut sum = 0;
    continues(&cluster, &mut sum);
    (directory, cluster, sum)
}

fn restart_all(cluster: &mut Cluster) {
    let all = (0..cluster.replicas.len()).filter(|id| cluster.replicas[*id].is_some());
    let all: Vec<_> = all.collect();
    for id in &all {
        drop(cluster.replicas[*id].take());
    }
    for id in all {
        cluster.restart(id);
    }
}

#[test]
fn cluster_changes_protocols_and_restarts_with_last_one() {
    let (_directory, mut cluster, mut sum) = started(3, Durability::Disk);
    for (number, name) in ["chain_paxos", "nezha", "derecho", "multipaxos"]
        .iter()
        .enumerate()
    {
        let report = switch(&cluster, number % 3, to(name, &[])).unwrap();
        assert_eq!(
            (report.epoch, &report.protocol[..]),
            (number as u64 + 2, *name)
        );
        continues(&cluster, &mut sum);
    }
    // A repeated request for the present configuration changes nothing.
    let again = switch(&cluster, 1, to("multipaxos", &[])).unwrap();
    assert_eq!(again.epoch, 5);
    let options = switch(&cluster, 1, to("multipaxos", &[("heartbeat_ms", "50")])).unwrap();
    assert_eq!(
        (options.epoch, &options.options["heartbeat_ms"][..]),
        (6, "50")
    );
    continues(&cluster, &mut sum);

    // One is away while the epoch changes, and then all are.
    drop(cluster.replicas[2].take());
    assert_eq!(switch(&cluster, 0, to("mencius", &[])).unwrap().epoch, 7);
    sum += 1;
    assert_eq!(add(&cluster, 0), sum);
    cluster.restart(2);
    continues(&cluster, &mut sum);
    restart_all(&mut cluster);
    continues(&cluster, &mut sum);
    let status = cluster.handle(2).status();
    assert_eq!((status.epoch, &status.protocol[..]), (7, "mencius"));
}

#[test]
fn memory_cluster_continues_and_readmits_member_without_state() {
    let (_directory, mut cluster, mut sum) = started(3, Durability::Memory);
    switch(&cluster, 0, to("nezha", &[])).unwrap();
    continues(&cluster, &mut sum);
    for id in 0..3 {
        drop(cluster.replicas[id].take());
        cluster.restart(id);
        continues(&cluster, &mut sum);
    }
}

#[test]
fn epoch_is_found_again_by_what_was_saved_ahead_of_it() {
    let (directory, mut cluster, mut sum) = started(3, Durability::Disk);
    let at = |id: usize| directory.path().join(format!("r{id}/snapshots"));
    switch(&cluster, 0, to("chain_paxos", &[])).unwrap();
    continues(&cluster, &mut sum);
    for id in 0..3 {
        drop(cluster.replicas[id].take());
        let names = std::fs::read_dir(at(id)).unwrap();
        let names = names.map(|it| it.unwrap().file_name().into_string().unwrap());
        let (ahead, others): (Vec<_>, Vec<_>) = names.partition(|name| name.ends_with(".bridge"));
        assert_eq!(ahead.len(), 1, "replica {id}: {others:?}");
        // As if they had died when the epoch began.
        for name in others {
            std::fs::remove_file(at(id).join(name)).unwrap();
        }
    }
    for id in 0..3 {
        cluster.restart(id);
    }
    continues(&cluster, &mut sum);
    let status = cluster.handle(1).status();
    assert_eq!((status.epoch, &status.protocol[..]), (2, "chain_paxos"));
}

#[test]
fn cluster_without_a_write_changes_too() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(directory.path(), 3, Durability::Memory);
    assert_eq!(switch(&cluster, 1, to("chora", &[])).unwrap().epoch, 2);
    continues(&cluster, &mut 0);
}

/// The configuration and port of another replica that takes this one's place, or is one more where
/// there is none: an empty directory, a free port.
fn newcomer(cluster: &Cluster, id: usize, name: &str) -> (Config, TcpListener, Join) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let old = cluster.configs.get(id).unwrap_or(&cluster.configs[0]);
    let data = old.data.with_file_name(name);
    let mut config = Config::new(old.cluster, ReplicaId(0), Vec::new(), data);
    config.threads = old.threads;
    config.transport = old.transport;
    config.redis_listen = None;
    config.admin_listen = None;
    config.peer_listen = address;
    config.peer_announce = Some(address.to_string());
    let seeds = cluster.configs.iter().enumerate();
    let seeds = seeds.filter(|(at, _)| *at != id);
    let join = Join {
        seeds: seeds.map(|(_, it)| it.peer_listen.to_string()).collect(),
        replaces: (id < cluster.configs.len()).then_some(ReplicaId(id as u16)),
        timeout: TIMEOUT,
    };
    (config, listener, join)
}

/// Starts a replica that listens there for its peers.
fn start(config: Config, listener: TcpListener) -> Running {
    let listeners = Listeners {
        peer: Some(listener),
        ..Listeners::default()
    };
    Replica::start_on(config, Box::new(Counter::default()), listeners).unwrap()
}

/// Another replica takes this one's place, and is started.
fn replace(cluster: &mut Cluster, id: usize, name: &str) {
    let (mut config, listener, wanted) = newcomer(cluster, id, name);
    join(&mut config, &Counter::default(), Some(&wanted)).unwrap();
    assert_eq!(config.id.index(), id);
    let running = start(config.clone(), listener);
    cluster
        .replicas
        .resize_with(cluster.replicas.len().max(id + 1), || None);
    cluster.replicas[id] = Some(running);
    match cluster.configs.get_mut(id) {
        Some(place) => *place = config,
        None => cluster.configs.push(config),
    }
}

fn remove(cluster: &Cluster, asked: usize, id: u16) -> Result<ChangeReport, String> {
    let request = ChangeRequest {
        remove: vec![id],
        ..ChangeRequest::default()
    };
    let before = cluster.handle(asked).status().members;
    let report = switch(cluster, asked, request)?;
    let status = cluster.handle(asked).status();
    assert_eq!(status.members, before - 1, "the answer is true at once");
    Ok(report)
}

/// Waits until everybody knows that a new replica has its vote.
fn has_vote(cluster: &Cluster, id: usize) {
    for asked in 0..cluster.replicas.len() {
        cluster.wait(asked, "another voter", |status| {
            let row = status.rows.get(id);
            row.is_some_and(|row| row.role == "voter") && status.members == id + 1
        });
    }
}

#[test]
fn lost_learner_is_not_needed_and_is_replaced_by_the_next() {
    for count in [1, 3] {
        let (_directory, mut cluster, mut sum) = started(count, Durability::Disk);
        for name in ["lost", "lost-too"] {
            let (mut config, _listener, mut wanted) = newcomer(&cluster, count, name);
            wanted.replaces = (name != "lost").then_some(ReplicaId(count as u16));
            join(&mut config, &Counter::default(), Some(&wanted)).unwrap();
            assert_eq!(config.id.index(), count);
            // The voters are as many as before, and as many of them may be lost.
            if count == 3 {
                drop(cluster.replicas[1].take());
            }
            sum += 1;
            assert_eq!(add(&cluster, 0), sum);
            switch(&cluster, 0, to("nezha", &[])).unwrap();
            if count == 3 {
                cluster.restart(1);
            }
            continues(&cluster, &mut sum);
            let rows = cluster.handle(0).status().rows;
            assert_eq!((rows.len(), &rows[count].role[..]), (count + 1, "learner"));
        }
        let (config, _listener, _) = newcomer(&cluster, count, "none");
        cluster.configs.push(config);
        replace(&mut cluster, count, "another");
        continues(&cluster, &mut sum);
        has_vote(&cluster, count);
        let report = remove(&cluster, 0, count as u16).unwrap();
        assert_eq!(report.members.len(), count);
    }
}

#[test]
fn replicas_that_join_at_once_become_members_one_after_another() {
    let (_directory, mut cluster, mut sum) = started(1, Durability::Memory);
    let newcomers = ["one", "another"].map(|name| newcomer(&cluster, 1, name));
    let mut members = std::thread::scope(|scope| {
        let joins = newcomers.map(|(mut config, listener, wanted)| {
            scope.spawn(move || {
                join(&mut config, &Counter::default(), Some(&wanted)).unwrap();
                (config.clone(), start(config, listener))
            })
        });
        joins.map(|it| it.join().unwrap())
    });
    members.sort_by_key(|(config, _)| config.id);
    for (config, running) in members {
        assert_eq!(config.id.index(), cluster.configs.len());
        cluster.configs.push(config);
        cluster.replicas.push(Some(running));
    }
    has_vote(&cluster, 2);
    continues(&cluster, &mut sum);
    // The learner and the votes, each in an epoch of its own.
    cluster.wait(0, "four changes", |status| status.epoch == 5);
}

#[test]
fn change_that_a_learner_is_asked_for_is_refused() {
    let (_directory, cluster, _) = started(1, Durability::Disk);
    let (mut config, listener, wanted) = newcomer(&cluster, 1, "another");
    join(&mut config, &Counter::default(), Some(&wanted)).unwrap();
    // The only voter is away, so that no member gives it the state or a vote.
    let Cluster { mut replicas, .. } = cluster;
    drop(replicas[0].take());
    let learner = start(config.clone(), listener);
    let request = to("nezha", &[]);
    let refused = learner.handle().change(request, TIMEOUT).unwrap_err();
    assert!(refused.contains("no vote yet"), "{refused}");

    // So is a replica that would join by it.
    let seed = learner.addresses().peer.to_string();
    let data = config.data.with_file_name("a-third");
    let mut third = Config::new(config.cluster, ReplicaId(0), Vec::new(), data);
    third.peer_announce = Some("127.0.0.1:9".to_owned());
    let wanted = Join {
        seeds: vec![seed],
        replaces: None,
        timeout: TIMEOUT,
    };
    let refused = join(&mut third, &Counter::default(), Some(&wanted)).unwrap_err();
    assert!(refused.to_string().contains("no vote yet"), "{refused}");
}

#[test]
fn restarted_learner_gets_its_vote() {
    let (_directory, mut cluster, mut sum) = started(1, Durability::Disk);
    for id in 1..3 {
        replace(&mut cluster, id, &format!("another-{id}"));
        drop(cluster.replicas[id].take());
        switch(&cluster, 0, to(["racs", "nezha"][id - 1], &[])).unwrap();
        sum += 1;
        assert_eq!(add(&cluster, 0), sum);
        cluster.restart(id);
        continues(&cluster, &mut sum);
        has_vote(&cluster, id);
    }
}

#[test]
fn cluster_grows_and_shrinks_by_one_member_at_a_time() {
    for (durability, count) in [(Durability::Disk, 3), (Durability::Memory, 1)] {
        let (_directory, mut cluster, mut sum) = started(count, durability);
        for id in count..5 {
            replace(&mut cluster, id, &format!("another-{id}"));
            continues(&cluster, &mut sum);
            has_vote(&cluster, id);
        }
        let status = cluster.handle(4).status();
        assert_eq!((status.members, status.rows.len()), (5, 5));
        // Two of five may be lost, old or new.
        for lost in [0, 4] {
            drop(cluster.replicas[lost].take());
        }
        sum += 1;
        assert_eq!(add(&cluster, 1), sum);
        for lost in [0, 4] {
            cluster.restart(lost);
        }
        continues(&cluster, &mut sum);
        switch(&cluster, 3, to("nezha", &[])).unwrap();
        continues(&cluster, &mut sum);

        let refused = remove(&cluster, 4, 4).unwrap_err();
        assert!(refused.contains("ask another one"), "{refused}");
        for (id, left) in [(1, 4), (4, 3)] {
            let report = remove(&cluster, 0, id as u16).unwrap();
            assert_eq!(report.members.len(), left);
            let removed = cluster.replicas[id].take().unwrap().join();
            assert_eq!(removed.exit_code(), 7, "{removed}");
            assert!(
                removed.to_string().contains("no member any more"),
                "{removed}"
            );
            continues(&cluster, &mut sum);
        }
        if durability == Durability::Disk {
            restart_all(&mut cluster);
            continues(&cluster, &mut sum);
        }
    }
}

/// A change of what acknowledgements promise.
fn keep_on(durability: Durability) -> ChangeRequest {
    ChangeRequest {
        durability: Some(durability.name().to_owned()),
        ..ChangeRequest::default()
    }
}

#[test]
fn cluster_in_memory_is_kept_on_disk_from_a_change_on_and_back() {
    let (_directory, mut cluster, mut sum) = started(3, Durability::Memory);
    let report = switch(&cluster, 1, keep_on(Durability::Disk)).unwrap();
    assert_eq!((report.epoch, &report.durability[..]), (2, "disk"));
    // All at once, and with the configuration that they began with; and once more, since what was
    // written since is on the disks, too.
    for _ in 0..2 {
        restart_all(&mut cluster);
        continues(&cluster, &mut sum);
    }
    let status = cluster.handle(2).status();
    assert_eq!((status.epoch, &status.durability[..]), (2, "disk"));
    let again = switch(&cluster, 0, keep_on(Durability::Disk)).unwrap();
    assert_eq!(again.epoch, 2, "what is so changes nothing");
    let tape = ChangeRequest {
        durability: Some("tape".to_owned()),
        ..ChangeRequest::default()
    };
    let refused = switch(&cluster, 0, tape).unwrap_err();
    assert!(refused.contains("'disk' or 'memory'"), "{refused}");

    let report = switch(&cluster, 2, keep_on(Durability::Memory)).unwrap();
    assert_eq!((report.epoch, &report.durability[..]), (3, "memory"));
    for id in 0..3 {
        cluster.stop(id);
        cluster.restart(id);
        cluster.wait(id, "the state of the others", |status| status.voting);
        continues(&cluster, &mut sum);
    }
    // A new configuration says what is so, or what was.
    for config in &mut cluster.configs {
        config.durability = Durability::Disk;
    }
    cluster.stop(1);
    cluster.restart(1);
    cluster.wait(1, "the state of the others", |status| status.voting);
    continues(&cluster, &mut sum);
}

#[test]
fn cluster_that_was_changed_to_disk_is_not_begun_again() {
    let (_directory, mut cluster, _) = started(1, Durability::Memory);
    switch(&cluster, 0, keep_on(Durability::Disk)).unwrap();
    cluster.stop(0);
    let mut config = cluster.configs[0].clone();
    config.bootstrap_again = true;
    let refused = Replica::start(config, Box::new(Counter::default())).map(|_| ());
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("bootstrap_again"), "{refused}");
    cluster.restart(0);
    assert_eq!(add(&cluster, 0), 2);
}

#[test]
fn state_of_the_disk_stays_when_memory_is_lost() {
    let (directory, mut cluster, _) = started(1, Durability::Disk);
    switch(&cluster, 0, keep_on(Durability::Memory)).unwrap();
    assert_eq!(add(&cluster, 0), 2);
    cluster.stop(0);
    cluster.restart(0);
    let reason = cluster.replicas[0].take().unwrap().join().to_string();
    assert!(reason.contains("quintet snapshot restore"), "{reason}");
    let left = std::fs::read_dir(directory.path().join("r0/snapshots")).unwrap();
    let left: Vec<_> = left.map(|file| file.unwrap().file_name()).collect();
    assert_eq!(left, ["last-on-disk"]);

    // Its journal knows nothing of what it is begun again with.
    cluster.configs[0].durability = Durability::Memory;
    cluster.configs[0].bootstrap_again = true;
    cluster.restart(0);
    assert_eq!(add(&cluster, 0), 1);
}

#[test]
fn cluster_grows_and_shrinks_over_datagrams_and_shared_memory() {
    for (transport, protocol) in [
        (Transport::Udp, "multipaxos"),
        (Transport::SharedMemory, "derecho"),
        (Transport::SharedMemory, "chain_paxos"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let (mut cluster, listeners) = Cluster::prepare(directory.path(), 3, Durability::Memory);
        for config in &mut cluster.configs {
            (config.transport, config.protocol) = (transport, protocol.to_owned());
        }
        cluster.start_on(listeners);
        let mut sum = 0;
        continues(&cluster, &mut sum);
        replace(&mut cluster, 3, "another-3");
        continues(&cluster, &mut sum);
        has_vote(&cluster, 3);
        cluster.wait(3, "all ways", |status| {
            let fast = |peer: &PeerReport| peer.memory || peer.datagrams;
            status.peers.iter().all(fast)
        });
        continues(&cluster, &mut sum);
        remove(&cluster, 0, 3).unwrap();
        drop(cluster.replicas.pop());
        continues(&cluster, &mut sum);
    }
}

#[test]
fn cluster_grows_shrinks_and_replaces_under_every_protocol() {
    for entry in quintet_protocols::PROTOCOLS {
        let directory = tempfile::tempdir().unwrap();
        let (mut cluster, listeners) = Cluster::prepare(directory.path(), 3, Durability::Disk);
        for config in &mut cluster.configs {
            config.protocol = entry.info.name.to_owned();
        }
        cluster.start_on(listeners);
        let mut sum = 0;
        continues(&cluster, &mut sum);
        for id in 3..5 {
            replace(&mut cluster, id, &format!("another-{id}"));
            continues(&cluster, &mut sum);
            has_vote(&cluster, id);
        }
        drop(cluster.replicas[1].take());
        replace(&mut cluster, 1, "another-1");
        continues(&cluster, &mut sum);
        let report = remove(&cluster, 1, 4).unwrap();
        assert_eq!((report.epoch, report.members.len()), (7, 4));
        assert_eq!(report.protocol, entry.info.name);
        drop(cluster.replicas.pop());
        continues(&cluster, &mut sum);
    }
}

#[test]
fn lost_replica_is_replaced_by_another_in_each_place() {
    for durability in [Durability::Disk, Durability::Memory] {
        let (_directory, mut cluster, mut sum) = started(3, durability);
        for id in 0..3 {
            drop(cluster.replicas[id].take());
            sum += 1;
            assert_eq!(add(&cluster, (id + 1) % 3), sum);
            let old = cluster.configs[id].clone();
            replace(&mut cluster, id, &format!("another-{id}"));
            continues(&cluster, &mut sum);
            let status = cluster.handle(id).status();
            assert_eq!((status.epoch, status.repairing), (id as u64 + 2, None));

            // The new one is a member as any other: asked again, it is what it is.
            drop(cluster.replicas[id].take());
            let mut again = cluster.configs[id].clone();
            join(&mut again, &Counter::default(), None).unwrap();
            assert_eq!((again.id, again.members.len()), (ReplicaId(id as u16), 3));
            cluster.restart(id);
            continues(&cluster, &mut sum);

            // The old one is told, also where the others do not dial it.
            let elsewhere = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let found = start(old, elsewhere);
            let reason = found.join();
            assert_eq!(reason.exit_code(), 7, "{reason}");
            let text = reason.to_string();
            assert!(text.contains("no member any more since epoch"), "{text}");
        }
        // All of them know where all are, also after a restart.
        if durability == Durability::Disk {
            restart_all(&mut cluster);
        }
        continues(&cluster, &mut sum);
    }
}

/// The address of a replica's peer port is another one from now on.
fn moves(cluster: &mut Cluster, id: usize) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let config = &mut cluster.configs[id];
    config.peer_listen = address;
    config.peer_announce = Some(address.to_string());
    join(config, &Counter::default(), None).unwrap();
    let config = config.clone();
    cluster.replicas[id] = Some(start(config, listener));
}

#[test]
fn member_is_found_at_another_address_that_it_announces() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(directory.path(), 3, Durability::Disk);
    let mut sum = 0;
    for id in 0..3 {
        drop(cluster.replicas[id].take());
        replace(&mut cluster, id, &format!("another-{id}"));
        drop(cluster.replicas[id].take());
        moves(&mut cluster, id);
        let address = cluster.configs[id].peer_listen.to_string();
        for asked in 0..3 {
            cluster.wait(asked, "links and addresses", |status| {
                let linked = status.peers.iter().all(|peer| peer.connected);
                linked && status.rows[id].peer == address
            });
        }
        continues(&cluster, &mut sum);
    }
}

#[test]
fn member_that_knows_nobodys_address_any_more_is_found() {
    let (_directory, mut cluster, mut sum) = started(5, Durability::Disk);
    drop(cluster.replicas[0].take());
    for id in 1..5 {
        drop(cluster.replicas[id].take());
        replace(&mut cluster, id, &format!("another-{id}"));
        sum += 1;
        assert_eq!(add(&cluster, id), sum);
    }
    cluster.restart(0);
    continues(&cluster, &mut sum);
    cluster.wait(0, "the fifth epoch", |status| status.epoch == 5);
}

#[test]
fn replacement_that_cannot_work_is_refused_and_changes_nothing() {
    let (_directory, mut cluster, mut sum) = started(3, Durability::Disk);
    let (config, _listener, wanted) = newcomer(&cluster, 2, "another");
    let refused_of = |machine: &Counter, wanted: &Join, config: &Config| {
        let error = join(&mut config.clone(), machine, Some(wanted)).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{error}");
        error.to_string()
    };
    let refused = |wanted: &Join, config: &Config| refused_of(&Counter::default(), wanted, config);
    let other = Join {
        replaces: Some(ReplicaId(7)),
        ..wanted.clone()
    };
    assert!(refused(&other, &config).contains("there is no replica 7"));
    let other = Join {
        replaces: Some(ReplicaId(0)),
        seeds: wanted.seeds[..1].to_vec(),
        ..wanted.clone()
    };
    assert!(refused(&other, &config).contains("ask another member"));
    let elsewhere = |address: &str| Config {
        peer_announce: Some(address.to_owned()),
        ..config.clone()
    };
    let taken = elsewhere(&cluster.configs[1].peer_listen.to_string());
    assert!(refused(&wanted, &taken).contains("is the address of replica 1"));
    let stranger = Config {
        secret: [7; 32],
        ..config.clone()
    };
    assert!(refused(&wanted, &stranger).contains("secret"));
    let mut later = Counter::default();
    later.version = 1;
    assert!(refused_of(&later, &wanted, &config).contains("another version"));
    assert!(refused(&wanted, &config).contains("replica 2 is connected"));
    assert!(refused(&wanted, &elsewhere("10.0.0.9")).contains("host:port"));
    let without = join(&mut config.clone(), &Counter::default(), None)
        .unwrap_err()
        .to_string();
    assert!(without.contains("--seed"), "{without}");
    // Without replica 1 the one that stays is no quorum.
    for id in 1..3 {
        drop(cluster.replicas[id].take());
    }
    let text = refused(&wanted, &config);
    assert!(text.contains("there would be no quorum"), "{text}");
    for id in 1..3 {
        cluster.restart(id);
    }
    cluster.wait(0, "a leader", |status| {
        status.leader.is_some() && status.peers.iter().all(|peer| peer.connected)
    });
    continues(&cluster, &mut sum);
    assert_eq!(cluster.handle(0).status().epoch, 1);
}

#[test]
fn bootstrap_again_forgets_later_epochs() {
    let (_directory, mut cluster, _) = started(3, Durability::Memory);
    switch(&cluster, 1, to("mencius", &[])).unwrap();
    for id in 0..3 {
        drop(cluster.replicas[id].take());
        cluster.configs[id].bootstrap_again = true;
    }
    for id in 0..3 {
        cluster.restart(id);
        cluster.configs[id].bootstrap_again = false;
    }
    let mut sum = 0;
    continues(&cluster, &mut sum);
    assert_eq!(cluster.handle(0).status().epoch, 1);
    drop(cluster.replicas[2].take());
    cluster.restart(2);
    continues(&cluster, &mut sum);
}

#[test]
fn change_that_cannot_work_is_refused_and_changes_nothing() {
    let (_directory, cluster, mut sum) = started(3, Durability::Memory);
    for (request, reason) in [
        (to("nosuch", &[]), "no protocol"),
        (to("multipaxos", &[("window", "0")]), "window"),
        (to("multipaxos", &[("nosuch", "1")]), "no option"),
        (to("derecho", &[("delivery", "raw")]), "without an order"),
    ] {
        let refused = switch(&cluster, 0, request).unwrap_err();
        assert!(refused.contains(reason), "{refused}");
    }
    continues(&cluster, &mut sum);
    assert_eq!(cluster.handle(0).status().epoch, 1);
}
