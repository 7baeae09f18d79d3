//! Commands of clients from the socket to the answer, with limits small enough to be met.
//!
//! ```text
//!   bytes ──► gateway ──► batches ──► executor ─────────────────────► results ──► gateway
//!                                 └─► one that was just restored ──► the same results
//! ```
//!
//! For any requests of clients, the results of a batch and the replies of a request stay within
//! their budgets. No reply is dropped because it outgrew one. A replica that was restored from a
//! snapshot in between answers the same bytes and holds the same state.

use crate::written;
use bytes::Bytes;
use quintet_replica::{
    ClusterId, CommandTime, EpochNumber, Executor, ExecutorLimits, FrontendId, GroupId, Level,
    Outcome, ReplyRoute, RequestStatus, Results, Slot, Time,
};
use quintet_runtime::server::{Gateway, GatewayConfig};
use quintet_store::{Store, StoreOptions};
use std::time::Duration;

const VALUE: usize = 1 << 10;
const REPLY: usize = 2 << 10;
/// All replies of a request, before the last one that is not a line.
const REQUEST: usize = 4 << 10;
/// Results of a batch, before its last request.
const BATCH: usize = 8 << 10;
const COMMANDS: usize = 64;
/// Replies that are lines are executed beyond a request's budget: this long at most, each.
const LINE: usize = 160;
const REQUEST_MOST: usize = REQUEST + REPLY + COMMANDS * LINE;

fn executor() -> Executor {
    let options = StoreOptions {
        max_key_bytes: VALUE,
        max_value_bytes: VALUE,
        max_reply_bytes: REPLY,
        max_request_reply_bytes: REQUEST,
        ..StoreOptions::default()
    };
    let limits = ExecutorLimits {
        batch_reply_bytes_max: BATCH,
        request_reply_bytes_max: REQUEST_MOST,
        ..ExecutorLimits::default()
    };
    let store = Box::new(Store::new(options));
    Executor::new(ClusterId(1), GroupId(0), EpochNumber(1), store, limits)
}

fn route() -> Option<ReplyRoute> {
    Some(ReplyRoute {
        to: FrontendId(7),
        header: Bytes::new(),
        after: None,
    })
}

fn check_sizes(results: &Bytes) {
    let most = BATCH + REQUEST_MOST + COMMANDS * LINE;
    assert!(results.len() <= most, "{} bytes of results", results.len());
    for (status, reply) in Results::new(results) {
        assert!(reply.len() <= REQUEST_MOST, "{} bytes", reply.len());
        assert_ne!(status, RequestStatus::ReplyLost, "a reply was dropped");
    }
}

/// Text of two clients, one after the other at every byte of value 1.
pub fn replies(bytes: &[u8]) {
    let config = GatewayConfig {
        value_bytes_max: VALUE,
        command_bytes_max: 4 * VALUE,
        request_bytes_max: 4 * VALUE,
        request_commands_max: COMMANDS,
        batch_requests: 8,
        batch_interval: Duration::ZERO,
        ..GatewayConfig::default()
    };
    let mut gateway = Gateway::new(config, FrontendId(7), 1);
    let (mut first, mut second) = (executor(), executor());
    let (mut now, mut slot) = (Time(1_000_000_000), Slot(0));
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], 5000));
    let clients = [(); 2].map(|()| gateway.connect(now, address));
    let [Ok(one), Ok(other)] = clients else {
        unreachable!("two clients find room")
    };
    let mut submissions = Vec::new();
    for (nth, text) in bytes.split(|byte| *byte == 1).enumerate() {
        let id = if nth % 2 == 0 { one } else { other };
        for piece in text.chunks(700) {
            gateway.input(id).extend_from_slice(piece);
            gateway.on_input(id, now);
        }
        // A batch that was cut short comes again, and the next waits for its answer.
        for _ in 0..64 {
            now = now + Duration::from_millis(1);
            gateway.on_time(now);
            gateway.collect(now, now.0, &mut submissions);
            if submissions.is_empty() {
                break;
            }
            for submission in submissions.drain(..) {
                let (answer, again) = match submission.level {
                    Level::Ordered => {
                        slot = slot.next();
                        let time = CommandTime(now.0);
                        let run = |executor: &mut Executor| {
                            executor.execute(slot, time, &submission.batch, route())
                        };
                        (run(&mut first), run(&mut second))
                    }
                    _ => {
                        let read = |executor: &mut Executor| {
                            let route = route().expect("there is one");
                            executor.query(submission.batch.clone(), slot, false, route, now.0)
                        };
                        (read(&mut first), read(&mut second))
                    }
                };
                let answer = answer.expect("a client waits for it").results;
                let again = again.expect("a client waits for it").results;
                assert!(answer == again, "a restored replica answers something else");
                check_sizes(&answer);
                gateway.on_done(submission.id, Outcome::Results(answer), now);
            }
        }
        for id in [one, other] {
            gateway.output(id).clear();
        }
        if slot > Slot(0) {
            let whole = written(&mut second, slot);
            second = executor();
            let read =
                second.restore(|offset| Some(Bytes::copy_from_slice(&whole[offset as usize..])));
            read.expect("what was written is read");
        }
    }
    assert!(first.digest() == second.digest(), "the same state");
}

/// Values and collections that grow, and commands whose replies are larger than they are.
pub fn samples() -> Vec<Vec<u8>> {
    let grow = "SET a 0123456789012345678901234567890123456789012345678901234567890123\r\n\
                APPEND a 01234567890123456789012345678901234567890123456789\r\n\
                RPUSH l 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24\r\n\
                SADD s a b c d e f g h i j k l m n o p q r s t u v w x y z\r\n\
                HSET h a 1 b 2 c 3 d 4 e 5 f 6 g 7 h 8 i 9\r\n\
                ZADD z 1 a 2 b 3 c 4 d 5 e 6 f\r\n";
    let large = "SETRANGE big 1000 tail\r\nMGET big big big\r\nGET big\r\nGETRANGE big 0 -1\r\n";
    let many = "GET a\r\nLRANGE l 0 -1\r\nSMEMBERS s\r\nHGETALL h\r\nZRANGE z 0 -1 WITHSCORES\r\n\
                KEYS *\r\nSCAN 0 COUNT 100\r\nMGET a a a a a a a a a a a a a a a a a a a a a a a a\r\n";
    let block = "MULTI\r\nGET a\r\nLPOP l 100\r\nSPOP s 100\r\nGETDEL a\r\nGETSET b c\r\nDUMP l\r\n\
                 RENAME l m\r\nCOPY m l\r\nSUNION s s\r\nEXEC\r\n";
    [
        [grow, many].concat(),
        [grow, "\u{1}", &many.repeat(9), "\u{1}", &block.repeat(4)].concat(),
        [grow, block, "\u{1}", many, "\u{1}", large, large, large].concat(),
        [
            large,
            "\u{1}MULTI\r\n",
            &large.repeat(8),
            "EXEC\r\n\u{1}",
            many,
        ]
        .concat(),
        format!(
            "{grow}HELLO 3\r\n{}\u{1}WATCH a\r\n{}",
            many.repeat(3),
            block
        ),
        format!(
            "{}\u{1}{}",
            "SETRANGE k 1020 abcd\r\n",
            "GETSET k k\r\nGET k\r\n".repeat(60)
        ),
    ]
    .map(String::into_bytes)
    .to_vec()
}
