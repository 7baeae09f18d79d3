//! A replica's configuration from its four sources, and where each value came from.
//!
//! ```text
//!   default  <  file (TOML)  <  QUINTET_* environment  <  flag
//!       └──────────┴──────────────────┴──────────────────┘
//!                             ▼
//!          Loaded { Config, origin of every key }
//! ```

pub mod schema;
mod sources;

pub use sources::Overrides;

use crate::cli::origin::Origin;
use quintet_cli::{Failure, Outcome, protocols, suggest};
use quintet_replica::{ClusterId, ReplicaId};
use quintet_runtime::Config;
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
};

/// A configuration that is complete, with where each key came from.
#[derive(Debug)]
pub struct Loaded {
    /// The configuration of the replica.
    pub config: Config,
    origins: BTreeMap<String, Origin>,
}

impl Loaded {
    /// Where the key's value came from.
    pub fn origin(&self, key: &str) -> &Origin {
        self.origins.get(key).unwrap_or(&Origin::Default)
    }

    /// Keys, values (secrets hidden) and origins, in the schema's order; options follow.
    pub fn rows(&self) -> Vec<(String, String, &Origin)> {
        let mut rows = Vec::new();
        for key in schema::KEYS {
            let value = (key.get)(&self.config);
            let unset = self.origin(key.name) == &Origin::Default;
            let value = match (key.secret, key.required) {
                (true, _) if !unset => "(hidden)".to_owned(),
                (_, true) if unset => "(not set)".to_owned(),
                _ => value,
            };
            rows.push((key.name.to_owned(), value, self.origin(key.name)));
        }
        for (name, value) in &self.config.options {
            let key = option_key(name);
            let origin = self.origin(&key);
            rows.push((key, value.clone(), origin));
        }
        rows
    }
}

/// An option's name as a key.
fn option_key(name: &str) -> String {
    format!("options.{name}")
}

/// A configuration with nothing but defaults.
pub fn blank() -> Config {
    Config::new(ClusterId(0), ReplicaId(0), Vec::new(), PathBuf::new())
}

/// Collects the sources, later ones over earlier ones.
#[derive(Debug)]
struct Draft {
    /// Of a proxy, which is no member and keeps nothing.
    proxy: bool,
    config: Config,
    origins: BTreeMap<String, Origin>,
}

impl Draft {
    fn set(&mut self, name: &str, text: &str, origin: Origin) -> Outcome {
        let Some(key) = schema::find(name) else {
            return Err(Failure::usage(format!("{origin}: unknown key '{name}'"))
                .help(remedy_for_key(name)));
        };
        (key.set)(&mut self.config, text)
            .map_err(|reason| Failure::usage(format!("{origin}: {name}: {reason}")))?;
        self.origins.insert(name.to_owned(), origin);
        Ok(())
    }

    fn set_option(&mut self, name: &str, value: &str, origin: Origin) {
        self.config.options.retain(|(known, _)| known != name);
        self.config
            .options
            .push((name.to_owned(), value.to_owned()));
        self.origins.insert(option_key(name), origin);
    }

    fn origin(&self, name: &str) -> &Origin {
        self.origins.get(name).unwrap_or(&Origin::Default)
    }

    /// The first key that must be set and is not.
    fn missing(&self) -> Option<&'static schema::Key> {
        let no_member = |key: &schema::Key| self.proxy && matches!(key.name, "id" | "data");
        schema::KEYS.iter().find(|key| {
            key.required && !no_member(key) && self.origin(key.name) == &Origin::Default
        })
    }

    fn finish(mut self) -> Outcome<Loaded> {
        if let Some(key) = self.missing() {
            return Err(
                Failure::usage(format!("{} is not set", key.name)).help(format!(
                    "set it in the file, as {} or with --{}; 'quintet config new' writes a file",
                    key.variable(),
                    key.flag()
                )),
            );
        }
        if self.origin("peer_listen") == &Origin::Default
            && let Some(member) = self.config.members.get(self.config.id.index())
        {
            let own = member.peer.clone();
            let origin = self.origin("members").clone();
            self.set("peer_listen", &own, origin)?;
        }
        if self.proxy {
            self.config.id = ReplicaId(0);
            self.config.peer_listen = blank().peer_listen;
        }
        self.check_protocol()?;
        self.check_exposure()?;
        self.config.check().map_err(|error| {
            let text = error.to_string();
            let key = text.split([':', ' ']).next().unwrap_or_default();
            match self.origins.get(key) {
                Some(origin) => Failure::usage(format!("{origin}: {text}")),
                None => Failure::usage(text),
            }
        })?;
        Ok(Loaded {
            config: self.config,
            origins: self.origins,
        })
    }

    fn check_protocol(&self) -> Outcome {
        let entry = protocols::find(&self.config.protocol)
            .map_err(|failure| self.origin("protocol").of(failure))?;
        protocols::check_options(entry, &self.config.options).map_err(|(name, failure)| match name
            .and_then(|name| self.origins.get(&option_key(&name)))
        {
            Some(origin) => origin.of(failure),
            None => failure,
        })
    }

    /// An address that other machines reach must be guarded.
    fn check_exposure(&self) -> Outcome {
        let config = &self.config;
        let public =
            |address: Option<SocketAddr>| address.filter(|address| !address.ip().is_loopback());
        let clients = [
            ("redis_listen", config.redis_listen),
            ("admin_listen", config.admin_listen),
        ];
        for (name, address) in clients {
            if let Some(address) = public(address)
                && config.password.is_none()
            {
                return Err(Failure::usage(format!(
                    "{}: {name}: {address} is reachable from other machines, but there is no \
                     password",
                    self.origin(name)
                ))
                .help("set 'password' (or QUINTET_PASSWORD), or listen on 127.0.0.1"));
            }
        }
        if let Some(address) = public(Some(config.peer_listen))
            && config.secret == [0; 32]
        {
            return Err(Failure::usage(format!(
                "{}: peer_listen: {address} is reachable from other machines, but there is no \
                 secret",
                self.origin("peer_listen")
            ))
            .help(
                "set 'secret' (or QUINTET_SECRET) to the same 64 hexadecimal digits everywhere",
            ));
        }
        Ok(())
    }
}

