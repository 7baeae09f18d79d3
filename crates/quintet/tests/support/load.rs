//! Clients that write until told to stop, and what they were promised.

use super::{Client, eventually};
use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

/// See the module.
#[derive(Default)]
pub struct Load {
    stop: AtomicBool,
    acknowledged: AtomicU64,
    promised: Mutex<BTreeMap<String, String>>,
    errors: Mutex<Vec<String>>,
}

/// Ends the writing, whatever becomes of the test.
struct Stop<'a>(&'a Load);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

impl Load {
    /// Lets that many writers write at these addresses meanwhile.
    pub fn during(&self, writers: usize, addresses: &[String], meanwhile: impl FnOnce()) {
        thread::scope(|scope| {
            let _stop = Stop(self);
            for writer in 0..writers {
                scope.spawn(move || self.write(writer, addresses));
            }
            meanwhile();
        });
        assert_eq!(*self.errors.lock().unwrap(), Vec::<String>::new());
    }

    /// Writes at one address; goes to the next when the server there dies. An error reply from a
    /// server that still runs is recorded as a failure.
    fn write(&self, writer: usize, addresses: &[String]) {
        let mut turn = writer;
        let mut client = None;
        for number in 0u64.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let (key, value) = (format!("key:{writer}:{number}"), format!("{number}"));
            let Some(open) = &mut client else {
                turn += 1;
                client = Client::connect(&addresses[turn % addresses.len()]).ok();
                continue;
            };
            match open.ask(&["SET", &key, &value]) {
                Ok(reply) if reply == "OK" => {
                    self.promised.lock().unwrap().insert(key, value);
                    self.acknowledged.fetch_add(1, Ordering::Relaxed);
                }
                Ok(error) => self.errors.lock().unwrap().push(error),
                // Its server died; whether this write was executed is not known.
                Err(_) => client = None,
            }
        }
    }

    /// Waits until that many more writes are acknowledged.
    pub fn waits_for(&self, more: u64) {
        let from = self.acknowledged.load(Ordering::Relaxed);
        eventually("more writes are acknowledged", || {
            (self.acknowledged.load(Ordering::Relaxed) >= from + more).then_some(())
        });
    }

    /// Every promise is kept at every address.
    pub fn check(&self, addresses: &[String]) {
        let promised = self.promised.lock().unwrap();
        assert!(!promised.is_empty());
        for address in addresses {
            let mut client = Client::connect(address).unwrap();
            for (key, value) in promised.iter() {
                assert_eq!(
                    &client.ask(&["GET", key]).unwrap(),
                    value,
                    "{key} at {address}"
                );
            }
        }
    }
}
