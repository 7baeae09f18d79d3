//! `quintet diff`: which keys differ between two times.
//!
//! ```text
//!   QUINTET.DIFF from to CURSOR … ──► any replica or proxy ──► lines, as they come
//! ```

use crate::cli::{
    password::Password,
    resp::{Client, Reply},
};
use clap::Args;
use quintet_cli::{
    Exit, Failure, Outcome,
    output::{self, Format},
};
use serde::Serialize;
use std::{io, time::Duration};

/// Longer than a replica waits for a time to come.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Print which keys were created, changed and deleted between two times
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet diff --from 2026-11-21T12:00:00Z             until now, of the demo
  quintet diff --from v:1000 --to v:2000 --match 'user:*'
  quintet diff --from us:1795750073995765 --server 10.0.0.1:6379 -o json

A time is milliseconds since 1970, us: and microseconds, v: and a version, now, or a time of RFC 3339
in UTC. The cluster must keep the past: redis-cli -p 7001 QUINTET.RETAIN SECONDS 3600 BYTES 268435456.
What each key held then: redis-cli -p 7001 QUINTET.AT TIME GET KEY.")]
pub struct Diff {
    /// The earlier time
    #[arg(long, value_name = "TIME")]
    from: String,

    /// The later time
    #[arg(long, value_name = "TIME", default_value = "now")]
    to: String,

    /// Only keys that match this pattern, as KEYS has it
    #[arg(long = "match", value_name = "PATTERN")]
    pattern: Option<String>,

    /// The database
    #[arg(long, value_name = "N", default_value_t = 0)]
    database: u8,

    /// Where a replica or a proxy serves Redis clients
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7001")]
    server: String,

    #[command(flatten)]
    password: Password,

    /// How to print: JSON is a line per key
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

#[derive(Serialize)]
struct Line {
    change: String,
    key: String,
}

impl Diff {
    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    pub fn run(self) -> Outcome {
        let unreachable = |error: io::Error| {
            Failure::new(Exit::Unreachable, format!("{}: {error}", self.server))
                .help("name a replica that runs with --server HOST:PORT")
        };
        let mut client = Client::connect(&self.server, TIMEOUT).map_err(unreachable)?;
        let mut ask = |words: &[&[u8]]| match client.ask(words).map_err(unreachable)? {
            Reply::Error(text) => Err(self.refused(&text)),
            reply => Ok(reply),
        };
        if let Some(password) = self.password.as_deref() {
            ask(&[b"AUTH", password.as_bytes()])?;
        }
        ask(&[b"SELECT", self.database.to_string().as_bytes()])?;
        // All pages are of one difference, whatever is written meanwhile.
        let to = match self.to.eq_ignore_ascii_case("now") {
            true => newest(&ask(&[b"QUINTET.RETAIN"])?).unwrap_or_else(|| self.to.clone()),
            false => self.to.clone(),
        };
        let mut cursor = "0".to_owned();
        loop {
            let mut words: Vec<&[u8]> = vec![b"QUINTET.DIFF", self.from.as_bytes()];
            words.extend([to.as_bytes(), b"CURSOR", cursor.as_bytes()]);
            if let Some(pattern) = &self.pattern {
                words.extend([&b"MATCH"[..], pattern.as_bytes()]);
            }
            let (next, found) = page(ask(&words)?).ok_or_else(|| {
                Failure::new(Exit::Refused, format!("{}: not a difference", self.server))
            })?;
            for line in found {
                match self.output {
                    Format::Table => output::print(&format!("{:<8} {}\n", line.change, line.key))?,
                    Format::Json => output::print_json_line(&line)?,
                }
            }
            if next == "0" {
                return Ok(());
            }
            cursor = next;
        }
    }

    fn refused(&self, text: &str) -> Failure {
        let failure = |exit| Failure::new(exit, format!("{}: {text}", self.server));
        match text.split(' ').next().unwrap_or_default() {
            "NOHISTORY" => failure(Exit::Refused)
                .help("the past is kept from when QUINTET.RETAIN SECONDS s BYTES b says so"),
            "CLUSTERDOWN" => failure(Exit::NoQuorum),
            "NOAUTH" | "WRONGPASS" => {
                failure(Exit::Usage).help("set QUINTET_PASSWORD or --password")
            }
            "ERR" => failure(Exit::Usage),
            _ => failure(Exit::Failed),
        }
    }
}

/// The newest version, as RETAIN tells it.
fn newest(reply: &Reply) -> Option<String> {
    let Reply::List(pairs) = reply else {
        return None;
    };
    let version = pairs.chunks_exact(2).find_map(|pair| match pair {
        [Reply::Text(name), Reply::Number(number)] if name == b"version" => Some(number),
        _ => None,
    });
    version.map(|version| format!("v:{version}"))
}

/// The next cursor, and what was found.
fn page(reply: Reply) -> Option<(String, Vec<Line>)> {
    let text = |reply: &Reply| match reply {
        Reply::Text(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    };
    let Reply::List(parts) = reply else {
        return None;
    };
    let [cursor, Reply::List(found)] = &parts[..] else {
        return None;
    };
    let lines = found.iter().map(|one| match one {
        Reply::List(pair) => match &pair[..] {
            [key, change] => Some(Line {
                change: text(change)?,
                key: text(key)?,
            }),
            _ => None,
        },
        _ => None,
    });
    Some((text(cursor)?, lines.collect::<Option<_>>()?))
}