fn remedy_for_key(name: &str) -> String {
    let names: Vec<_> = schema::KEYS.iter().map(|key| key.name).collect();
    match suggest::nearest(name, names.iter().copied()) {
        Some(near) => format!("did you mean '{near}'?"),
        None => {
            let last = name.rsplit('.').next().unwrap_or(name);
            match names
                .iter()
                .find(|known| known.rsplit('.').next() == Some(last))
            {
                Some(known) => format!("did you mean '{known}'?"),
                None => "'quintet config show' lists all keys".to_owned(),
            }
        }
    }
}

/// Loads a configuration: the file if there is one, the environment, then flags.
///
/// # Errors
/// With file and line, variable or flag of what is wrong, and what would be right.
pub fn load(file: Option<&Path>, overrides: &Overrides) -> Outcome<Loaded> {
    load_with(file, std::env::vars_os(), overrides, false)
}

/// The same for a proxy: a member's file will do, of which its place and its data do not count.
///
/// # Errors
/// As [`load`].
pub fn load_for_proxy(file: Option<&Path>, overrides: &Overrides) -> Outcome<Loaded> {
    load_with(file, std::env::vars_os(), overrides, true)
}

/// Loads a configuration to be shown: what must be set and is not may be missing.
///
/// # Errors
/// As [`load`] otherwise.
pub fn load_to_show(file: Option<&Path>, overrides: &Overrides) -> Outcome<Loaded> {
    let draft = gather(file, std::env::vars_os(), overrides)?;
    if draft.missing().is_none() {
        return draft.finish();
    }
    Ok(Loaded {
        config: draft.config,
        origins: draft.origins,
    })
}

/// Loads the configuration of a replica that becomes, or is, a member by its directory alone:
/// `agree` adds what the members have in common.
///
/// # Errors
/// As [`load`], and what `agree` says.
pub fn load_to_join(
    file: Option<&Path>,
    overrides: &Overrides,
    directory: &Path,
    agree: impl FnOnce(&mut Config) -> Outcome,
) -> Outcome<Loaded> {
    let mut draft = gather(file, std::env::vars_os(), overrides)?;
    if draft.origin("peer_listen") == &Origin::Default {
        return Err(Failure::usage("peer_listen is not set")
            .help("say where this replica listens for the others with --peer-listen HOST:PORT"));
    }
    draft.config.data = directory.to_owned();
    draft.check_exposure()?;
    agree(&mut draft.config)?;
    for key in ["cluster", "id", "members", "data"] {
        draft
            .origins
            .insert(key.to_owned(), Origin::Flag("dir".to_owned()));
    }
    draft.finish()
}

/// A configuration of flags alone, checked as a file would be.
///
/// # Errors
/// As [`load`].
pub fn from_flags(flags: &[(&str, &str)]) -> Outcome<Loaded> {
    let mut draft = gather(None, std::iter::empty(), &Overrides::default())?;
    for (name, text) in flags {
        draft.set(name, text, Origin::Flag((*name).to_owned()))?;
    }
    draft.finish()
}

/// Loads a file that this program wrote, whatever the environment says.
///
/// # Errors
/// As [`load`].
pub fn load_own(file: &Path) -> Outcome<Loaded> {
    load_with(Some(file), std::iter::empty(), &Overrides::default(), false)
}

fn load_with(
    file: Option<&Path>,
    environment: impl Iterator<Item = (std::ffi::OsString, std::ffi::OsString)>,
    overrides: &Overrides,
    proxy: bool,
) -> Outcome<Loaded> {
    let mut draft = gather(file, environment, overrides)?;
    draft.proxy = proxy;
    draft.finish()
}

fn gather(
    file: Option<&Path>,
    environment: impl Iterator<Item = (std::ffi::OsString, std::ffi::OsString)>,
    overrides: &Overrides,
) -> Outcome<Draft> {
    let mut draft = Draft {
        proxy: false,
        config: blank(),
        origins: BTreeMap::new(),
    };
    if let Some(path) = file {
        sources::file(path, &mut draft)?;
    }
    sources::environment(environment, &mut draft)?;
    overrides.apply(&mut draft)?;
    Ok(draft)
}

#[cfg(test)]
mod tests;
