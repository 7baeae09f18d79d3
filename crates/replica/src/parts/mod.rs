//! Small pieces that protocols share.

mod admission;
mod attached;
mod contradiction;
mod kept_requests;
mod lost;
mod pace;
mod quorum;
mod slot_log;
mod slow_members;
mod state_fetch;
mod table;
mod timing;
mod window;

pub use admission::{Admission, Waiting};
pub use attached::{AttachedFrontend, RequestMessage, Taken};
pub use contradiction::CONTRADICTION;
pub(crate) use contradiction::contradiction;
pub use kept_requests::{KeptRequests, RequestKey, RequestQueue, own_request, request_key};
pub use lost::too_many_forgot;
pub use pace::{PACE_BEAT, Pace, PaceMessage};
pub use quorum::{Ballot, Tally};
pub use slot_log::SlotLog;
pub use slow_members::bypassed;
pub use state_fetch::StateFetch;
pub use table::Table;
pub use timing::Timing;
pub use window::{May, Window};
