//! QUINTET: the client that asks waits, and no other does.

use super::rig::Rig;
use crate::server::{ChangeReport, ChangeRequest, GatewayConfig, MemberReport, change::CHANGE_MAX};
use quintet_replica::Time;

fn report() -> ChangeReport {
    let member = |id: u16| MemberReport {
        id,
        node: format!("{id:016x}"),
        role: "voter".to_owned(),
        peer: format!("10.0.0.{id}:7201"),
        redis: (id == 0).then(|| "10.0.0.0:7001".to_owned()),
        has_state: None,
    };
    ChangeReport {
        epoch: 2,
        protocol: "nezha".to_owned(),
        options: [("a".to_owned(), "1".to_owned())].into(),
        durability: "memory".to_owned(),
        fingerprint: "f".to_owned(),
        members: vec![member(0), member(1)],
        change: "none".to_owned(),
    }
}

#[test]
fn client_that_changes_the_protocol_waits_alone_and_in_order() {
    let mut rig = Rig::new();
    let (id, other) = (rig.connect(), rig.connect());
    let asked = "SET a 1\r\nQUINTET SWITCH nezha a 1 durability memory\r\nGET a\r\n";
    assert_eq!(rig.ask(id, asked), "+OK\\r\\n");
    let (number, request) = rig.gateway.take_change().unwrap();
    let wanted = ChangeRequest {
        protocol: Some("nezha".to_owned()),
        options: [("a".to_owned(), "1".to_owned())].into(),
        durability: Some("memory".to_owned()),
        remove: Vec::new(),
    };
    assert_eq!(request, wanted);
    assert_eq!(rig.gateway.take_change(), None);
    assert_eq!(rig.say(other, "GET a"), "$1\\r\\n1\\r\\n");
    rig.gateway.on_changed(number + 1, &Ok(report()));
    rig.run();
    assert_eq!(rig.output(id), "");
    rig.gateway.on_changed(number, &Ok(report()));
    rig.run();
    assert_eq!(
        rig.output(id),
        "*10\\r\\n$5\\r\\nepoch\\r\\n:2\\r\\n$8\\r\\nprotocol\\r\\n$5\\r\\nnezha\\r\\n\
         $10\\r\\ndurability\\r\\n$6\\r\\nmemory\\r\\n\
         $11\\r\\nfingerprint\\r\\n$1\\r\\nf\\r\\n$7\\r\\noptions\\r\\n*2\\r\\n$1\\r\\na\\r\\n$1\\r\\n1\\r\\n\
         $1\\r\\n1\\r\\n"
    );
    // Answered once.
    rig.gateway.on_changed(number, &Ok(report()));
    rig.run();
    assert_eq!(rig.output(id), "");
}

#[test]
fn waiting_client_is_told_when_time_is_over_or_the_server_stops() {
    let mut rig = Rig::new();
    let (id, other) = (rig.connect(), rig.connect());
    rig.say(id, "QUINTET MEMBER REMOVE 1");
    let (number, request) = rig.gateway.take_change().unwrap();
    assert_eq!(request.remove, [1]);
    assert_eq!(rig.gateway.next_deadline(), rig.now + CHANGE_MAX);
    rig.pass(CHANGE_MAX);
    rig.run();
    assert!(rig.output(id).contains("not done within 400 s"));
    assert_eq!(rig.gateway.next_deadline(), Time::NEVER);
    assert_eq!(rig.say(id, "PING"), "+PONG\\r\\n");
    rig.gateway.on_changed(number, &Ok(report()));
    rig.run();
    assert_eq!(rig.output(id), "");

    rig.say(other, "QUINTET PROTOCOL");
    rig.gateway.begin_shutdown();
    assert!(rig.output(other).contains("stopping"));
    assert!(rig.gateway.should_close(other));
}

#[test]
fn place_of_a_client_that_left_is_free_when_its_change_ends() {
    let mut rig = Rig::new();
    let id = rig.connect();
    rig.say(id, "QUINTET CHANGE");
    let (number, _) = rig.gateway.take_change().unwrap();
    rig.gateway.on_closed(id);
    assert_ne!(rig.connect(), id);
    rig.gateway.on_changed(number, &Err("it fails".to_owned()));
    rig.run();
    assert_eq!(rig.connect(), id);
}

