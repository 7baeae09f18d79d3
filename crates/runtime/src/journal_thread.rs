//! The journal on a thread of its own: whatever has come in goes out in one durable write.
//!
//! ```text
//!   event loop ── Write, Write, Trim ──► queue ──► append … commit ──► Mail::Persisted(last)
//! ```

use crate::{
    journal_files::FileDisk,
    mail::{Mail, Mailer},
};
use quintet_replica::{PersistId, Slot, Write, journal::Journal};
use std::{
    io,
    sync::mpsc::{Receiver, Sender, channel},
    thread::JoinHandle,
};

/// One durable write takes no more than about this many bytes.
const GROUP_MAX: usize = 4 << 20;

enum Order {
    Write(PersistId, Write),
    Trim(Slot),
}

/// The event loop's side.
#[derive(Debug)]
pub(crate) struct JournalThread {
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
    /// Bytes handed over and not yet durable.
    queued: usize,
}

/// How many bytes a write counts for in the queue.
fn weight(write: &Write) -> usize {
    match write {
        Write::Promise(bytes) => bytes.len(),
        Write::Record { record, .. } => record.len() + 64,
    }
}

impl JournalThread {
    pub fn start(journal: Journal<FileDisk>, mailer: Mailer) -> io::Result<Self> {
        let (orders, queue) = channel();
        let thread = std::thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || run(journal, &queue, &mailer))?;
        Ok(Self {
            orders: Some(orders),
            thread: Some(thread),
            queued: 0,
        })
    }

    pub fn write(&mut self, id: PersistId, write: Write) {
        self.queued += weight(&write);
        self.order(Order::Write(id, write));
    }

    pub fn trim(&self, below: Slot) {
        self.order(Order::Trim(below));
    }

    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // A thread that has ended has said why by mail.
            let _ = orders.send(order);
        }
    }

    pub const fn queued(&self) -> usize {
        self.queued
    }

    /// So many bytes became durable.
    pub const fn taken(&mut self, bytes: usize) {
        self.queued = self.queued.saturating_sub(bytes);
    }

    /// Waits until everything handed over is durable.
    pub fn finish(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(mut journal: Journal<FileDisk>, queue: &Receiver<Order>, mailer: &Mailer) {
    crate::system::prefer_throughput();
    let mut syncs = 0;
    while let Ok(first) = queue.recv() {
        let mut last = None;
        let mut taken = 0;
        let mut trim = None;
        let mut next = Some(first);
        let mut result = Ok(());
        while let Some(order) = next.take() {
            match order {
                Order::Write(id, write) => {
                    taken += weight(&write);
                    result = journal.append(&write);
                    last = Some(id);
                }
                Order::Trim(below) => trim = Some(below),
            }
            if result.is_err() || taken > GROUP_MAX {
                break;
            }
            next = queue.try_recv().ok();
        }
        result = result.and_then(|()| journal.commit());
        if let (Ok(()), Some(upto)) = (&result, last) {
            syncs += 1;
            let (bytes, on_disk) = (journal.written(), journal.bytes());
            mailer.send(Mail::Persisted {
                upto,
                bytes,
                syncs,
                on_disk,
                taken,
            });
        }
        if let Some(below) = trim {
            result = result.and_then(|()| journal.trim(below));
        }
        if let Err(error) = result {
            // Nothing is known of what a failed write has left behind: never tried again.
            mailer.send(Mail::StorageFailed(error.to_string()));
            return;
        }
    }
}
