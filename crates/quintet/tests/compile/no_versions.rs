use quintet::groups::{Group, Persistent, Service, Version, Volatile, service};

#[derive(Default, Service)]
struct Counter {
    value: Persistent<u64>,
    seen: Volatile<u64>,
}

#[service]
impl Counter {
    #[query]
    fn value(&self) -> u64 {
        *self.value
    }
}

fn main() {
    let group = Group::local(1).one::<Counter>("counter").start().unwrap();
    let counter = group.shard::<Counter>("counter", 0).unwrap();
    let _ = counter.at(Version(1)).value();
}
