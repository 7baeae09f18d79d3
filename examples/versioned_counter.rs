//! A replicated counter whose earlier values can be asked for.

use quintet::groups::{Group, Persistent, Service, service};

#[derive(Default, Service)]
struct Counter {
    value: Persistent<u64>,
}

#[service]
impl Counter {
    #[ordered]
    fn add(&mut self, by: u64) -> u64 {
        *self.value += by;
        *self.value
    }
    #[query]
    fn value(&self) -> u64 {
        *self.value
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let group = Group::local(3).one::<Counter>("counter").start()?;
    let counter = group.shard::<Counter>("counter", 0)?;
    let first = counter.ordered().add(5).done()?; // value 5, version 1, and its time
    counter.ordered().add(2).wait()?; // 7; `.await?` does the same
    group.stop_member(0);
    assert_eq!(counter.query().value().wait()?, 7); // linearizable, at any member
    assert_eq!(counter.at(first.version).value().wait()?, 5);
    assert_eq!(counter.at(first.time).value().wait()?, 5);
    for change in counter.history(Counter::VALUE, 10)? {
        println!("{} {} {}", change.version, change.time, change.value);
    }
    Ok(())
}
