//! How many connections there may be, of whom, and for how long.

use super::rig::Rig;
use crate::server::{ConnectionId, GatewayConfig};
use std::time::Duration;

fn guarded() -> GatewayConfig {
    GatewayConfig {
        password: Some("secret".to_owned()),
        ..GatewayConfig::default()
    }
}

fn connect_from(rig: &mut Rig, address: &str) -> Result<ConnectionId, String> {
    let peer = address.parse().unwrap();
    let taken = rig.gateway.connect(rig.now, peer);
    taken.map_err(|text| String::from_utf8(text).unwrap())
}

#[test]
fn connection_is_refused_when_its_address_has_too_many() {
    let mut rig = Rig::with(GatewayConfig {
        connections_max: 8,
        ..GatewayConfig::default()
    });
    let refused = Err("-ERR max number of clients reached for this address\r\n".to_owned());
    let ids: Vec<_> = (0..4)
        .map(|port| connect_from(&mut rig, &format!("10.0.0.1:{port}")).unwrap())
        .collect();
    assert_eq!(connect_from(&mut rig, "10.0.0.1:9"), refused);
    assert!(connect_from(&mut rig, "10.0.0.2:1").is_ok());
    rig.gateway.on_closed(ids[0]);
    assert!(connect_from(&mut rig, "10.0.0.1:9").is_ok());
    assert_eq!(connect_from(&mut rig, "[::ffff:10.0.0.1]:9"), refused);
    // This machine has no such limit unless one is set.
    for port in 0..3 {
        assert!(connect_from(&mut rig, &format!("127.0.0.1:{port}")).is_ok());
    }
    let mut rig = Rig::with(GatewayConfig {
        per_address_max: Some(1),
        ..GatewayConfig::default()
    });
    assert!(connect_from(&mut rig, "127.0.0.1:1").is_ok());
    assert_eq!(connect_from(&mut rig, "127.0.0.1:2"), refused);
}

#[test]
fn oldest_stranger_is_closed_when_there_are_too_many() {
    let mut rig = Rig::with(GatewayConfig {
        unauthenticated_max: 2,
        ..guarded()
    });
    let ids: Vec<_> = (0..2).map(|_| rig.connect()).collect();
    assert_eq!(rig.say(ids[0], "AUTH secret"), "+OK\\r\\n");
    let third = rig.connect();
    assert!(!rig.gateway.should_close(ids[1]), "one has authenticated");
    let fourth = rig.connect();
    assert!(rig.gateway.should_close(ids[1]));
    assert!(!rig.gateway.should_close(ids[0]));
    assert!(!rig.gateway.should_close(third) && !rig.gateway.should_close(fourth));
    assert_eq!(rig.gateway.counters().connections_dropped, 1);
    for _ in 0..1000 {
        let id = rig.connect();
        assert_eq!(rig.say(id, "AUTH secret"), "+OK\\r\\n");
    }
    assert_eq!(rig.say(ids[0], "PING"), "+PONG\\r\\n");
}

#[test]
fn stranger_is_closed_when_the_password_does_not_come() {
    let mut rig = Rig::with(guarded());
    let (honest, stranger) = (rig.connect(), rig.connect());
    rig.pass(Duration::from_secs(1));
    assert_eq!(rig.say(honest, "AUTH secret"), "+OK\\r\\n");
    rig.pass(Duration::from_secs(8));
    // Its replies meanwhile do not count.
    assert_eq!(rig.say(stranger, "AUTH wrong")[..10], *"-WRONGPASS");
    while !rig.gateway.should_close(stranger) {
        rig.now = rig.gateway.next_deadline();
        rig.run();
    }
    assert!(rig.now.0 <= 11_600_000_000, "{}", rig.now);
    rig.pass(Duration::from_secs(1000));
    rig.run();
    assert!(!rig.gateway.should_close(honest));
    // A client that gives up its authentication begins again.
    assert_eq!(rig.say(honest, "RESET"), "+RESET\\r\\n");
    rig.pass(Duration::from_secs(9));
    rig.run();
    assert!(!rig.gateway.should_close(honest));
    rig.pass(Duration::from_secs(2));
    rig.run();
    assert!(rig.gateway.should_close(honest));
}

#[test]
fn passwords_are_not_looked_at_when_too_many_were_wrong() {
    let mut rig = Rig::with(guarded());
    let honest = connect_from(&mut rig, "10.0.0.1:1").unwrap();
    let guesser = connect_from(&mut rig, "10.0.0.1:2").unwrap();
    assert_eq!(rig.say(honest, "AUTH secret"), "+OK\\r\\n");
    for _ in 0..10 {
        assert_eq!(rig.say(guesser, "AUTH wrong")[..10], *"-WRONGPASS");
    }
    let slowed = "-ERR too many wrong passwords from this address: try again in 1 s\\r\\n";
    assert_eq!(rig.say(guesser, "AUTH secret"), slowed);
    assert_eq!(rig.say(guesser, "HELLO 3 AUTH default secret"), slowed);
    assert_eq!(rig.say(honest, "PING"), "+PONG\\r\\n");
    let counters = rig.gateway.counters();
    assert_eq!((counters.auth_failures, counters.auth_throttled), (10, 2));
    rig.pass(Duration::from_secs(1));
    assert_eq!(rig.say(guesser, "AUTH secret"), "+OK\\r\\n");
}

#[test]
fn settings_of_connections_are_shown_by_config_get() {
    let mut rig = Rig::with(GatewayConfig {
        idle_max: Duration::from_secs(90),
        tcp_keepalive: Duration::from_secs(60),
        connections_max: 12,
        ..GatewayConfig::default()
    });
    let id = rig.connect();
    for (name, value) in [
        ("timeout", "90"),
        ("tcp-keepalive", "60"),
        ("maxclients", "12"),
    ] {
        let answer = rig.say(id, &format!("CONFIG GET {name}"));
        assert!(
            answer.ends_with(&format!("\\r\\n{value}\\r\\n")),
            "{answer}"
        );
    }
}
