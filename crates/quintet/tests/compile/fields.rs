use quintet::groups::{Persistent, Service};

#[derive(Default, Service)]
struct Map {
    value: Persistent<std::collections::HashMap<u64, u64>>,
}

#[derive(Service)]
enum Choice {
    One,
}

#[derive(Service)]
struct Tuple(Persistent<u64>);

#[derive(Default, Service)]
struct Renamed {
    #[service(is = "old")]
    value: Persistent<u64>,
}

fn main() {}
