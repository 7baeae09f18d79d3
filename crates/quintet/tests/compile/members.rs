use quintet::groups::{Persistent, Place, Service, service};

#[derive(Default, Service)]
struct Numbers {
    sum: Persistent<u64>,
}

#[service]
impl Numbers {
    #[ordered]
    fn add(&mut self, place: &Place, by: u64) {
        *self.sum += by * place.rank() as u64;
    }
    #[query]
    fn last(&self, by: u64, place: &Place) -> u64 {
        by + place.rank() as u64
    }
    #[gather]
    fn changes(&mut self, place: &Place) -> u64 {
        place.rank() as u64
    }
    #[gather]
    fn same(&self) -> u64 {
        *self.sum
    }
}

fn main() {}
