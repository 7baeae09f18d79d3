//! A node's side of state transfer, fetching and donating; see [`crate::transfer`].

use super::*;
use crate::{FRAME_HEAD, transfer::Following};

impl Node {
    pub(super) fn begin_fetch(
        &mut self,
        from: ReplicaSet,
        at_least: Slot,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) {
        if let Some(fetch) = &mut self.fetch
            && (fetch.at_least >= at_least || fetch.fed)
        {
            // What is on its way will do, and so will less from now on. If more is wanted, what
            // follows the state brings it.
            fetch.want(at_least);
            return;
        }
        out.push(Output::Mark("state transfer"));
        // A log that has been trimmed past one state by the time that it was there will be past the
        // next: that one must bring with it what is executed meanwhile.
        let lately = |at: Time| world.now() < at + transfer::LATELY;
        let fed = self.fetch.is_some() || self.fetched_at.is_some_and(lately);
        self.fetch = Fetch::new(from.without(self.id), at_least, fed, world.now());
        self.ask_donor(world, out);
    }

    /// The log has brought what the snapshot was fetched for.
    pub(super) fn end_fetch(&mut self, out: &mut Vec<Output>) {
        self.fetch = None;
        let fetched = |u: &mut UnderWay| matches!(u.kind, Under::Fetched { .. });
        if self.under_way.take_if(fetched).is_some() {
            out.push(Output::SnapshotAbandon);
        }
        out.push(Output::Mark("fetched snapshot overtaken by the log"));
    }

    pub(super) fn ask_donor(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        let Some(fetch) = &mut self.fetch else { return };
        let (donor, message) = fetch.ask(world.now());
        let at = Deadline::At(fetch.retry_at);
        self.send_transfer(donor, Lane::Control, &message, out);
        out.push(Output::SetTimer {
            key: node_timer(TIMER_FETCH),
            at,
        });
    }

    pub(super) fn send_transfer(
        &mut self,
        to: ReplicaId,
        lane: Lane,
        message: &TransferMessage,
        out: &mut Vec<Output>,
    ) {
        let mut writer = Writer::new(&mut self.scratch);
        message.encode(&mut writer);
        let frame = writer.finish();
        let frame = self.wrap(FrameKind::Transfer, frame);
        let to = Recipients::Replicas(ReplicaSet::EMPTY.with(to));
        out.push(Output::Send { to, lane, frame });
    }

    pub(super) fn on_transfer(
        &mut self,
        from: ReplicaId,
        message: TransferMessage,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) {
        match message {
            TransferMessage::Ask {
                at_least,
                snapshot,
                offset,
                fed,
            } => {
                let kept_from = if fed { self.keep_feed(world) } else { Slot(0) };
                self.donate(from, (at_least, snapshot, offset), kept_from, world, out);
            }
            TransferMessage::Follow { after } => self.give_feed(from, after, world, out),
            TransferMessage::Batches(feed) => self.on_feed(from, feed, world, out),
            TransferMessage::Gone => self.on_feed_gone(from, out),
            TransferMessage::NotYet { written } => {
                // A donor that is behind itself is as good as a silent one: the next may have it.
                let fetch = self.fetch.as_mut().filter(|fetch| fetch.is_from(from));
                if let (Some(fetch), Some(written)) = (fetch, written) {
                    fetch.on_promise(written);
                }
            }
            TransferMessage::Piece {
                snapshot,
                total,
                offset,
                bytes,
            } => {
                self.on_piece(from, (snapshot, total, offset), bytes, world, out);
            }
        }
    }

