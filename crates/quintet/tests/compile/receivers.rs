use quintet::groups::{Persistent, Service, service};

#[derive(Default, Service)]
struct Counter {
    value: Persistent<u64>,
}

#[service]
impl Counter {
    #[ordered]
    fn add(&self, by: u64) -> u64 {
        *self.value + by
    }
    #[query]
    fn value(&mut self) -> u64 {
        *self.value
    }
    #[query]
    fn time(&self, context: &mut quintet::groups::CallContext) -> u64 {
        context.time().0.0
    }
    #[ordered]
    #[query]
    fn both(&mut self) {}
}

fn main() {}
