//! Things that are done at a later time, all on one thread of the process.
//!
//! ```text
//!   set(due, act) ──► queue by time ──► thread: due? ──► act
//!         └─► Alarm, dropped ──► out of the queue
//! ```

use std::{
    collections::BTreeMap,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Condvar, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
    time::Instant,
};

/// The place in the queue: those of the same time by number.
type Key = (Instant, u64);
type Act = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    /// The number of the last one.
    last: u64,
    acts: BTreeMap<Key, Act>,
}

/// See the module. [`alarms`] are those of this process.
#[derive(Default)]
pub struct Alarms {
    queue: Mutex<Queue>,
    /// One has come that is due earlier.
    woken: Condvar,
}

impl fmt::Debug for Alarms {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Alarms")
    }
}

/// Something to be done later; dropping it takes it back, unless it is being done.
#[derive(Debug)]
#[must_use = "dropping it takes it back"]
pub struct Alarm {
    alarms: &'static Alarms,
    key: Key,
}

impl Alarm {
    /// It is done, whatever becomes of this.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let taken = self.alarms.lock().acts.remove(&self.key);
        // Values that it holds may come back here.
        drop(taken);
    }
}

impl Alarms {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does this at that time, on the thread of all: it must not wait.
    pub fn set(&'static self, due: Instant, act: impl FnOnce() + Send + 'static) -> Alarm {
        let act = Box::new(act);
        let mut queue = self.lock();
        queue.last += 1;
        let key = (due, queue.last);
        queue.acts.insert(key, act);
        let first = queue.acts.first_key_value();
        let is_first = first.is_some_and(|(first, _)| *first == key);
        drop(queue);
        if is_first {
            self.woken.notify_one();
        }
        Alarm { alarms: self, key }
    }

    fn run(&self) {
        let mut queue = self.lock();
        loop {
            let now = Instant::now();
            let first = queue.acts.first_key_value().map(|((due, _), _)| *due);
            match first {
                Some(due) if due <= now => {
                    let act = queue.acts.pop_first().map(|(_, act)| act);
                    // It may come back here.
                    drop(queue);
                    if let Some(act) = act {
                        // A panic of one is no reason to do no others.
                        let _ = catch_unwind(AssertUnwindSafe(act));
                    }
                    queue = self.lock();
                }
                Some(due) => {
                    let waited = self.woken.wait_timeout(queue, due - now);
                    queue = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                None => {
                    let waited = self.woken.wait(queue);
                    queue = waited.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

/// Those of this process, with a thread that does not end; `None` where the system gives no thread.
pub fn alarms() -> Option<&'static Alarms> {
    static ALARMS: LazyLock<Alarms> = LazyLock::new(Alarms::default);
    static RUNS: OnceLock<bool> = OnceLock::new();
    let runs = RUNS.get_or_init(|| {
        let thread = thread::Builder::new().name("alarms".to_owned());
        thread.spawn(|| ALARMS.run()).is_ok()
    });
    runs.then(|| &*ALARMS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::mpsc, time::Duration};

    #[test]
    fn alarms_are_given_by_time_and_not_once_dropped() {
        let alarms = alarms().expect("a thread");
        let (told, heard) = mpsc::channel();
        let now = Instant::now();
        let set = |number: u32, later: u64| {
            let told = told.clone();
            // The test may have heard all it needs.
            let act = move || {
                let _ = told.send(number);
            };
            alarms.set(now + Duration::from_millis(later), act)
        };
        let last = set(3, 30);
        set(2, 20).keep();
        let first = set(1, 10);
        drop(set(4, 15));
        assert_eq!(heard.iter().take(3).collect::<Vec<_>>(), [1, 2, 3]);
        drop((first, last));
        assert!(heard.try_recv().is_err());
    }
}
