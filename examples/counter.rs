//! A counter on three replicas, one of which stops.

use quintet::{Cluster, Error, SmallStateMachine};

#[derive(Clone, Default)]
struct Counter(u64);

impl SmallStateMachine for Counter {
    fn apply(&mut self, command: &[u8]) -> Vec<u8> {
        if command == b"increment" {
            self.0 += 1;
        }
        self.encode()
    }
    fn query(&self, _: &[u8]) -> Vec<u8> {
        self.encode()
    }
    fn encode(&self) -> Vec<u8> {
        self.0.to_le_bytes().to_vec()
    }
    fn decode(bytes: &[u8]) -> Option<Self> {
        Some(Self(u64::from_le_bytes(bytes.try_into().ok()?)))
    }
}

fn main() -> Result<(), Error> {
    let mut cluster = Cluster::local(3)
        .protocol("multipaxos")
        .start(Counter::default())?;
    cluster.apply(b"increment")?;
    cluster.stop(0);
    cluster.apply(b"increment")?;
    println!(
        "{:?}",
        Counter::decode(&cluster.query(b"")?).map(|counter| counter.0)
    );
    Ok(())
}
