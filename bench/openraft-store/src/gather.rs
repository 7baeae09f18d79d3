//! Requests that wait are taken together.
//!
//! ```text
//!   request ─┐                      ┌─► its answer
//!   request ─┼─► queue ──all──► one ┼─► its answer       at most WINDOW at once
//!   request ─┘                      └─► its answer
//! ```

use crate::{Batch, Types, machine::Values};
use bytes::Bytes;
use openraft::Raft;
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc, oneshot};

/// Queued requests at most; beyond it the server stops reading from clients.
const QUEUE: usize = 4_096;
/// Largest number of requests in one entry.
const TOGETHER: usize = 1_024;

/// An answer, or why there is none.
pub type Answer<T> = Result<T, String>;

/// A write and who waits for it.
pub struct Write {
    pub key: Bytes,
    pub value: Bytes,
    pub done: oneshot::Sender<Answer<()>>,
}

/// A read and who waits for it.
pub struct Read {
    pub key: Bytes,
    pub done: oneshot::Sender<Answer<Option<Bytes>>>,
}

/// Takes writes and orders them, many in an entry.
pub fn writes(raft: Raft<Types>, window: usize) -> mpsc::Sender<Write> {
    let (sender, mut queue) = mpsc::channel::<Write>(QUEUE);
    let window = Arc::new(Semaphore::new(window));
    tokio::spawn(async move {
        let mut waiting = Vec::with_capacity(TOGETHER);
        // The semaphore is never closed.
        while let Ok(permit) = window.clone().acquire_owned().await {
            if queue.recv_many(&mut waiting, TOGETHER).await == 0 {
                return;
            }
            let (mut batch, mut who) = (Vec::new(), Vec::new());
            for write in waiting.drain(..) {
                batch.push((write.key, write.value));
                who.push(write.done);
            }
            // In the order of this queue: the entry is handed over before the next is gathered.
            let handed = raft.client_write_ff(Batch(Arc::new(batch))).await;
            tokio::spawn(async move {
                let answer = match handed {
                    Ok(receiver) => match receiver.await {
                        Ok(Ok(_)) => Ok(()),
                        Ok(Err(error)) => Err(error.to_string()),
                        Err(error) => Err(error.to_string()),
                    },
                    Err(error) => Err(error.to_string()),
                };
                drop(permit);
                for done in who {
                    // A client that has left needs no answer.
                    let _ = done.send(answer.clone());
                }
            });
        }
    });
    sender
}

/// Takes reads and answers them, many after one round to a majority.
pub fn reads(raft: Raft<Types>, values: Values, window: usize) -> mpsc::Sender<Read> {
    let (sender, mut queue) = mpsc::channel::<Read>(QUEUE);
    let window = Arc::new(Semaphore::new(window));
    tokio::spawn(async move {
        let mut waiting = Vec::with_capacity(TOGETHER);
        while let Ok(permit) = window.clone().acquire_owned().await {
            if queue.recv_many(&mut waiting, TOGETHER).await == 0 {
                return;
            }
            let reads = std::mem::take(&mut waiting);
            let (raft, values) = (raft.clone(), values.clone());
            tokio::spawn(async move {
                let ready = raft.ensure_linearizable().await;
                drop(permit);
                let ready = ready.map_err(|error| error.to_string());
                let values = values.read().unwrap_or_else(|error| error.into_inner());
                for read in reads {
                    let answer = match &ready {
                        Ok(_) => Ok(values.get(&read.key).cloned()),
                        Err(error) => Err(error.clone()),
                    };
                    // A client that has left needs no answer.
                    let _ = read.done.send(answer);
                }
            });
        }
    });
    sender
}
