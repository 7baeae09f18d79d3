use quintet::groups::Service;

#[derive(Default, Service)]
struct Counter {
    value: u64,
}

fn main() {}
