//! Where answers go, and what they wait for.

use super::*;
use crate::{RequestStatus, Results};

impl Node {
    pub(super) fn done(&mut self, batch: BatchId, mut outcome: Outcome, out: &mut Vec<Output>) {
        if self.tick_open == Some(batch) {
            self.tick_open = None;
            self.tick_at = None;
        } else if !self.digests.done(batch, &outcome) && batch.0 < OWN_BATCHES {
            self.succession.carried.end(batch, &mut outcome);
            out.push(Output::Done { batch, outcome });
        }
    }

    pub(super) fn answer(&mut self, answer: Answer, out: &mut Vec<Output>) {
        match answer.route.after {
            Some(after) if after > self.persisted && !answer.may_be_held(&self.held) => {
                // Its frontend asks again.
                out.push(Output::Mark("answer dropped: too large to be held"));
            }
            Some(after) if after > self.persisted => self.held.push_back(answer),
            _ => self.send_answer(answer, out),
        }
    }

    pub(super) fn release_held(&mut self, out: &mut Vec<Output>) {
        while self
            .held
            .front()
            .is_some_and(|a| a.route.after <= Some(self.persisted))
        {
            if let Some(answer) = self.held.pop_front() {
                self.send_answer(answer, out);
            }
        }
    }

    fn send_answer(&mut self, answer: Answer, out: &mut Vec<Output>) {
        let Answer {
            route,
            batch,
            results,
            slot: _,
        } = answer;
        if self.executor.has_seal() && holds_sealed(&results) {
            // Nothing of it will be executed in this epoch: it is submitted again in the next.
            return;
        }
        if route.to == self.frontend {
            let (from, header) = (self.id, route.header);
            self.events.push_back(Event::Reply {
                from,
                batch,
                header,
                results,
            });
        } else if route.to != FrontendId(0) {
            let mut writer = Writer::new(&mut self.scratch);
            writer.u64(batch.0);
            writer.blob(&route.header);
            writer.blob(&results);
            let frame = writer.finish();
            if self.home_of(route.to).is_some() {
                return self.send_home(FrameKind::ReplyTo, route.to, Lane::Control, frame, out);
            }
            let frame = self.wrap(FrameKind::Reply, frame);
            let to = Recipients::Frontend(route.to);
            out.push(Output::Send {
                to,
                lane: Lane::Control,
                frame,
            });
        }
    }
}

/// Whether some request is answered that the epoch has ended before it.
fn holds_sealed(results: &Bytes) -> bool {
    let mut results = Results::new(results);
    results.any(|(status, _)| status == RequestStatus::Sealed)
}
