use quintet::groups::{Persistent, Service, service};

struct Plain(u64);

#[derive(Default, Service)]
struct Counter {
    value: Persistent<u64>,
}

#[service]
impl Counter {
    #[query]
    fn value(&self) -> Plain {
        Plain(*self.value)
    }
}

fn main() {}
