//! Work on small files for which the event loop does not wait: done in order by a thread of its
//! own. Requested work is done before this goes away.

use std::{
    fmt,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::JoinHandle,
};

type Task = Box<dyn FnOnce() + Send>;

/// The tasks that wait for the thread: at most one of a kind.
#[derive(Default)]
struct Waiting {
    tasks: Vec<(&'static str, Task)>,
    closed: bool,
}

/// The state that the thread shares with its callers.
type Queue = Arc<(Mutex<Waiting>, Condvar)>;

/// See the module.
#[derive(Default)]
pub(crate) struct Later {
    queue: Queue,
    worker: Option<JoinHandle<()>>,
}

impl fmt::Debug for Later {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Later").finish_non_exhaustive()
    }
}

impl Later {
    /// Does this after everything that was asked for before, and instead of what waits of the same
    /// kind: on a disk that hangs no more than one task of a kind waits, and the caller never.
    pub fn run(&mut self, kind: &'static str, task: impl FnOnce() + Send + 'static) {
        if self.worker.is_none() {
            let queue = self.queue.clone();
            let started = std::thread::Builder::new()
                .name("files".to_owned())
                .spawn(move || work(&queue));
            self.worker = started.ok();
        }
        if self.worker.is_none() {
            return task();
        }
        let (waiting, changed) = &*self.queue;
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.tasks.retain(|(waits, _)| *waits != kind);
        waiting.tasks.push((kind, Box::new(task)));
        changed.notify_one();
    }
}

fn work((waiting, changed): &(Mutex<Waiting>, Condvar)) {
    loop {
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        while waiting.tasks.is_empty() {
            if waiting.closed {
                return;
            }
            waiting = changed
                .wait(waiting)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let (_, task) = waiting.tasks.remove(0);
        drop(waiting);
        task();
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        let (waiting, changed) = &*self.queue;
        waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .closed = true;
        changed.notify_one();
        if let Some(thread) = self.worker.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn tasks_are_done_in_order_and_the_newest_of_a_kind() {
        let (proceed, gate) = channel::<()>();
        let (begins, begun) = channel::<()>();
        let (told, done) = channel();
        let mut later = Later::default();
        let first = told.clone();
        later.run("a", move || {
            let _ = begins.send(());
            let _ = gate.recv();
            let _ = first.send((0, std::thread::current().id()));
        });
        begun.recv().expect("the first begins");
        // The first waits for this thread, which is not held up, however much is asked for.
        for number in 1..=100 {
            let told = told.clone();
            later.run(if number == 1 { "b" } else { "a" }, move || {
                let _ = told.send((number, std::thread::current().id()));
            });
        }
        drop(told);
        proceed.send(()).expect("it waits");
        drop(later);
        let done: Vec<_> = done.iter().collect();
        let numbers: Vec<_> = done.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [0, 1, 100]);
        let own = std::thread::current().id();
        assert!(done.iter().all(|(_, by)| *by != own));
    }
}
