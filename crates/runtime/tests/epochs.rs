//! A running cluster goes on with other protocols and other options.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod common;

use common::Cluster;
use quintet_replica::{Durability, Level};
use quintet_runtime::{ChangeReport, ChangeRequest};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

fn to(protocol: &str, options: &[(&str, &str)]) -> ChangeRequest {
    let options = options.iter();
    ChangeRequest {
        protocol: Some(protocol.to_owned()),
        options: options
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
    }
}

/// Adds one at a replica; the number that this makes.
fn add(cluster: &Cluster, id: usize) -> u64 {
    let reply = cluster.handle(id).submit(Level::Ordered, b"1");
    String::from_utf8(reply.unwrap()).unwrap().parse().unwrap()
}

fn switch(cluster: &Cluster, id: usize, request: ChangeRequest) -> Result<ChangeReport, String> {
    cluster.handle(id).change(request, PATIENCE)
}

/// Commands are executed once each, in every epoch, at every replica.
fn continues(cluster: &Cluster, sum: &mut u64) {
    for id in 0..3 {
        *sum += 1;
        assert_eq!(add(cluster, id), *sum, "replica {id}");
    }
}

#[test]
fn cluster_goes_through_protocols_and_finds_the_last_one_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(directory.path(), 3, Durability::Disk);
    let mut sum = 0;
    continues(&cluster, &mut sum);
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
    // What is so already changes nothing.
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
    for id in 0..3 {
        drop(cluster.replicas[id].take());
    }
    for id in 0..3 {
        cluster.restart(id);
    }
    continues(&cluster, &mut sum);
    let status = cluster.handle(2).status();
    assert_eq!((status.epoch, &status.protocol[..]), (7, "mencius"));
}

#[test]
fn cluster_in_memory_goes_on_and_takes_back_who_has_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(directory.path(), 3, Durability::Memory);
    let mut sum = 0;
    continues(&cluster, &mut sum);
    switch(&cluster, 0, to("nezha", &[])).unwrap();
    continues(&cluster, &mut sum);
    for id in 0..3 {
        drop(cluster.replicas[id].take());
        cluster.restart(id);
        continues(&cluster, &mut sum);
    }
}

#[test]
fn cluster_without_a_write_changes_too() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(directory.path(), 3, Durability::Memory);
    assert_eq!(switch(&cluster, 1, to("chora", &[])).unwrap().epoch, 2);
    continues(&cluster, &mut 0);
}

#[test]
fn bootstrap_again_forgets_later_epochs() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(directory.path(), 3, Durability::Memory);
    let mut sum = 0;
    continues(&cluster, &mut sum);
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
    let directory = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(directory.path(), 3, Durability::Memory);
    let mut sum = 0;
    continues(&cluster, &mut sum);
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
