//! The clients' side: SET, GET, PING, INFO and QUIT of the Redis protocol.
//!
//! ```text
//!   bytes ──parse──► commands ──► gather (all of a read at once) ──► replies in their order
//! ```

use crate::{
    Failure, Types,
    gather::{Answer, Read, Write},
};
use bytes::{Buf, Bytes, BytesMut};
use openraft::Raft;
use std::{collections::VecDeque, io, net::SocketAddr, sync::Arc};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{mpsc, oneshot},
};

/// State shared by all connections.
#[derive(Clone)]
pub struct Server {
    raft: Raft<Types>,
    writes: mpsc::Sender<Write>,
    reads: mpsc::Sender<Read>,
    clients: Arc<Vec<SocketAddr>>,
}

impl Server {
    pub const fn new(
        raft: Raft<Types>,
        writes: mpsc::Sender<Write>,
        reads: mpsc::Sender<Read>,
        clients: Arc<Vec<SocketAddr>>,
    ) -> Self {
        Self {
            raft,
            writes,
            reads,
            clients,
        }
    }
}

const WORDS_MAX: usize = 1_024;
const WORD_MAX: usize = 64 << 20;
const LINE_MAX: usize = 64 << 10;

/// The first command in `input` with its length, `None` when it is not whole yet.
fn parse(input: &Bytes) -> Result<Option<(Vec<Bytes>, usize)>, &'static str> {
    let line = |from: usize| -> Result<Option<(Bytes, usize)>, &'static str> {
        let Some(end) = input[from..].iter().position(|byte| *byte == b'\n') else {
            return if input.len() - from > LINE_MAX {
                Err("the line is too long")
            } else {
                Ok(None)
            };
        };
        let text = &input[from..from + end];
        let length = text.strip_suffix(b"\r").unwrap_or(text).len();
        Ok(Some((input.slice(from..from + length), from + end + 1)))
    };
    let number = |text: &[u8], max: usize| -> Option<usize> {
        let number = std::str::from_utf8(text).ok()?.parse().ok()?;
        (number <= max).then_some(number)
    };
    let Some((first, mut at)) = line(0)? else {
        return Ok(None);
    };
    let Some(count) = first.strip_prefix(b"*") else {
        // Inline commands, as people type them into a connection.
        let words = first.split(|byte| *byte == b' ');
        let words = words
            .filter(|word| !word.is_empty())
            .map(|word| first.slice_ref(word));
        return Ok(Some((words.collect(), at)));
    };
    let count = number(count, WORDS_MAX).ok_or("wrong number of words")?;
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        let Some((header, begins)) = line(at)? else {
            return Ok(None);
        };
        let length = header
            .strip_prefix(b"$")
            .and_then(|text| number(text, WORD_MAX));
        let length = length.ok_or("wrong length of a word")?;
        at = begins + length + 2;
        if input.len() < at {
            return Ok(None);
        }
        words.push(input.slice(begins..begins + length));
    }
    Ok(Some((words, at)))
}

/// A reply that is known, or will be.
enum Reply {
    Now(String),
    Written(oneshot::Receiver<Answer<()>>),
    Value(oneshot::Receiver<Answer<Option<Bytes>>>),
    Last,
}

impl Server {
    async fn on_command(&self, words: &[Bytes]) -> Reply {
        let name = words.first().map(|word| word.to_ascii_uppercase());
        match (
            name.as_deref().unwrap_or_default(),
            &words[words.len().min(1)..],
        ) {
            (b"SET", [key, value]) => {
                let (done, receiver) = oneshot::channel();
                // Copied: what is kept must not hold the whole buffer that it came in.
                let (key, value) = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
                // If the receiver no longer takes it, the receiver reports the end.
                let _ = self.writes.send(Write { key, value, done }).await;
                Reply::Written(receiver)
            }
            (b"GET", [key]) => {
                let (done, receiver) = oneshot::channel();
                let key = key.clone();
                let _ = self.reads.send(Read { key, done }).await;
                Reply::Value(receiver)
            }
            (b"PING", []) => Reply::Now("+PONG\r\n".to_owned()),
            (b"QUIT", []) => Reply::Last,
            (b"INFO", _) => {
                let metrics = self.raft.metrics().borrow().clone();
                let is_leader = metrics.current_leader == Some(metrics.id);
                let role = if is_leader { "leader" } else { "follower" };
                let leader = metrics
                    .current_leader
                    .and_then(|id| usize::try_from(id).ok());
                let leader = leader.and_then(|id| self.clients.get(id));
                let leader = leader.map_or_else(|| "none".to_owned(), ToString::to_string);
                let text = format!("role:{role}\r\nleader:{leader}\r\n");
                Reply::Now(format!("${}\r\n{text}\r\n", text.len()))
            }
            ([], _) => Reply::Now(String::new()),
            (b"SET" | b"GET" | b"PING" | b"QUIT", _) => {
                Reply::Now("-ERR wrong number of words\r\n".to_owned())
            }
            _ => Reply::Now("-ERR this store knows SET, GET, PING, INFO and QUIT\r\n".to_owned()),
        }
    }
}

fn error(out: &mut Vec<u8>, text: &str) {
    let text = text.replace(['\r', '\n'], " ");
    out.extend_from_slice(format!("-ERR {text}\r\n").as_bytes());
}

async fn on_client(mut stream: TcpStream, server: Server) -> io::Result<()> {
    let mut input = BytesMut::with_capacity(16 << 10);
    let mut out = Vec::new();
    loop {
        if stream.read_buf(&mut input).await? == 0 {
            return Ok(());
        }
        let mut whole = input.split().freeze();
        let mut replies = VecDeque::new();
        let mut wrong = None;
        loop {
            match parse(&whole) {
                Ok(Some((words, length))) => {
                    replies.push_back(server.on_command(&words).await);
                    whole.advance(length);
                }
                Ok(None) => break,
                Err(why) => {
                    wrong = Some(why);
                    break;
                }
            }
        }
        input.extend_from_slice(&whole);
        let mut last = false;
        for reply in replies {
            match reply {
                Reply::Now(text) => out.extend_from_slice(text.as_bytes()),
                Reply::Written(receiver) => match receiver.await {
                    Ok(Ok(())) => out.extend_from_slice(b"+OK\r\n"),
                    Ok(Err(why)) => error(&mut out, &why),
                    Err(_) => error(&mut out, "the store has ended"),
                },
                Reply::Value(receiver) => match receiver.await {
                    Ok(Ok(Some(value))) => {
                        out.extend_from_slice(format!("${}\r\n", value.len()).as_bytes());
                        out.extend_from_slice(&value);
                        out.extend_from_slice(b"\r\n");
                    }
                    Ok(Ok(None)) => out.extend_from_slice(b"$-1\r\n"),
                    Ok(Err(why)) => error(&mut out, &why),
                    Err(_) => error(&mut out, "the store has ended"),
                },
                Reply::Last => {
                    out.extend_from_slice(b"+OK\r\n");
                    last = true;
                }
            }
        }
        if let Some(why) = wrong {
            error(&mut out, why);
        }
        stream.write_all(&out).await?;
        out.clear();
        if last || wrong.is_some() {
            return Ok(());
        }
    }
}

/// Serves clients, forever.
pub async fn serve(listener: TcpListener, server: Server) -> Result<(), Failure> {
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let server = server.clone();
        // It ends with the connection.
        tokio::spawn(async move { on_client(stream, server).await });
    }
}
