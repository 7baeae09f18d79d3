//! The replies of the server, byte by byte those of Redis 7.0.15.
//!
//! ```text
//!   === name            a new connection to a server with empty databases
//!   > PING\r\n          what the client sends, escaped
//!   < +PONG\r\n         what Redis sent back, escaped; [closed] if it hung up after it
//! ```
//!
//! With `REDIS_ADDRESS=127.0.0.1:PORT` in the environment the replies are recorded again; a server
//! with a password is wanted for the conversations whose name begins with "password".

use super::rig::{Rig, escape, unescape};
use crate::server::GatewayConfig;
use std::{
    fmt::Write as _,
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

const FILE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/src/server/tests/conversations.txt"
);

/// Where a `~` line stands in for a `<` line, only the beginning of the reply is compared.
fn same(expected: &str, given: &str) -> bool {
    match expected.strip_suffix("...") {
        Some(beginning) => given.starts_with(beginning),
        None => expected == given,
    }
}

#[test]
fn server_answers_as_redis_did() {
    let text = std::fs::read_to_string(FILE).unwrap();
    if let Ok(address) = std::env::var("REDIS_ADDRESS") {
        std::fs::write(FILE, record(&text, &address)).unwrap();
        return;
    }
    let mut rig = Rig::new();
    let mut connection = rig.connect();
    let mut name = "";
    let (mut failures, mut compared) = (String::new(), 0);
    let mut given = String::new();
    let mut sent = "";
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("=== ") {
            name = title;
            let password = title.starts_with("password").then(|| "secret".to_string());
            rig = Rig::with(GatewayConfig {
                password,
                ..GatewayConfig::default()
            });
            connection = rig.connect();
        } else if let Some(bytes) = line.strip_prefix("> ") {
            sent = bytes;
            given = rig.ask(connection, unescape(bytes));
            if rig.gateway.should_close(connection) {
                given.push_str("[closed]");
            }
        } else if let Some(expected) = line.strip_prefix("< ") {
            compared += 1;
            if !same(expected, &given) {
                writeln!(
                    failures,
                    "{name}\n> {sent}\nredis: {expected}\nhere:  {given}\n"
                )
                .unwrap();
            }
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
    assert!(compared > 100, "only {compared} replies were compared");
}

fn record(text: &str, address: &str) -> String {
    let mut out = String::new();
    let mut stream = TcpStream::connect(address).unwrap();
    let mut skip_reply = false;
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("=== ") {
            stream = TcpStream::connect(address).unwrap();
            stream
                .set_read_timeout(Some(Duration::from_millis(150)))
                .unwrap();
            let password = if title.starts_with("password") {
                "secret"
            } else {
                ""
            };
            exchange(
                &mut stream,
                format!("FLUSHALL\r\nCONFIG SET requirepass \"{password}\"\r\n").as_bytes(),
            );
            exchange(
                &mut stream,
                b"AUTH secret\r\nFLUSHALL\r\nCONFIG SET requirepass \"\"\r\n",
            );
            exchange(
                &mut stream,
                format!("RESET\r\nCONFIG SET requirepass \"{password}\"\r\n").as_bytes(),
            );
            stream = TcpStream::connect(address).unwrap();
            stream
                .set_read_timeout(Some(Duration::from_millis(150)))
                .unwrap();
        }
        if let Some(bytes) = line.strip_prefix("> ") {
            writeln!(out, "{line}").unwrap();
            writeln!(out, "< {}", exchange(&mut stream, &unescape(bytes))).unwrap();
            skip_reply = true;
        } else if line.starts_with("< ") && skip_reply {
            // Replies that are compared only at their beginning stay as they are written.
            if line.ends_with("...") {
                let recorded = out.trim_end().rfind('\n').unwrap_or(0);
                out.truncate(recorded + 1);
                writeln!(out, "{line}").unwrap();
            }
            skip_reply = false;
        } else {
            writeln!(out, "{line}").unwrap();
        }
    }
    out
}

fn exchange(stream: &mut TcpStream, bytes: &[u8]) -> String {
    let _ = stream.write_all(bytes);
    let mut reply = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return escape(&reply) + "[closed]",
            Ok(length) => reply.extend_from_slice(&buffer[..length]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                return escape(&reply) + "[closed]";
            }
            Err(_) => return escape(&reply),
        }
    }
}
