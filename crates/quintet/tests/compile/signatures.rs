use quintet::groups::{Persistent, Service, service};

#[derive(Default, Service)]
struct Counter {
    value: Persistent<u64>,
}

#[service]
impl Counter {
    #[ordered]
    async fn wait(&mut self) -> u64 {
        *self.value
    }
    #[ordered]
    fn generic<T>(&mut self, by: T) {}
    #[ordered]
    fn pattern(&mut self, (a, b): (u64, u64)) {}
    #[ordered]
    fn reference(&mut self, by: &u64) {}
    #[query]
    fn answer(&self) -> &u64 {
        &self.value
    }
    #[ordered]
    fn map(&mut self, all: std::collections::HashMap<u64, u64>) {}
    #[ordered]
    fn clock(&mut self, at: Option<std::time::Instant>) {}
}

fn main() {}
