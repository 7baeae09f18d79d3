//! Groups under random loss, duplication, delay, cuts and crashes; then healed, and complete.

use crate::{
    chora::{Chora, Config, Drive, Proposers},
    random_runs::{DrawOption, Random, RandomRun, random_runs},
};
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::time::Duration;
use quintet_replica::Durability;

impl RandomRun for Chora {
    fn draw(random: &mut Random, members: u64) -> Config {
        Config {
            mode: [Drive::Auto, Drive::Pulsing, Drive::Responsive][random.below(3) as usize],
            proposers: match random.below(members + 2) {
                0 => Proposers::Loaded,
                count => Proposers::Count(count as usize - 1),
            },
            round: Duration::from_millis(1 + random.below(5)),
            accountable: random.below(3) > 0,
            batches_max: random.below(3) as usize,
            batch_bytes_max: 256 << random.below(4),
            window: 1 + random.below(8) as usize,
            log_memory_bytes: 4096 << random.below(4),
            ..Config::default()
        }
    }

    const OPTION: Option<DrawOption> = Some(|random, members| match random.below(4) {
        0 => match random.below(members + 2) {
            0 => ("proposers", "auto".to_string()),
            count => ("proposers", (count - 1).to_string()),
        },
        1 => ("mode", "pulsing".to_string()),
        2 => ("mode", "responsive".to_string()),
        _ => ("mode", "auto".to_string()),
    });

    fn claims(replicas: &[&Self]) {
        super::claims::hold(replicas);
    }

    fn describe(&self) -> String {
        let peers: Vec<_> = (self.peers.iter())
            .map(|peer| {
                (
                    peer.acked().0,
                    peer.committed().0,
                    peer.view(),
                    peer.fitness(),
                )
            })
            .collect();
        format!(
            "committed {} last {} verified {} durable {} latest {} next {:?} init {:?} buffer {:?} \
             fetching {:?} {peers:?}",
            self.log.committed(),
            self.log.last(),
            self.log.verified(),
            self.log.durable(),
            self.proposer.latest(),
            self.proposer.next(),
            self.view.init(),
            self.log.buffered_len(),
            self.catch_up.fetching().asked(),
        )
    }
}

#[test]
fn acknowledged_writes_survive_on_disk() {
    let rare = [
        "asks for missing proposals",
        "candidate's log is older",
        "proposals sent again",
        "suffix of an old view replaced",
        "view change: a proposer was restarted",
        "view change: a replica comes back",
        "view change: another number of proposers",
    ];
    random_runs::<Chora>(0..150, Durability::Disk, &rare);
}

#[test]
fn acknowledged_writes_survive_in_memory() {
    random_runs::<Chora>(1000..1150, Durability::Memory, &["recovered"]);
}
