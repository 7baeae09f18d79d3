//! The servers that are asked, one after another: those that have failed lately behind the others.

use crate::cli::resp::{Client, Reply};
use quintet::runtime::pauses::Health;
use std::{
    fmt, io,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Longer than a server waits for a time to come.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Why there is no file.
#[derive(Debug)]
pub enum Refused {
    /// Nothing has this name, or the time has not come.
    Missing,
    /// That past is not kept.
    NotKept(String),
    /// It is larger than a file may be here.
    TooLarge(String),
    /// The server answers it nowhere.
    NotOffered(String),
    /// The server does not take the request.
    Error(String),
    /// No server answers.
    Failed(io::Error),
}

impl fmt::Display for Refused {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => formatter.write_str("there is no such file"),
            Self::NotKept(text)
            | Self::TooLarge(text)
            | Self::NotOffered(text)
            | Self::Error(text) => formatter.write_str(text),
            Self::Failed(error) => error.fmt(formatter),
        }
    }
}

/// Answers requests.
pub trait Ask: Send + Sync + 'static {
    /// The reply, if it is no error.
    fn ask(&self, words: &[&[u8]]) -> Result<Reply, Refused>;
}

/// Servers of which any one is asked.
pub struct Server {
    addresses: Vec<(String, Health)>,
    password: Option<String>,
    /// Connections without a request.
    idle: Mutex<Vec<Client>>,
}

pub fn lock<T>(it: &Mutex<T>) -> MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    pub fn new(addresses: Vec<String>, password: Option<String>) -> Self {
        let addresses = addresses.into_iter().map(|it| (it, Health::new()));
        Self {
            addresses: addresses.collect(),
            password,
            idle: Mutex::new(Vec::new()),
        }
    }

    fn connect(&self, address: &str) -> io::Result<Client> {
        let mut client = Client::connect(address, TIMEOUT)?;
        if let Some(password) = &self.password
            && let Reply::Error(text) = client.ask(&[b"AUTH", password.as_bytes()])?
        {
            return Err(io::Error::other(text));
        }
        Ok(client)
    }

    /// Asks on a connection, which is kept where it answers.
    fn ask_on(&self, mut client: Client, words: &[&[u8]]) -> io::Result<Reply> {
        let reply = client.ask(words)?;
        if let Reply::Error(text) = &reply
            && text.starts_with("CLUSTERDOWN")
        {
            // Another server may reach enough members.
            return Err(io::Error::other(text.clone()));
        }
        lock(&self.idle).push(client);
        Ok(reply)
    }
}

impl Ask for Server {
    fn ask(&self, words: &[&[u8]]) -> Result<Reply, Refused> {
        let idle = lock(&self.idle).pop();
        if let Some(client) = idle
            && let Ok(reply) = self.ask_on(client, words)
        {
            return told(reply);
        }
        let (rest, mut first): (Vec<_>, Vec<_>) =
            self.addresses.iter().partition(|(_, it)| it.rests());
        first.extend(rest);
        let mut failed = None;
        for (address, health) in first {
            let asked = self.connect(address);
            match asked.and_then(|client| self.ask_on(client, words)) {
                Ok(reply) => {
                    health.answers();
                    return told(reply);
                }
                Err(error) => {
                    health.fails();
                    failed = failed.or(Some(error));
                }
            }
        }
        Err(Refused::Failed(failed.unwrap_or_else(|| {
            io::Error::other("there is no address of a server")
        })))
    }
}

/// A reply that is no error.
pub fn told(reply: Reply) -> Result<Reply, Refused> {
    match reply {
        Reply::Error(text) => Err(match text.split(' ').next() {
            Some("NOHISTORY") => Refused::NotKept(text),
            Some("NOTYET" | "BADKEY") => Refused::Missing,
            Some("TOOLARGE") => Refused::TooLarge(text),
            // The keys of all shards, in a cluster with a layout.
            Some("NOTOFFERED") => Refused::NotOffered(text),
            _ => Refused::Error(text),
        }),
        reply => Ok(reply),
    }
}

pub fn unexpected() -> Refused {
    Refused::Error("an answer of another form".to_owned())
}

pub fn text(reply: Reply) -> Result<Vec<u8>, Refused> {
    match reply {
        Reply::Text(bytes) => Ok(bytes),
        Reply::Number(number) => Ok(number.to_string().into_bytes()),
        _ => Err(unexpected()),
    }
}

pub fn list(reply: Reply) -> Result<Vec<Reply>, Refused> {
    match reply {
        Reply::List(all) => Ok(all),
        _ => Err(unexpected()),
    }
}

/// A list of this length.
pub fn some<const COUNT: usize>(reply: Reply) -> Result<[Reply; COUNT], Refused> {
    list(reply)?.try_into().map_err(|_| unexpected())
}
