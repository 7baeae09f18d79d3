//! Idle connections, strangers, and processes that have few descriptors, with real processes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};
use support::{Client, TIMEOUT, eventually, http_get, quintet, run, served::Setup, stderr};

/// More than a process with 1,024 descriptors can hold.
const IDLE: usize = 1_100;

/// Lets this process open that many sockets itself.
fn raise_own_limit() {
    let limit = getrlimit(Resource::Nofile);
    let new = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, new).unwrap();
}

/// Opens connections that say nothing; those that are refused stay open on this side.
fn idle_connections(address: &str, count: usize) -> Vec<TcpStream> {
    (0..count)
        .map(|_| eventually("connected", || TcpStream::connect(address).ok()))
        .collect()
}

/// The server's last message on a connection that it closed, if it sent one.
fn exit_message(stream: &mut TcpStream, within: Duration) -> Option<String> {
    stream.set_read_timeout(Some(within)).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).ok().map(|_| text)
}

/// Writes more than two journal segments of 1 MiB.
fn fill_segments(client: &mut Client) {
    let value = "v".repeat(64 << 10);
    for key in 0..48 {
        let key = format!("key-{key}");
        assert_eq!(client.ask(&["SET", &key, &value]).unwrap(), "OK");
    }
}

#[test]
fn replica_serves_on_when_clients_take_all_descriptors() {
    raise_own_limit();
    let setup = Setup::new(1);
    let mut served = setup.start_with_descriptors(0, 1024, &[]);
    served.ready();
    let mut honest = served.client();
    assert_eq!(honest.ask(&["SET", "a", "1"]).unwrap(), "OK");
    let mut idle = idle_connections(&served.redis, IDLE);
    fill_segments(&mut honest);
    assert!(
        served.process.0.try_wait().unwrap().is_none(),
        "it has ended: {}",
        served.said()
    );
    assert_eq!(honest.ask(&["GET", "a"]).unwrap(), "1");
    let refused = exit_message(idle.last_mut().unwrap(), TIMEOUT);
    assert_eq!(
        refused.as_deref(),
        Some("-ERR max number of clients reached\r\n")
    );
    let said = served.said();
    assert!(said.contains("clients_max"), "{said}");
    drop(idle);
    eventually("clients are served again", || {
        let mut client = Client::connect(&served.redis).ok()?;
        client.ask(&["GET", "a"]).ok().filter(|text| text == "1")
    });
}

#[test]
fn soft_limit_of_descriptors_is_raised_when_the_hard_one_allows() {
    raise_own_limit();
    let setup = Setup::new(1);
    let served = setup.start_with_soft_descriptors(0, 256, &["--clients-max", "700"]);
    served.ready();
    let mut honest = served.client();
    let mut idle = idle_connections(&served.redis, 600);
    fill_segments(&mut honest);
    let mut last = Client::connect(&served.redis).unwrap();
    assert_eq!(last.ask(&["GET", "key-1"]).unwrap().len(), 64 << 10);
    assert_eq!(
        exit_message(idle.last_mut().unwrap(), Duration::from_millis(50)),
        None,
        "it is still connected"
    );
}

#[test]
fn proxy_serves_on_when_clients_take_all_descriptors() {
    raise_own_limit();
    let setup = Setup::new(1);
    let replica = setup.start(0, &[]);
    replica.ready();
    let proxy = setup.start_proxy_with_descriptors(1024, &[]);
    proxy.ready();
    let mut honest = proxy.client();
    assert_eq!(honest.ask(&["SET", "a", "1"]).unwrap(), "OK");
    let _idle = idle_connections(&proxy.redis, IDLE);
    assert_eq!(honest.ask(&["SET", "a", "2"]).unwrap(), "OK");
    // Scrapes and health checks need descriptors of their own.
    proxy.ready();
    let said = proxy.said();
    assert!(said.contains("clients_max"), "{said}");
}

