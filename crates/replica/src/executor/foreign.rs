//! Batches of another group: nothing of them is executed.

use super::Executor;
use crate::{BatchView, RequestStatus};

impl Executor {
    /// Every request of the batch is refused. It is the same at all replicas, as the group stands in
    /// the batch.
    #[cold]
    pub(super) fn refuse_all(&mut self, view: &BatchView<'_>) {
        for _ in view.requests() {
            self.results.push(RequestStatus::Refused, &[]);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        BatchBuilder, BatchId, CommandId, CommandTime, FrontendId, GroupId, Level, RequestKind,
        RequestStatus, Results, Slot,
        executor::tests::{executor, no_route},
    };

    #[test]
    fn batch_of_another_group_is_refused_and_not_executed() {
        let mut executor = executor();
        let before = executor.machine().digest();
        let mut builder = BatchBuilder::of(GroupId(1));
        for _ in 0..2 {
            builder.push(CommandId::default(), RequestKind::Command, 0, b"a");
        }
        let batch = builder.finish(FrontendId(1), BatchId(1), Level::Ordered);
        let executed = executor.execute(Slot(1), CommandTime(5), &batch, Some(no_route()));
        let queried = executor.query(batch, Slot(1), false, no_route(), 0);
        for answer in [executed, queried] {
            let results = answer.expect("a client waits").results;
            let statuses = Results::new(&results).map(|(status, _)| status);
            assert!(statuses.eq([RequestStatus::Refused; 2]));
        }
        assert_eq!(executor.machine().digest(), before);
        assert_eq!(executor.executed().slot, Slot(1));
    }
}
