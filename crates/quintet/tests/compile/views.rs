use quintet::groups::{CallContext, Persistent, Service, ShardView, service};

#[derive(Default, Service)]
struct Counter {
    value: Persistent<u64>,
}

#[service]
impl Counter {
    #[query]
    fn value(&self) -> u64 {
        *self.value
    }
    #[view]
    fn changes_nothing(&self, view: &ShardView) {}
    #[view]
    fn knows_nothing(&mut self) {}
    #[view]
    fn takes_more(&mut self, context: &mut CallContext, view: &ShardView, more: u64) {}
    #[view]
    fn answers(&mut self, view: &ShardView) -> u64 {
        0
    }
}

#[derive(Default, Service)]
struct Silent {
    value: Persistent<u64>,
}

#[service]
impl Silent {
    #[view]
    fn is_all_there_is(&mut self, view: &ShardView) {}
}

fn main() {}
