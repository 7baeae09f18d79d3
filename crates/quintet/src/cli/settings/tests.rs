use super::*;
use std::ffi::OsString;

const GOOD: &str = r#"# a replica
cluster = "00000000000000000000000000000007"
id = 1
members = ["127.0.0.1:7201", "127.0.0.1:7202", "127.0.0.1:7203"]
data = "data"
clients_max = 500

[limits]
memory_max = "1GiB"
"#;

struct Case {
    directory: tempfile::TempDir,
}

impl Case {
    fn new(text: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("quintet.toml"), text).unwrap();
        Self { directory }
    }

    fn load(&self, environment: &[(&str, &str)], flags: &[&str]) -> Outcome<Loaded> {
        use clap::{Args, FromArgMatches};
        let command = Overrides::augment_args(clap::Command::new("serve").no_binary_name(true));
        let overrides = Overrides::from_arg_matches(&command.get_matches_from(flags)).unwrap();
        let environment = environment
            .iter()
            .map(|(name, text)| (OsString::from(name), OsString::from(text)));
        load_with(
            Some(&self.directory.path().join("quintet.toml")),
            environment,
            &overrides,
            false,
        )
    }

    fn refusal(&self, environment: &[(&str, &str)], flags: &[&str]) -> String {
        let failure = self.load(environment, flags).unwrap_err();
        assert_eq!(failure.exit, quintet_cli::Exit::Usage);
        failure.to_string()
    }
}

#[test]
fn datagrams_are_refused_where_the_protocol_needs_streams() {
    let case = Case::new(GOOD);
    let flags = |protocol| ["--transport", "udp", "--protocol", protocol];
    for entry in quintet_protocols::PROTOCOLS {
        let name = entry.info.name;
        match entry.needs_streams {
            true => {
                let text = case.refusal(&[], &flags(name));
                let expected = format!("--transport: transport: protocol '{name}' relies on links");
                assert!(text.contains(&expected), "{text}");
            }
            false => {
                let loaded = case.load(&[], &flags(name)).unwrap();
                assert_eq!(loaded.config.transport, quintet_runtime::Transport::Udp);
            }
        }
    }
    let by_variable = [("QUINTET_TRANSPORT", "udp")];
    let text = case.refusal(&by_variable, &["--protocol", "derecho"]);
    assert!(text.contains("QUINTET_TRANSPORT: transport:"), "{text}");
    let text = case.refusal(&[], &["--datagram-bytes-max", "100"]);
    assert!(text.contains("512 to 65000"), "{text}");
}

#[test]
fn file_is_read_and_paths_are_meant_from_it() {
    let case = Case::new(GOOD);
    let loaded = case.load(&[], &[]).unwrap();
    assert_eq!(loaded.config.id, ReplicaId(1));
    assert_eq!(loaded.config.members.len(), 3);
    assert_eq!(loaded.config.limits.memory_max, 1 << 30);
    assert_eq!(loaded.config.data, case.directory.path().join("data"));
    assert_eq!(loaded.config.peer_listen.to_string(), "127.0.0.1:7202");
    assert!(loaded.config.redis_listen.unwrap().ip().is_loopback());
}

#[test]
fn proxy_needs_the_clusters_part_of_a_members_file_only() {
    let case = Case::new(GOOD);
    let path = case.directory.path().join("quintet.toml");
    let whole = std::fs::read_to_string(&path).unwrap();
    let ours = |line: &&str| !line.starts_with("id ") && !line.starts_with("data ");
    let part: Vec<&str> = whole.lines().filter(ours).collect();
    assert!(part.len() + 2 == whole.lines().count(), "both stood in it");
    for text in [whole.clone(), part.join("\n")] {
        std::fs::write(&path, text).unwrap();
        let loaded = load_with(Some(&path), std::iter::empty(), &Overrides::default(), true);
        let config = loaded.unwrap().config;
        assert_eq!((config.members.len(), config.id), (3, ReplicaId(0)));
    }
}

