//! Answering reads of the past, see [`crate::past`].

use super::*;
use crate::{PastAnswer, past};

impl Executor {
    /// The end of a batch that had a closing tick: everything up to here has a time that is closed.
    pub(super) const fn finish_closing(&mut self) {
        if core::mem::replace(&mut self.closing, false) {
            self.time.0 = self.time.0.saturating_add(1);
        }
    }

    /// Answers one read of the past.
    pub(super) fn read_past(&mut self, id: CommandId, payload: &[u8]) {
        // An answer is held until it is final, and then so is the log's clock.
        let closed = self.time;
        self.told_past = true;
        self.commands += 1;
        let reply = self.results.begin();
        let status = match past::parts(payload) {
            None => RequestStatus::Malformed,
            Some((time, command)) => {
                let unclosed = self.injected.is(Bug::AnsweredBeforeClosed);
                let newest = CommandTime(closed.0.saturating_sub(1));
                let at = At {
                    position: self.executed.position,
                    time: if time == past::NEWEST { newest } else { time },
                    id,
                };
                match at.time < closed || unclosed {
                    false => RequestStatus::NotYet,
                    true => match self.machine.query_at(&at, command, reply) {
                        PastAnswer::Done => RequestStatus::Done,
                        PastAnswer::NotYet => RequestStatus::NotYet,
                        PastAnswer::NotKept => RequestStatus::NotKept,
                    },
                }
            }
        };
        self.results
            .end(status, self.limits.request_reply_bytes_max);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{batch_of, executor, no_route};
    use super::*;
    use crate::{BatchBuilder, FrontendId, Level, Results};

    fn built(level: Level, kind: RequestKind, payload: &[u8]) -> Bytes {
        let mut builder = BatchBuilder::new();
        builder.push(CommandId::default(), kind, 0, payload);
        builder.finish(FrontendId(1), BatchId(1), level)
    }

    fn tick(executor: &mut Executor, slot: u64, time: u64) {
        let batch = built(Level::Ordered, RequestKind::Tick, past::CLOSING_TICK);
        executor.execute(Slot(slot), CommandTime(time), &batch, None);
    }

    fn read(executor: &mut Executor, time: CommandTime) -> RequestStatus {
        let payload = past::payload(time, b"");
        let batch = built(Level::Stale, RequestKind::Past, &payload);
        let answer = executor.query(batch, Slot(0), false, no_route(), 0);
        let results = answer.expect("it does not wait").results;
        Results::new(&results).next().expect("one result").0
    }

    #[test]
    fn time_is_closed_when_the_logs_clock_is_past_it() {
        let mut executor = executor();
        executor.execute(Slot(1), CommandTime(50), &batch_of(&[(1, b"a")]), None);
        // Another command may come with this time.
        assert_eq!(read(&mut executor, CommandTime(50)), RequestStatus::NotYet);
        assert_eq!(read(&mut executor, CommandTime(49)), RequestStatus::NotKept);
        tick(&mut executor, 2, 40);
        assert_eq!(read(&mut executor, CommandTime(50)), RequestStatus::NotKept);
        assert_eq!(read(&mut executor, past::NEWEST), RequestStatus::NotKept);
        assert_eq!(executor.commands(), 5, "reads of the past count");
    }

    #[test]
    fn commands_of_a_ticks_batch_have_the_time_of_the_batch() {
        let mut executor = executor();
        let mut builder = BatchBuilder::new();
        builder.push(
            CommandId::default(),
            RequestKind::Tick,
            0,
            past::CLOSING_TICK,
        );
        builder.push(
            CommandId::default(),
            RequestKind::Open,
            0,
            &80u64.to_le_bytes(),
        );
        let batch = builder.finish(FrontendId(1), BatchId(1), Level::Ordered);
        let answer = executor.execute(Slot(1), CommandTime(80), &batch, Some(no_route()));
        assert!(answer.is_some());
        assert_eq!(executor.time(), CommandTime(81));
    }

    #[test]
    fn past_is_told_when_what_it_was_read_from_is_final() {
        let mut executor = executor();
        executor.speculate();
        executor.execute(Slot(1), CommandTime(50), &batch_of(&[(1, b"a")]), None);
        let payload = past::payload(CommandTime(40), b"");
        let batch = built(Level::Stale, RequestKind::Past, &payload);
        // The protocol says nothing of holding it.
        let asked = executor.query(batch.clone(), Slot(0), false, no_route(), 0);
        assert!(asked.is_none());
        executor
            .roll_back(Slot(0), None)
            .expect("the base restores");
        let mut told = 0;
        executor.became_stable(Slot(3), |_| told += 1);
        assert_eq!(told, 0, "what it saw is gone");
        executor.execute(Slot(1), CommandTime(50), &batch_of(&[(1, b"b")]), None);
        assert!(
            executor
                .query(batch, Slot(0), false, no_route(), 0)
                .is_some()
        );
    }

    #[test]
    fn read_of_the_past_is_no_command_of_the_order() {
        let mut executor = executor();
        let payload = past::payload(CommandTime(1), b"");
        let batch = built(Level::Ordered, RequestKind::Past, &payload);
        let answer = executor.execute(Slot(1), CommandTime(5), &batch, Some(no_route()));
        let results = answer.expect("a frontend waits").results;
        let status = Results::new(&results).next().expect("one result").0;
        assert_eq!(status, RequestStatus::Malformed);
        let batch = built(Level::Stale, RequestKind::Past, b"short");
        let answer = executor.query(batch, Slot(0), false, no_route(), 0);
        let results = answer.expect("it does not wait").results;
        assert_eq!(
            Results::new(&results).next().expect("one result").0,
            RequestStatus::Malformed
        );
    }
}
