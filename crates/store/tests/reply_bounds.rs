//! Replies are bounded while they are written: for a command, for commands sent together, for a
//! transaction; and nothing is taken out or stored that no reply could tell of.

use quintet_replica::{At, CommandId, CommandTime, SessionId, StateMachine};
use quintet_store::{Mode, RequestBuilder, Store, StoreOptions, lookup};

const COMMAND: usize = 1000;
const REQUEST: usize = 2000;

fn store() -> Store {
    Store::new(StoreOptions {
        max_reply_bytes: COMMAND,
        max_request_reply_bytes: REQUEST,
        ..StoreOptions::default()
    })
}

fn at() -> At {
    let session = SessionId {
        owner: 1,
        number: 1,
    };
    At {
        time: CommandTime(1_700_000_000_000_000_000),
        id: CommandId {
            session,
            sequence: 1,
        },
        ..At::default()
    }
}

fn request(lines: &[&str]) -> RequestBuilder {
    let mut request = RequestBuilder::new();
    for line in lines {
        let mut words = line.split(' ').map(str::as_bytes);
        let spec = lookup(words.next().unwrap_or_default()).expect("a command");
        let args: Vec<&[u8]> = words.collect();
        request.command(spec, Mode::default(), &args);
    }
    request
}

fn transaction(lines: &[&str]) -> RequestBuilder {
    let mut whole = RequestBuilder::new();
    whole.transaction(Mode::default(), &[], &request(lines));
    whole
}

/// The store's reply, after another one that stands before it in the same results.
fn apply(store: &mut Store, request: &RequestBuilder) -> String {
    let mut reply = b"before".to_vec();
    store.apply(&at(), request.as_bytes(), &mut reply);
    String::from_utf8_lossy(&reply.split_off(6)).into_owned()
}

fn query(store: &Store, request: &RequestBuilder) -> String {
    let mut reply = b"before".to_vec();
    store.query(&at(), request.as_bytes(), &mut reply);
    String::from_utf8_lossy(&reply.split_off(6)).into_owned()
}

const REFUSED: &str = "-ERR replies to commands sent together exceed 2000 bytes: not executed\r\n";
const TOO_LONG: &str = "-ERR reply exceeds what limits.value_bytes_max allows (1000)\r\n";

fn big() -> Store {
    let mut store = store();
    let value = "v".repeat(900);
    assert_eq!(
        apply(&mut store, &request(&[&format!("SET big {value}")])),
        "+OK\r\n"
    );
    store
}

#[test]
fn pipeline_beyond_its_bound_is_refused_command_by_command() {
    let mut store = big();
    let lines = [
        "GET big",
        "GET big",
        "GET big",
        "GET big",
        "INCR n",
        "GETSET n 7",
        "SET n 8 GET",
        "SET n 9",
        "LPOP l",
        "ECHO x",
    ];
    let reply = apply(&mut store, &request(&lines));
    assert_eq!(reply.matches("$900\r\n").count(), 3);
    let rest = reply.rsplit_once("v\r\n").unwrap().1;
    let expected = [
        REFUSED, ":1\r\n", REFUSED, REFUSED, "+OK\r\n", REFUSED, REFUSED,
    ];
    assert_eq!(rest, expected.concat());
    // The rejected command has changed nothing; the others have.
    assert_eq!(query(&store, &request(&["GET n"])), "$1\r\n9\r\n");
    let reply = query(&store, &request(&["GET big"; 5]));
    assert_eq!(reply.matches("$900\r\n").count(), 3);
    assert_eq!(reply.matches(REFUSED).count(), 2);
}

#[test]
fn transaction_beyond_its_bound_still_writes() {
    let mut store = big();
    let lines = [
        "GET big",
        "GET big",
        "GET big",
        "GET big",
        "SET done 1",
        "SPOP s",
    ];
    let reply = apply(&mut store, &transaction(&lines));
    assert!(reply.starts_with("*6\r\n$900\r\n"), "{reply}");
    // A line is set aside for each of its commands.
    assert_eq!(reply.matches("$900\r\n").count(), 2);
    assert!(reply.ends_with(&format!("+OK\r\n{REFUSED}")), "{reply}");
    assert_eq!(query(&store, &request(&["GET done"])), "$1\r\n1\r\n");
    let reply = query(&store, &transaction(&["GET big"; 4]));
    assert_eq!(reply.matches(REFUSED).count(), 2);
}

#[test]
fn transaction_of_too_many_commands_is_refused_whole() {
    let mut store = store();
    let reply = apply(&mut store, &transaction(&["SET k v"; 16]));
    assert!(reply.starts_with("-ERR replies of 16 commands may exceed 2000 bytes"));
    assert_eq!(query(&store, &request(&["EXISTS k"])), ":0\r\n");
    assert!(apply(&mut store, &transaction(&["SET k v"; 15])).starts_with("*15\r\n+OK"));
}

#[test]
fn short_replies_that_are_many_are_counted_too() {
    let mut store = store();
    for _ in 0..300 {
        apply(&mut store, &request(&["RPUSH l x"]));
    }
    // Each output is a null, and none of them a string.
    let sort = "SORT l BY nosort GET nothing:*";
    assert_eq!(query(&store, &request(&["EXISTS l"])), ":1\r\n");
    assert_eq!(apply(&mut store, &request(&[sort])), TOO_LONG);
    let lines = format!("SMISMEMBER s{}", " m".repeat(400));
    assert_eq!(query(&store, &request(&[&lines])), TOO_LONG);
    let lines = format!("MGET{}", " nothing".repeat(400));
    assert_eq!(query(&store, &request(&[&lines])), TOO_LONG);
}

#[test]
fn sort_does_not_store_what_no_reply_could_hold() {
    let mut store = big();
    apply(&mut store, &request(&["RPUSH l 1 2 3 4 5 6 7 8 9"]));
    let digest = store.digest();
    let sort = "SORT l BY nosort GET big STORE target";
    let sort = sort.replace("GET big", "GET b*g");
    apply(&mut store, &request(&["SET b1g x"]));
    let before = store.digest();
    assert_ne!(digest, before);
    let small = apply(&mut store, &request(&[&sort]));
    assert_eq!(small, ":9\r\n");
    let value = "v".repeat(900);
    let lines = [1, 2].map(|number| format!("SET b{number}g {value}"));
    apply(&mut store, &request(&[&lines[0], &lines[1]]));
    let before = store.digest();
    assert_eq!(apply(&mut store, &request(&[&sort])), TOO_LONG);
    assert_eq!(store.digest(), before);
}

#[test]
fn dump_of_what_is_too_large_is_refused_before_it_is_made() {
    let mut store = store();
    let element = "e".repeat(300);
    for _ in 0..3 {
        apply(&mut store, &request(&[&format!("RPUSH l {element}")]));
    }
    assert!(!query(&store, &request(&["DUMP l"])).starts_with('-'));
    apply(&mut store, &request(&[&format!("RPUSH l {element}")]));
    assert_eq!(query(&store, &request(&["DUMP l"])), TOO_LONG);
}
