//! CONFIG: what clients and tools ask for, answered from this server's own settings.

use super::{
    answers::{Answer, is, owned, text},
    gateway::Gateway,
};
use quintet_replica::Durability;
use quintet_store::{CommandError, Reply};

/// No setting has a longer name; a longer pattern fits none.
const PATTERN_MAX: usize = 256;

impl Gateway {
    fn settings(&self) -> Vec<(&'static str, String)> {
        let config = &self.config;
        let append_only = self.durability() == Durability::Disk;
        let yes = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
        let mut settings = vec![
            ("appendfsync", "always".to_owned()),
            ("appendonly", yes(append_only)),
            ("bind", String::new()),
            (
                "client-query-buffer-limit",
                config.command_bytes_max.to_string(),
            ),
            ("cluster-enabled", yes(false)),
            ("databases", config.databases.to_string()),
            ("dir", config.directory.clone()),
            ("maxclients", config.connections_max.to_string()),
            ("maxmemory", config.memory_max.to_string()),
            ("maxmemory-policy", "noeviction".to_owned()),
            ("min-replicas-to-write", (config.members / 2).to_string()),
            ("notify-keyspace-events", String::new()),
            ("port", config.port.to_string()),
            ("proto-max-bulk-len", config.value_bytes_max.to_string()),
            ("requirepass", String::new()),
            ("save", String::new()),
            ("slowlog-log-slower-than", "-1".to_owned()),
            ("slowlog-max-len", "0".to_owned()),
            ("tcp-keepalive", config.tcp_keepalive.as_secs().to_string()),
            ("timeout", config.idle_max.as_secs().to_string()),
            ("auth-deadline", config.auth_deadline.as_secs().to_string()),
            (
                "client-deadline-ms",
                config.client_deadline.as_millis().to_string(),
            ),
            ("durability", self.durability().name().to_owned()),
            ("protocol", self.protocol().to_owned()),
        ];
        settings.sort_unstable();
        settings
    }

    pub(super) fn config(
        &mut self,
        subcommand: &[u8],
        args: &[&[u8]],
        reply: &mut Reply<'_>,
    ) -> Answer {
        match (subcommand.to_ascii_lowercase().as_slice(), args) {
            (b"get", [_, ..]) => {
                let mut found = self.settings();
                let fits = |name: &str| {
                    let mut patterns = args.iter().filter(|given| given.len() <= PATTERN_MAX);
                    patterns.any(|pattern| matches(pattern, name))
                };
                found.retain(|(name, _)| fits(name));
                reply.map(found.len());
                for (name, value) in found {
                    reply.bulk(name.as_bytes());
                    reply.bulk(value.as_bytes());
                }
            }
            (b"set", [_, _, ..]) if args.len().is_multiple_of(2) => return Err(self.set(args)),
            (b"resetstat", []) => reply.ok(),
            (b"rewrite", []) => {
                return Err(CommandError::Text(
                    "ERR The server is running without a config file",
                ));
            }
            (b"get" | b"set" | b"resetstat" | b"rewrite", _) => {
                let name = format!("config|{}", text(subcommand).to_ascii_lowercase());
                return Err(CommandError::arity(&name));
            }
            _ => return Err(CommandError::unknown_subcommand(subcommand, "CONFIG")),
        }
        Ok(())
    }

    /// Nothing can be set; says why.
    fn set(&self, args: &[&[u8]]) -> CommandError {
        let known = self.settings();
        let names = args.iter().step_by(2);
        let unknown = names
            .clone()
            .find(|given| !known.iter().any(|(name, _)| is(given, name)));
        if let Some(name) = unknown {
            let name = text(name);
            return owned(format!(
                "ERR Unknown option or number of arguments for CONFIG SET - '{name}'"
            ));
        }
        let name = names
            .map(|name| text(name).to_ascii_lowercase())
            .next()
            .unwrap_or_default();
        let why = match name.as_str() {
            "maxmemory" => {
                "it is a limit of the whole cluster: set it in every replica's configuration"
            }
            _ => "it is set in the replica's configuration and read at its start",
        };
        owned(format!(
            "ERR CONFIG SET failed (possibly related to argument '{name}') - {why}"
        ))
    }
}

/// Whether a pattern of `*` and `?` fits a name, in any mixture of cases.
fn matches(pattern: &[u8], name: &str) -> bool {
    let name = name.as_bytes();
    let (mut at, mut from) = (0, 0);
    // Where to continue when what follows the last star does not fit.
    let mut retry = None;
    loop {
        match pattern.get(at) {
            Some(b'*') => {
                at += 1;
                retry = Some((at, from));
                continue;
            }
            Some(wanted)
                if from < name.len()
                    && (*wanted == b'?' || wanted.eq_ignore_ascii_case(&name[from])) =>
            {
                at += 1;
                from += 1;
                continue;
            }
            None if from == name.len() => return true,
            _ => {}
        }
        match retry {
            Some((after, start)) if start < name.len() => {
                retry = Some((after, start + 1));
                at = after;
                from = start + 1;
            }
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_fit_as_people_expect() {
        for (pattern, name, fits) in [
            ("*", "save", true),
            ("save", "save", true),
            ("SAVE", "save", true),
            ("s*e", "save", true),
            ("s*v", "save", false),
            ("max*", "maxmemory", true),
            ("*mem*", "maxmemory", true),
            ("?ave", "save", true),
            ("?", "save", false),
            ("", "save", false),
            ("*a*a*", "databases", true),
            ("*z*", "databases", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name), fits, "{pattern} {name}");
        }
    }
}
