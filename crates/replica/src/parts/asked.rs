//! The requests of this replica's own frontends, on their way in.
//!
//! ```text
//!   message ─► Asked ─┬─ rejected: no leader, no state …   ─► Refused
//!                     ├─ stale read                        ─► answered at once
//!                     ├─ read  ─► the protocol's way of reading
//!                     └─ write ─► kept (KeptRequests) and ordered, or the queue is full ─► Busy
//! ```

use super::{Receipt, Request, RequestKey, RequestMessage, Taken, own_request};
use crate::{Bytes, Context, FrontendId, Level, Protocol, Slot};

/// A frontend's request, looked at.
#[derive(Debug)]
pub struct Asked {
    /// Its name.
    pub key: RequestKey,
    /// Its consistency, and the batch.
    pub request: Request,
}

/// The remaining step for a protocol.
#[derive(Debug)]
pub enum Admitted {
    /// Read from a state that is new enough.
    Read(RequestKey, Bytes),
    /// Keep and order.
    Write(RequestKey, Bytes),
}

impl Asked {
    /// The request in a frontend's message; none, with a mark, when there is none.
    pub fn of<P: Protocol<Message: RequestMessage>>(
        from: FrontendId,
        message: P::Message,
        ctx: &mut Context<'_, P>,
    ) -> Option<Self> {
        let Some(request) = message.into_request() else {
            ctx.mark("ignored: not a frontend's message");
            return None;
        };
        let key = own_request(from, &request.batch, ctx)?;
        Some(Self { key, request })
    }

    /// Answers a read that may be stale; what it returns is left to do.
    pub fn admit<P: Protocol<ReplyHeader = ()>>(
        self,
        ctx: &mut Context<'_, P>,
    ) -> Option<Admitted> {
        let (key, batch) = (self.key, self.request.batch);
        match self.request.level {
            Level::Stale => {
                ctx.query(batch, Slot(0), false, key.0, &());
                None
            }
            Level::Linearizable => Some(Admitted::Read(key, batch)),
            Level::Ordered => Some(Admitted::Write(key, batch)),
        }
    }
}

/// Takes a frontend's message in, unless `rejects` says that requests of its level are not taken
/// now. The caller must do the returned step.
pub fn admit<P: Protocol<Message: RequestMessage, ReplyHeader = ()>>(
    from: FrontendId,
    message: P::Message,
    rejects: impl FnOnce(Level) -> bool,
    ctx: &mut Context<'_, P>,
) -> Option<Admitted> {
    let asked = Asked::of(from, message, ctx)?;
    if rejects(asked.request.level) {
        reject(asked.key, Taken::Refused, ctx);
        return None;
    }
    asked.admit(ctx)
}

/// Says to a frontend that its request was not taken.
pub fn reject<P: Protocol<Message: RequestMessage>>(
    key: RequestKey,
    taken: Taken,
    ctx: &mut Context<'_, P>,
) {
    let receipt = Receipt {
        batch: key.1,
        taken,
    };
    ctx.send_frontend(key.0, P::Message::receipt(receipt));
}

/// Says to a frontend that too many reads wait already.
pub fn reject_read<P: Protocol<Message: RequestMessage>>(
    key: RequestKey,
    ctx: &mut Context<'_, P>,
) {
    ctx.mark("read refused: queue full");
    reject(key, Taken::Busy, ctx);
}