#[test]
fn later_sources_win_and_the_origin_is_kept() {
    let case = Case::new(GOOD);
    let loaded = case.load(&[], &[]).unwrap();
    assert!(
        loaded
            .origin("clients_max")
            .to_string()
            .ends_with("quintet.toml:6")
    );
    assert!(
        loaded
            .origin("limits.memory_max")
            .to_string()
            .ends_with("quintet.toml:9")
    );
    assert_eq!(loaded.origin("durability"), &Origin::Default);
    let environment = [
        ("QUINTET_CLIENTS_MAX", "600"),
        ("QUINTET_LIMITS_MEMORY_MAX", "2GiB"),
    ];
    let loaded = case.load(&environment, &["--clients-max", "700"]).unwrap();
    assert_eq!(loaded.config.clients_max, 700);
    assert_eq!(loaded.origin("clients_max").to_string(), "--clients-max");
    assert_eq!(loaded.config.limits.memory_max, 2 << 30);
    assert_eq!(
        loaded.origin("limits.memory_max").to_string(),
        "QUINTET_LIMITS_MEMORY_MAX"
    );
}

#[test]
fn unknown_key_is_refused_with_its_line_and_a_suggestion() {
    let refusal = Case::new(&GOOD.replace("clients_max", "client_max")).refusal(&[], &[]);
    assert!(
        refusal.contains("quintet.toml:6: unknown key 'client_max'"),
        "{refusal}"
    );
    assert!(refusal.contains("did you mean 'clients_max'?"), "{refusal}");
    let refusal = Case::new(&GOOD.replace("[limits]", "[limit]")).refusal(&[], &[]);
    assert!(
        refusal.contains("quintet.toml:8: unknown section 'limit'"),
        "{refusal}"
    );
    let refusal = Case::new(&GOOD.replace("[limits]\n", "")).refusal(&[], &[]);
    assert!(
        refusal.contains("did you mean 'limits.memory_max'?"),
        "{refusal}"
    );
}

#[test]
fn bad_value_is_refused_with_its_place_and_what_is_accepted() {
    let refusal = Case::new(&GOOD.replace("500", "\"many\"")).refusal(&[], &[]);
    assert!(
        refusal.contains("quintet.toml:6: clients_max: 'many' is not a whole"),
        "{refusal}"
    );
    let refusal = Case::new(&GOOD.replace("500", "[1]")).refusal(&[], &[]);
    assert!(refusal.contains("type array is not accepted"), "{refusal}");
    let refusal = Case::new(GOOD).refusal(&[("QUINTET_DURABILITY", "tape")], &[]);
    assert!(
        refusal.contains("QUINTET_DURABILITY: durability: 'tape'"),
        "{refusal}"
    );
    let refusal = Case::new(GOOD).refusal(&[], &["--id", "3"]);
    assert!(refusal.contains("--id: id: 3 is not a member"), "{refusal}");
    let refusal = Case::new("id = = 1").refusal(&[], &[]);
    assert!(refusal.contains("quintet.toml:1: "), "{refusal}");
}

#[test]
fn missing_key_is_named() {
    let refusal = Case::new(&GOOD.replace("id = 1\n", "")).refusal(&[], &[]);
    assert!(refusal.contains("id is not set"), "{refusal}");
    assert!(
        refusal.contains("QUINTET_ID") && refusal.contains("--id"),
        "{refusal}"
    );
}

#[test]
fn protocols_and_options_get_suggestions() {
    let refusal = Case::new(GOOD).refusal(&[], &["--protocol", "multipaxo"]);
    assert!(
        refusal.contains("--protocol: unknown protocol 'multipaxo'"),
        "{refusal}"
    );
    assert!(refusal.contains("did you mean 'multipaxos'?"), "{refusal}");
    let text = format!("{GOOD}\n[options]\nno_such_option = 1\n");
    let refusal = Case::new(&text).refusal(&[], &[]);
    assert!(refusal.contains("quintet.toml:12: "), "{refusal}");
    assert!(
        refusal.contains("has no option 'no_such_option'"),
        "{refusal}"
    );
}

#[test]
fn public_address_needs_a_password() {
    let case = Case::new(GOOD);
    let refusal = case.refusal(&[], &["--redis-listen", "0.0.0.0:7001"]);
    assert!(refusal.contains("--redis-listen: redis_listen: 0.0.0.0:7001 is reachable"));
    assert!(refusal.contains("QUINTET_PASSWORD"));
    let password = [("QUINTET_PASSWORD", "opensesame")];
    let loaded = case
        .load(&password, &["--redis-listen", "0.0.0.0:7001"])
        .unwrap();
    assert!(
        loaded
            .rows()
            .iter()
            .all(|(_, value, _)| !value.contains("opensesame"))
    );
    let refusal = case.refusal(&[], &["--peer-listen", "0.0.0.0:7202"]);
    assert!(refusal.contains("no secret"), "{refusal}");
}
