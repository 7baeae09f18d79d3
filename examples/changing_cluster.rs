//! A counter whose replicas and protocol change while it counts.

use quintet::{Cluster, Error, SmallStateMachine};

#[derive(Clone, Default)]
struct Counter(u64);

impl SmallStateMachine for Counter {
    fn apply(&mut self, _: &[u8]) -> Vec<u8> {
        self.0 += 1;
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
    let mut cluster = Cluster::local(3).start(Counter::default())?;
    cluster.apply(b"")?;
    cluster.switch("nezha", &[])?;
    cluster.apply(b"")?;

    // Replica 0 is lost, and another one takes its place.
    cluster.stop(0);
    cluster.replace(0, Counter::default())?;
    let fourth = cluster.join(Counter::default())?;
    cluster.apply(b"")?;
    cluster.remove(fourth)?;

    let report = cluster.report()?;
    println!(
        "{:?} with {} replicas of {}",
        Counter::decode(&cluster.query(b"")?).map(|counter| counter.0),
        report.members.len(),
        report.protocol
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn example_ends_well() {
        super::main().unwrap();
    }
}
