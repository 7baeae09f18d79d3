//! A node's side of state transfer, fetching and donating; see [`crate::transfer`].

use super::*;
use crate::{FRAME_HEAD, SNAPSHOTS_OPEN_MAX, SnapshotLeft, transfer::SnapshotFile};

impl Node {
    pub(super) fn begin_fetch(
        &mut self,
        from: ReplicaSet,
        at_least: Slot,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) {
        if self.saved_reach().is_some_and(|reach| at_least <= reach) {
            // The protocol learns that when it has been restored, and what is fetched beyond it is
            // not wanted any more.
            if let Some(fetch) = &mut self.fetch {
                fetch.want(at_least);
            }
            return;
        }
        if let Some(fetch) = &mut self.fetch
            && (fetch.at_least >= at_least || fetch.fed)
        {
            // The state in flight will do, and so will less from now on. If more is wanted, what
            // follows the state brings it.
            fetch.want(at_least);
            fetch.also_from(from.without(self.id));
            return;
        }
        out.push(Output::Mark("state transfer"));
        // A log that has been trimmed past one state by the time that it was there will be past the
        // next: that one must bring with it what is executed meanwhile.
        let lately = |at: Time| world.now() < at + transfer::LATELY;
        let fed = self.fetch.is_some() || self.fetched_at.is_some_and(lately) || self.is_learner();
        let donors = self.donors(from, world);
        let rates = self.transfer_rates;
        self.fetch = Fetch::new(donors, at_least, fed, rates, world.now());
        self.resume_fetch(world, out);
        self.ask_donor(world, out);
    }

    /// Continues with what an earlier run of this node has left of a state, if that is of any use.
    fn resume_fetch(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        let comes_to = self.comes_to();
        let (Some(fetch), None) = (&mut self.fetch, &self.unfinished) else {
            return;
        };
        let useful = |left: &SnapshotLeft| {
            let header = &left.header;
            header.epoch == self.epoch
                && header.group == self.group
                && header.origin != 0
                && header.executed.slot > comes_to
        };
        let Some(left) = world.snapshot_left().filter(useful) else {
            return;
        };
        fetch.resume(&left);
        let id = left.header.executed;
        let kept = left.length;
        out.push(Output::Mark("state transfer resumed"));
        out.push(Output::SnapshotBegin {
            id,
            fetched: true,
            kept,
            durable: self.saves_durably(),
        });
        self.unfinished = Some(Unfinished {
            kind: Under::Fetched { whole: false },
            id,
            appended: kept,
            written: kept,
            bridge: None,
        });
    }

    /// Whom to ask first: those with a link, the leader after the others because it has most to do,
    /// and not the same one as every other replica that fetches.
    fn donors(&self, from: ReplicaSet, world: &dyn World) -> transfer::Donors {
        let leader = self.replica.status(self.group).leader;
        const PLACES: usize = ReplicaSet::MEMBERS_MAX;
        let distance = |id: ReplicaId| (id.index() + PLACES - self.id.index()) % PLACES;
        let may_give =
            |id: &ReplicaId| self.succession.gives(*id) || self.votes(*id) && *id != self.id;
        let mut donors: transfer::Donors = from.iter().filter(may_give).collect();
        donors.sort_by_key(|id| (world.room(*id) == 0, leader == Some(*id), distance(*id)));
        donors
    }

    /// The log has brought what the snapshot was fetched for.
    pub(super) fn end_fetch(&mut self, out: &mut Vec<Output>) {
        self.fetch = None;
        self.abandon_fetched(out);
        out.push(Output::Mark("fetched snapshot overtaken by the log"));
    }

    fn abandon_fetched(&mut self, out: &mut Vec<Output>) {
        let fetched = |u: &mut Unfinished| matches!(u.kind, Under::Fetched { .. });
        if self.unfinished.take_if(fetched).is_some() {
            self.lose_source();
            out.push(Output::SnapshotAbandon);
        }
    }