#[test]
fn reasons_and_lines_to_start_a_replica_are_answered() {
    let mut rig = Rig::new();
    let id = rig.connect();
    let mut answered = |line: &str, answer: &Result<ChangeReport, String>| {
        rig.say(id, line);
        let (number, request) = rig.gateway.take_change().unwrap();
        assert!(
            request.changes_nothing() || line.contains("SWITCH"),
            "{line}"
        );
        rig.gateway.on_changed(number, answer);
        rig.run();
        rig.output(id)
    };
    let refused = answered("QUINTET SWITCH nope", &Err("there is no 'nope'".to_owned()));
    assert_eq!(refused, "-ERR there is no 'nope'\\r\\n");
    let add = answered("quintet member add", &Ok(report()));
    assert!(
        add.contains("quintet join --seed 10.0.0.0:7201 --seed 10.0.0.1:7201 --dir DIR"),
        "{add}"
    );
    let replace = answered("QUINTET MEMBER REPLACE 0", &Ok(report()));
    assert!(
        replace.contains("quintet join --seed 10.0.0.1:7201 --replace 0 --dir DIR"),
        "{replace}"
    );
    let none = answered("QUINTET MEMBER REPLACE 2", &Ok(report()));
    assert_eq!(none, "-ERR there is no replica 2: they are 0, 1\\r\\n");
    let change = answered("QUINTET CHANGE", &Ok(report()));
    assert_eq!(
        change,
        "*4\\r\\n$5\\r\\nepoch\\r\\n:2\\r\\n$6\\r\\nchange\\r\\n$4\\r\\nnone\\r\\n"
    );
    assert!(answered("QUINTET MEMBERS", &Ok(report())).contains("10.0.0.0:7001"));
}

#[test]
fn invalid_requests_are_refused_without_asking_the_replica() {
    let mut rig = Rig::new();
    let id = rig.connect();
    for (line, part) in [
        ("QUINTET", "wrong number of arguments for 'quintet'"),
        (
            "QUINTET NOPE",
            "unknown subcommand 'NOPE'. Try QUINTET HELP",
        ),
        (
            "QUINTET MEMBERS all",
            "wrong number of arguments for 'quintet|members'",
        ),
        (
            "QUINTET SWITCH",
            "wrong number of arguments for 'quintet|switch'",
        ),
        (
            "QUINTET SWITCH nezha a",
            "wrong number of arguments for 'quintet|switch'",
        ),
        (
            "QUINTET MEMBER",
            "wrong number of arguments for 'quintet|member'",
        ),
        (
            "QUINTET MEMBER REMOVE",
            "wrong number of arguments for 'quintet|member'",
        ),
        ("QUINTET MEMBER NOPE 1", "unknown subcommand 'NOPE'"),
        (
            "QUINTET MEMBER REMOVE first",
            "a member's number is expected",
        ),
        (
            "QUINTET MEMBER REMOVE 70000",
            "a member's number is expected",
        ),
    ] {
        let said = rig.say(id, line);
        assert!(
            said.starts_with('-') && said.contains(part),
            "{line}: {said}"
        );
    }
    assert!(rig.say(id, "QUINTET HELP").starts_with("*16"));
    rig.say(id, "MULTI");
    assert!(
        rig.say(id, "QUINTET MEMBERS")
            .contains("not allowed inside a transaction")
    );
    assert_eq!(rig.gateway.take_change(), None);

    let mut guarded = Rig::with(GatewayConfig {
        password: Some("secret".to_owned()),
        ..GatewayConfig::default()
    });
    let id = guarded.connect();
    let said = guarded.say(id, "QUINTET MEMBER REMOVE 1");
    assert!(said.starts_with("-NOAUTH"), "{said}");
    assert_eq!(guarded.gateway.take_change(), None);
    guarded.say(id, "AUTH secret");
    guarded.say(id, "QUINTET MEMBER REMOVE 1");
    assert!(guarded.gateway.take_change().is_some());
}
