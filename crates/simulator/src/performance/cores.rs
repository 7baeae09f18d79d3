//! Cores and who waits for one.
//!
//! ```text
//!   ask(task) ──a core is free──► begin now          release ──► the next that waits begins
//!            └──none is──► waits, first come first served
//! ```

use std::collections::VecDeque;

/// The tasks on cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// A turn of a replica.
    Replica(usize),
    /// A synchronisation of a replica's journal.
    Journal(usize),
    /// A turn of the load generator.
    Generator,
}

/// Some cores.
#[derive(Clone, Debug)]
pub(super) struct Cores {
    free: usize,
    waiting: VecDeque<Task>,
}

impl Cores {
    pub const fn new(count: usize) -> Self {
        Self {
            free: count,
            waiting: VecDeque::new(),
        }
    }

    /// Whether a task that asks now would begin now.
    pub const fn has_free(&self) -> bool {
        self.free > 0
    }

    /// True when the task may begin; otherwise it waits.
    pub fn ask(&mut self, task: Task) -> bool {
        if self.free > 0 {
            self.free -= 1;
            return true;
        }
        self.waiting.push_back(task);
        false
    }

    /// A task has ended; the one that has waited longest takes its core.
    pub fn release(&mut self) -> Option<Task> {
        let next = self.waiting.pop_front();
        if next.is_none() {
            self.free += 1;
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_request_begins_first() {
        let mut cores = Cores::new(1);
        assert!(cores.ask(Task::Replica(0)));
        assert!(!cores.ask(Task::Replica(1)));
        assert!(!cores.ask(Task::Generator));
        assert_eq!(cores.release(), Some(Task::Replica(1)));
        assert_eq!(cores.release(), Some(Task::Generator));
        assert_eq!(cores.release(), None);
        assert!(cores.has_free());
    }
}