    pub(super) fn ask_donor(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        let now = world.now();
        let file = self.unfinished.as_ref();
        let written = file.map_or(0, |file| file.written);
        while let Some(fetch) = &mut self.fetch
            && let Some(message) = fetch.next_ask(written, now)
        {
            let donor = fetch.donor();
            self.send_transfer(donor, Lane::Control, &message, out);
        }
        self.ask_for_feed(world, out);
        let Some(fetch) = &mut self.fetch else { return };
        let at = Deadline::At(fetch.look_at(now));
        out.push(Output::SetTimer {
            key: node_timer(TIMER_FETCH),
            at,
        });
    }

    /// An answer is late, or the next piece may be asked for.
    pub(super) fn on_fetch_timer(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        let Some(fetch) = &mut self.fetch else { return };
        if fetch.is_waiting() && world.now() >= fetch.retry_at {
            fetch.on_silence();
        }
        self.ask_donor(world, out);
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
                ahead,
            } => {
                if ahead && world.room(from) < transfer::AHEAD_ROOM {
                    return;
                }
                let kept_from = if fed { self.keep_feed(world) } else { Slot(0) };
                // One that was begun elsewhere is of use only if it leads to what is wanted.
                let leads = |file: &SnapshotFile| {
                    file.id.slot >= at_least || fed && file.id.slot >= kept_from
                };
                let continues = (snapshot.filter(leads))
                    .is_some_and(|file| self.give_piece(from, file, offset, world, out));
                if !continues && !ahead {
                    self.donate(from, at_least.max(kept_from), at_least, world, out);
                }
            }
            TransferMessage::Follow { after, end } => {
                self.give_feed(from, after, end, world, out);
            }
            TransferMessage::Batches { feed, more } => {
                self.on_feed(from, feed, more, world, out);
            }
            TransferMessage::Gone => self.on_feed_gone(from, world, out),
            TransferMessage::NotYet { written, kept } => {
                let asked = |fetch: &&mut Fetch| fetch.is_from(from) && fetch.following.is_none();
                match (self.fetch.as_mut().filter(asked), written) {
                    (Some(fetch), Some(written)) => {
                        fetch.on_promise(written);
                        if kept {
                            fetch.follow_too();
                        }
                    }
                    // It is behind itself: the next is asked when the timer fires.
                    (Some(fetch), None) if fetch.is_new_to_donor() => fetch.leave_donor(),
                    _ => {}
                }
            }
            TransferMessage::Piece {
                snapshot,
                total,
                offset,
                bytes,
                busy,
            } => {
                if let Some(fetch) = self.fetch.as_mut().filter(|fetch| fetch.is_from(from)) {
                    fetch.busy = busy;
                }
                self.on_piece(from, (snapshot, total, offset), bytes, world, out);
            }
        }
    }

    /// Gives a piece of a snapshot that was begun, while it exists.
    fn give_piece(
        &mut self,
        to: ReplicaId,
        snapshot: SnapshotFile,
        offset: u64,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) -> bool {
        if self.digests.status().is_minority() {
            return false;
        }
        let comes = |u: &Unfinished| u.id == snapshot.id && matches!(u.kind, Under::Fetched { .. });
        if self.unfinished.as_ref().is_some_and(comes) {
            // It is not whole here.
            return false;
        }
        let bytes = world.snapshot_read(snapshot.id, offset, transfer::PIECE);
        let Some(bytes) = bytes.filter(|bytes| !bytes.is_empty()) else {
            return false;
        };
        let file = self.file_given(snapshot.id, world);
        let Some((_, total)) = file.filter(|(file, _)| *file == snapshot) else {
            return false;
        };
        self.state_bytes_sent += bytes.len() as u64;
        let message = TransferMessage::Piece {
            snapshot,
            total,
            offset,
            bytes,
            busy: self.busy,
        };
        self.send_transfer(to, Lane::Bulk, &message, out);
        true
    }

    /// Which file a snapshot here is, and its length. Its header is read once, not with every
    /// piece, and while it is the newest: of one that has been replaced, peers that fetch it
    /// continue.
    fn file_given(&mut self, id: Executed, world: &dyn World) -> Option<(SnapshotFile, u64)> {
        if let Some(at) = self.given.iter().position(|(file, _)| file.id == id) {
            // Newest again: the one given longest ago is removed first.
            let given = self.given.remove(at)?;
            self.given.push_back(given);
            return Some(given);
        }
        let length = (world.snapshot_newest())
            .filter(|info| info.id == id)?
            .length;
        let header =
            crate::snapshot_header(|offset| world.snapshot_read(id, offset, transfer::PIECE))?;
        let origin = header.origin;
        if self.given.len() >= SNAPSHOTS_OPEN_MAX {
            self.given.pop_front();
        }
        let given = (SnapshotFile { id, origin }, length);
        self.given.push_back(given);
        Some(given)
    }

    /// Begins to give the newest snapshot, if it covers enough, or has one taken.
    fn donate(
        &mut self,
        to: ReplicaId,
        covers: Slot,
        at_least: Slot,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) {
        if self.digests.status().is_minority() {
            // Its state is not the cluster's: others have it.
            let message = TransferMessage::NotYet {
                written: None,
                kept: false,
            };
            return self.send_transfer(to, Lane::Control, &message, out);
        }
        // One of what is not final yet may need this very peer to become so. An older one that is
        // enough serves it, though what follows is not kept.
        let is_final = self.executor.progress() == self.executor.stable();
        let newest = world
            .snapshot_newest()
            .filter(|info| info.id.slot >= covers || !is_final && info.id.slot >= at_least)
            // Of an epoch that has ended, slots behind its end may be as high.
            .filter(|info| info.id.position >= self.executor.base().position)
            // One that leads into this epoch is none of it, known to be saved or not.
            .filter(|info| !self.succession.bridged && !self.bridges_to(info.id));
        if let Some(info) = newest
            && let Some(bytes) = world.snapshot_read(info.id, 0, transfer::PIECE)
            && let Some((snapshot, total)) = self.file_given(info.id, world)
        {
            self.state_bytes_sent += bytes.len() as u64;
            let message = TransferMessage::Piece {
                snapshot,
                total,
                offset: 0,
                bytes,
                busy: self.busy,
            };
            return self.send_transfer(to, Lane::Bulk, &message, out);
        }
        let coming = self.executor.progress() >= at_least && !self.is_between_epochs();
        let own = |u: &&Unfinished| matches!(u.kind, Under::Own { .. });
        let own = self.unfinished.as_ref().filter(own);
        // By the time that a state of now has been written and given, the log goes back less far.
        let kept = coming && self.busy && is_final && own.is_none();
        let written = coming.then(|| own.map_or(0, |unfinished| unfinished.written));
        if kept {
            self.keep_feed(world);
        }
        let message = TransferMessage::NotYet { written, kept };
        self.send_transfer(to, Lane::Control, &message, out);
        if coming {
            out.push(Output::Mark("snapshot taken for a peer"));
            self.ask_for_checkpoint(world, out);
        }
    }

    pub(super) fn on_piece(
        &mut self,
        from: ReplicaId,
        (snapshot, total, offset): (SnapshotFile, u64, u64),
        bytes: Bytes,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) {
        let comes_to = self.comes_to();
        let fetch = self.fetch.as_mut();
        let asked = |fetch: &&mut Fetch| fetch.is_from(from) && fetch.following.is_none();
        let Some(fetch) = fetch.filter(asked) else {
            return;
        };
        let saving = |u: &Unfinished| u.kind == Under::Fetched { whole: true };
        if self.unfinished.as_ref().is_some_and(saving) {
            // All of it is here, and nothing that comes now changes that.
            return;
        }
        let overtaken =
            snapshot.id.slot <= comes_to && !self.injected.is(Bug::OldSnapshotReplacesState);
        if overtaken {
            // The donor is not asked for the same again, and is left when it has nothing else.
            fetch.begin_above(comes_to);
            return self.abandon_fetched(out);
        }
        let is_known = fetch.snapshot == Some(snapshot);
        if !is_known && snapshot.id.slot < fetch.floor {
            return;
        }
        fetch.on_answer();
        if is_known {
            if !fetch.proceed(snapshot, total, world.now()) {
                return self.drop_damaged(out);
            }
            self.donor_last = Some(from);
            if let Some(file) = &mut self.unfinished {
                file.appended = fetch.total();
            }
        } else {
            // A new snapshot starts at its beginning and tells its length there.
            if offset != 0 || total == 0 {
                return;
            }
            fetch.begin(snapshot, total, world.now());
            self.donor_last = Some(from);
            self.executor.abandon_snapshot();
            self.lose_source();
            let durable = self.saves_durably();
            out.push(Output::SnapshotBegin {
                id: snapshot.id,
                fetched: true,
                kept: 0,
                durable,
            });
            self.unfinished = Some(Unfinished {
                kind: Under::Fetched { whole: false },
                id: snapshot.id,
                appended: total,
                written: 0,
                bridge: None,
            });
        }
        let Some(fetch) = &mut self.fetch else { return };
        if offset < fetch.offset {
            // It was asked for twice; the first answer is here.
            return;
        }
        if !fetch.is_piece(offset, bytes.len()) {
            return self.drop_damaged(out);
        }
        if !fetch.is_next(offset, &bytes) {
            return;
        }
        let mut next = Some(bytes);
        while let Some(bytes) = next {
            if !self.take_piece(bytes, world, out) {
                break;
            }
            next = self.fetch.as_mut().and_then(Fetch::take_early);
        }
        if !self.unfinished.as_ref().is_some_and(saving) {
            self.ask_donor(world, out);
        }
    }

    /// The donor's file has been damaged, or is not what it says; another's is not.
    fn drop_damaged(&mut self, out: &mut Vec<Output>) {
        out.push(Output::Mark("fetched snapshot damaged"));
        self.abandon_fetched(out);
        if let Some(fetch) = &mut self.fetch {
            fetch.leave_file();
        }
    }

    /// Takes the next piece of the snapshot; false when no more is to be taken.
    fn take_piece(&mut self, bytes: Bytes, world: &dyn World, out: &mut Vec<Output>) -> bool {
        let Some(fetch) = &mut self.fetch else {
            return false;
        };
        let receives = |u: &&mut Unfinished| u.kind == Under::Fetched { whole: false };
        let Some(unfinished) = self.unfinished.as_mut().filter(receives) else {
            return false;
        };
        let whole = fetch.offset + bytes.len() as u64 >= unfinished.appended;
        // A file that was cut off between two chunks has no wrong byte in it.
        if fetch.check(&bytes).is_err() || whole != fetch.reader.is_whole() {
            self.drop_damaged(out);
            return false;
        }
        let begun = fetch.offset;
        self.state_bytes_received += bytes.len() as u64;
        fetch.advance(bytes.len() as u64);
        if fetch.fed && !fetch.reader.is_fed() {
            // Its end comes behind what follows.
            let state = unfinished.appended.saturating_sub(FRAME_HEAD as u64);
            let length = bytes.len().min(state.saturating_sub(begun) as usize);
            if length > 0 {
                out.push(Output::SnapshotAppend(bytes.slice(..length)));
            }
            if whole {
                let id = unfinished.id;
                self.begin_following(id, state, world);
            }
            return !whole;
        }
        out.push(Output::SnapshotAppend(bytes));
        if whole {
            unfinished.kind = Under::Fetched { whole: true };
            out.push(Output::SnapshotFinish);
        }
        !whole
    }
}