    pub(super) fn donate(
        &mut self,
        to: ReplicaId,
        (at_least, wanted, offset): (Slot, Option<Executed>, u64),
        kept_from: Slot,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) {
        if self.digests.status().is_minority() {
            // Its state is not the cluster's: others have it.
            let message = TransferMessage::NotYet { written: None };
            return self.send_transfer(to, Lane::Control, &message, out);
        }
        let newest = world
            .snapshot_newest()
            .filter(|info| info.id.slot >= at_least.max(kept_from));
        let piece = |id, at| world.snapshot_read(id, at, transfer::PIECE);
        // Go on with the snapshot that was begun while it exists, else start with the newest.
        if let Some(id) = wanted
            && let Some(bytes) = piece(id, offset).filter(|bytes| !bytes.is_empty())
        {
            let message = TransferMessage::Piece {
                snapshot: id,
                total: 0,
                offset,
                bytes,
            };
            return self.send_transfer(to, Lane::Bulk, &message, out);
        }
        if let Some(info) = newest
            && let Some(bytes) = piece(info.id, 0)
        {
            let (snapshot, total) = (info.id, info.length);
            let message = TransferMessage::Piece {
                snapshot,
                total,
                offset: 0,
                bytes,
            };
            return self.send_transfer(to, Lane::Bulk, &message, out);
        }
        let coming = self.executor.executed().slot >= at_least;
        let own = |u: &&UnderWay| matches!(u.kind, Under::Own { .. });
        let written = self.under_way.as_ref().filter(own);
        let written = coming.then(|| written.map_or(0, |under_way| under_way.written));
        self.send_transfer(to, Lane::Control, &TransferMessage::NotYet { written }, out);
        if coming {
            out.push(Output::Mark("snapshot taken for a peer"));
            self.ask_for_checkpoint(world, out);
        }
    }

    pub(super) fn on_piece(
        &mut self,
        from: ReplicaId,
        (snapshot, total, offset): (Executed, u64, u64),
        bytes: Bytes,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) {
        let fetch = self.fetch.as_mut();
        let asked = |fetch: &&mut Fetch| fetch.is_from(from) && fetch.following.is_none();
        let Some(fetch) = fetch.filter(asked) else {
            return;
        };
        fetch.on_answer();
        let overtaken = snapshot.slot <= self.executor.stable()
            && !self.planted.is(Plant::OldSnapshotReplacesState);
        if snapshot.slot < fetch.floor || overtaken {
            return;
        }
        if fetch.snapshot != Some(snapshot) {
            // A new snapshot starts at its beginning and tells its length there.
            if offset != 0 || total == 0 {
                return;
            }
            fetch.snapshot = Some(snapshot);
            fetch.offset = 0;
            self.executor.abandon_snapshot();
            out.push(Output::SnapshotBegin {
                id: snapshot,
                fetched: true,
            });
            fetch.reader = crate::SnapshotReader::default();
            self.under_way = Some(UnderWay {
                kind: Under::Fetched { whole: false },
                id: snapshot,
                appended: total,
                written: 0,
            });
        }
        let Some(fetch) = &mut self.fetch else { return };
        let Some(under_way) = &mut self.under_way else {
            return;
        };
        if offset != fetch.offset || under_way.kind != (Under::Fetched { whole: false }) {
            return;
        }
        let whole = fetch.offset + bytes.len() as u64 >= under_way.appended;
        // A file that was cut off between two chunks has no wrong byte in it.
        if fetch.check(&bytes).is_err() || whole != fetch.reader.is_whole() {
            // The donor's file has been damaged; another's is not.
            out.push(Output::Mark("fetched snapshot damaged"));
            out.push(Output::SnapshotAbandon);
            self.under_way = None;
            fetch.leave_donor();
            self.ask_donor(world, out);
            return;
        }
        let begun = fetch.offset;
        fetch.offset += bytes.len() as u64;
        if fetch.fed && !fetch.reader.is_fed() {
            // Its end comes behind what follows.
            let state = under_way.appended.saturating_sub(FRAME_HEAD as u64);
            let length = bytes.len().min(state.saturating_sub(begun) as usize);
            if length > 0 {
                out.push(Output::SnapshotAppend(bytes.slice(..length)));
            }
            if whole {
                fetch.following = Some(Following::new(snapshot.slot));
            }
            return self.ask_donor(world, out);
        }
        out.push(Output::SnapshotAppend(bytes));
        if whole {
            under_way.kind = Under::Fetched { whole: true };
            out.push(Output::SnapshotFinish);
        } else {
            self.ask_donor(world, out);
        }
    }
}
