//! A node's side of state transfer, fetching and donating; see [`crate::transfer`].

use super::*;

impl Node {
    pub(super) fn begin_fetch(
        &mut self,
        from: ReplicaSet,
        at_least: Slot,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) {
        if let Some(fetch) = &mut self.fetch
            && fetch.at_least >= at_least
        {
            // What is on its way will do, and so will less from now on.
            fetch.at_least = at_least;
            return;
        }
        out.push(Output::Mark("state transfer"));
        self.fetch = Fetch::new(from.without(self.id), at_least, world.now());
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
            } => {
                self.donate(from, (at_least, snapshot, offset), world, out);
            }
            TransferMessage::NotYet { coming } => {
                // A donor that is behind itself is as good as a silent one: the next may have it.
                let fetch = self.fetch.as_mut().filter(|fetch| fetch.is_from(from));
                if let Some(fetch) = fetch.filter(|_| coming) {
                    fetch.on_promise();
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
        world: &dyn World,
        out: &mut Vec<Output>,
    ) {
        if self.digests.status().is_minority() {
            // Its state is not the cluster's: others have it.
            let message = TransferMessage::NotYet { coming: false };
            return self.send_transfer(to, Lane::Control, &message, out);
        }
        let newest = world
            .snapshot_newest()
            .filter(|info| info.id.slot >= at_least);
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
        self.send_transfer(to, Lane::Control, &TransferMessage::NotYet { coming }, out);
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
        let Some(fetch) = self.fetch.as_mut().filter(|fetch| fetch.is_from(from)) else {
            return;
        };
        fetch.on_answer();
        let overtaken = snapshot.slot <= self.executor.stable()
            && !self.planted.is(Plant::OldSnapshotReplacesState);
        if snapshot.slot < fetch.at_least || overtaken {
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
        fetch.offset += bytes.len() as u64;
        out.push(Output::SnapshotAppend(bytes));
        if whole {
            under_way.kind = Under::Fetched { whole: true };
            out.push(Output::SnapshotFinish);
        } else {
            self.ask_donor(world, out);
        }
    }
}