#[test]
fn strangers_are_closed_when_a_password_is_set() {
    let setup = Setup::new(1);
    let more = ["--password", "secret", "--clients-auth-deadline", "1s"];
    let served = setup.start_with(0, &more, &[]);
    served.ready();
    let mut honest = served.client();
    eventually("it serves", || {
        let answer = honest.ask(&["AUTH", "secret"]).ok()?;
        (answer == "OK").then_some(())
    });
    let begun = Instant::now();
    let mut stranger = TcpStream::connect(&served.redis).unwrap();
    assert_eq!(
        exit_message(&mut stranger, Duration::from_secs(20)).as_deref(),
        Some("")
    );
    assert!(begun.elapsed() >= Duration::from_millis(900));
    thread::sleep(Duration::from_millis(500));
    assert_eq!(honest.ask(&["PING"]).unwrap(), "PONG");
}

#[test]
fn admin_asks_for_the_password_and_the_program_gives_it() {
    let setup = Setup::new(1);
    let served = setup.start_with(0, &["--password", "secret"], &[]);
    served.ready();
    let mut client = served.client();
    assert_eq!(client.ask(&["AUTH", "secret"]).unwrap(), "OK");
    assert_eq!(client.ask(&["SET", "a", "1"]).unwrap(), "OK");
    let admin = format!("http://{}", served.admin);
    let (code, _) = http_get(&served.admin, "/status").unwrap();
    assert_eq!(code, 401);
    let refused = run(&["status", "--admin", &admin]);
    assert_eq!(refused.status.code(), Some(3));
    assert!(stderr(&refused).contains("QUINTET_PASSWORD"));
    let answered = run(&["status", "--admin", &admin, "--password", "secret"]);
    assert_eq!(answered.status.code(), Some(0), "{}", stderr(&answered));
    let file = setup.root().join("saved").display().to_string();
    let data = served.data.display().to_string();
    let save = [
        "snapshot", "save", &file, "--admin", &admin, "--data", &data,
    ];
    let refused = run(&save);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("needs the cluster's password"));
    let mut command = quintet();
    command.args(save).env("QUINTET_PASSWORD", "secret");
    let saved = command.output().unwrap();
    assert_eq!(saved.status.code(), Some(0), "{}", stderr(&saved));
}

#[test]
fn password_guesses_are_logged_and_lock_no_client_out() {
    let setup = Setup::new(1);
    let served = setup.start_with(0, &["--password", "secret"], &[]);
    served.ready();
    let mut honest = served.client();
    assert_eq!(honest.ask(&["AUTH", "secret"]).unwrap(), "OK");
    let mut answers = Vec::new();
    for guess in 0..40 {
        let mut guesser = served.client();
        answers.push(guesser.ask(&["AUTH", &guess.to_string()]).unwrap());
    }
    assert!(answers[0].starts_with("-WRONGPASS"), "{answers:?}");
    assert_eq!(honest.ask(&["PING"]).unwrap(), "PONG");
    // Another who uses this machine still gets in.
    let mut late = served.client();
    assert_eq!(late.ask(&["AUTH", "secret"]).unwrap(), "OK");
    let said = served.said();
    assert_eq!(said.matches("wrong password").count(), 1, "{said}");
}

#[test]
fn honest_client_is_answered_when_another_sends_long_commands() {
    let setup = Setup::new(1);
    let served = setup.start(0, &[]);
    served.ready();
    let mut honest = served.client();
    let text = "ab".repeat(2_500);
    assert_eq!(honest.ask(&["SET", "a", &text]).unwrap(), "OK");
    let mut other = TcpStream::connect(&served.redis).unwrap();
    other
        .write_all("LCS a a LEN\r\n".repeat(1024).as_bytes())
        .unwrap();
    let begun = Instant::now();
    assert_eq!(honest.ask(&["GET", "a"]).unwrap(), text);
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    other.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut answers = BufReader::new(other).lines();
    assert_eq!(answers.next().unwrap().unwrap(), ":5000");
    let refused = answers.next().unwrap().unwrap();
    assert!(refused.contains("send fewer at once"), "{refused}");
    // The shown value is up to a tenth of a second old.
    eventually("the longest turn is shown", || {
        (served.metric("loop_turn_seconds_max") > 0.001).then_some(())
    });
}
