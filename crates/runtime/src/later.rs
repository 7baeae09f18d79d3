//! Work on small files for which the event loop does not wait: done in order by a thread of its
//! own. What has been asked for is done before this goes away.

use std::{
    fmt,
    sync::mpsc::{SyncSender, sync_channel},
    thread::JoinHandle,
};

/// Who asks for more than this at once waits.
const WAITING_MAX: usize = 16;

type Task = Box<dyn FnOnce() + Send>;

/// See the module.
#[derive(Default)]
pub(crate) struct Later {
    worker: Option<(SyncSender<Task>, JoinHandle<()>)>,
}

impl fmt::Debug for Later {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Later").finish_non_exhaustive()
    }
}

impl Later {
    /// Does this after everything that was asked for before.
    pub fn run(&mut self, task: impl FnOnce() + Send + 'static) {
        if self.worker.is_none() {
            let (tasks, queue) = sync_channel::<Task>(WAITING_MAX);
            let started = std::thread::Builder::new()
                .name("files".to_owned())
                .spawn(move || {
                    for task in queue {
                        task();
                    }
                });
            self.worker = started.ok().map(|thread| (tasks, thread));
        }
        let task: Task = Box::new(task);
        match &self.worker {
            // It ends only with this sender.
            Some((tasks, _)) => drop(tasks.send(task)),
            None => task(),
        }
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        if let Some((tasks, thread)) = self.worker.take() {
            drop(tasks);
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn tasks_are_done_in_order_without_being_waited_for() {
        let (go_on, gate) = channel::<()>();
        let (told, done) = channel();
        let mut later = Later::default();
        let second = told.clone();
        later.run(move || {
            let _ = gate.recv();
            let _ = told.send((1, std::thread::current().id()));
        });
        later.run(move || {
            let _ = second.send((2, std::thread::current().id()));
        });
        // The first waits for this thread, which therefore was not held up.
        go_on.send(()).expect("it waits");
        drop(later);
        let done: Vec<_> = done.iter().collect();
        assert_eq!(
            done.iter().map(|(task, _)| *task).collect::<Vec<_>>(),
            [1, 2]
        );
        assert!(
            done.iter()
                .all(|(_, by)| *by != std::thread::current().id())
        );
    }
}
