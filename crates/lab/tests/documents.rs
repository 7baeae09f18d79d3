//! The documents hold together: every page has its place and its size, every link its target, and
//! the tables that describe code agree with it.
//!
//! ```text
//!   docs/SUMMARY.md ──► each page below docs/, each once
//!   [text](path#anchor) ──► a file of the repository, a heading of that page
//!   docs/… in sources and scripts ──► a page that exists
//!   tables of options, keys, calls, metrics, dependencies ──► what the sources say
//! ```
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use quintet_cli::EXIT_CODES;
use quintet_protocols::PROTOCOLS;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.join("../..").canonicalize().unwrap()
}

/// All files below a directory whose names end so; build output is left out.
fn files_below(directory: &Path, ends: &[&str], found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                files_below(&path, ends, found);
            }
        } else if ends.iter().any(|end| name.ends_with(end)) {
            found.push(path);
        }
    }
}

/// The documents with their text, by their path below the root.
fn documents() -> BTreeMap<String, String> {
    let root = root();
    let mut paths: Vec<_> = [
        "README",
        "ARCHITECTURE",
        "CONTRIBUTING",
        "STYLE",
        "CHANGELOG",
    ]
    .map(|name| root.join(format!("{name}.md")))
    .into();
    files_below(&root.join("docs"), &[".md"], &mut paths);
    let read = |path: PathBuf| {
        let name = path.strip_prefix(&root).unwrap().display().to_string();
        (name, fs::read_to_string(&path).unwrap())
    };
    paths.into_iter().map(read).collect()
}

/// The text without its code blocks.
fn prose(text: &str) -> String {
    let mut is_code = false;
    let kept = text.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    });
    kept.collect::<Vec<_>>().join("\n")
}

/// The anchors of a page, formed from its headings as GitHub and mdBook form them.
fn anchors(text: &str) -> BTreeSet<String> {
    let (mut found, text) = (BTreeSet::new(), prose(text));
    for heading in text.lines().filter(|line| line.starts_with('#')) {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let slug = kept.collect::<String>().replace(' ', "-");
        let again = (1..).map(|count| format!("{slug}-{count}"));
        let mut names = std::iter::once(slug.clone()).chain(again);
        found.insert(names.find(|name| !found.contains(name)).unwrap());
    }
    found
}

/// The targets of a page's links.
fn links(text: &str) -> Vec<String> {
    let text = prose(text);
    let pieces = text.split("](").skip(1);
    let targets = pieces.filter_map(|piece| piece.split_once(')'));
    targets.map(|(target, _)| target.to_owned()).collect()
}

#[test]
fn links_lead_somewhere() {
    let (root, all, mut failed) = (root(), documents(), Vec::new());
    for (name, text) in &all {
        for link in links(text) {
            if link.contains("://") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match path {
                "" => root.join(name),
                _ => root.join(name).parent().unwrap().join(path),
            };
            let Ok(target) = target.canonicalize() else {
                failed.push(format!("{name}: {link}: no such file"));
                continue;
            };
            if anchor.is_empty() {
                continue;
            }
            let known =
                fs::read_to_string(&target).is_ok_and(|text| anchors(&text).contains(anchor));
            if !known {
                failed.push(format!("{name}: {link}: no such heading"));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn summary_lists_each_page_once() {
    let all = documents();
    let mut listed: Vec<_> = links(&all["docs/SUMMARY.md"])
        .iter()
        .map(|link| format!("docs/{link}"))
        .collect();
    listed.sort();
    let pages = all.keys().filter(|name| name.starts_with("docs/"));
    let pages: Vec<_> = pages.filter(|name| *name != "docs/SUMMARY.md").collect();
    assert_eq!(listed.iter().collect::<Vec<_>>(), pages);
}

/// The input of mdBook: titles, and lists of links to pages below the source's folder.
#[test]
fn summary_is_a_table_of_contents_of_a_book() {
    let book: toml::Table = source("book.toml").parse().unwrap();
    assert_eq!(book["book"]["src"].as_str(), Some("docs"));
    let summary = &documents()["docs/SUMMARY.md"];
    for line in summary.lines().filter(|line| !line.is_empty()) {
        let is_link = line.trim_start().starts_with("- [") && line.ends_with(".md)");
        assert!(line.starts_with("# ") || is_link, "{line}");
    }
}

#[test]
fn sources_name_pages_that_exist() {
    let (root, mut paths, mut failed) = (root(), Vec::new(), Vec::new());
    for directory in [
        "crates",
        "protocols",
        "ci",
        ".ci",
        "bench",
        "examples",
        "lab",
    ] {
        files_below(&root.join(directory), &[""], &mut paths);
    }
    paths.extend(["justfile", "Cargo.toml"].map(|name| root.join(name)));
    let mut count = 0;
    for path in paths {
        // A file that is not text names no page.
        let text = fs::read_to_string(&path).unwrap_or_default();
        for piece in text.split("docs/").skip(1) {
            let is_path = |c: char| c.is_ascii_alphanumeric() || "-_/.".contains(c);
            let page: String = piece.chars().take_while(|c| is_path(*c)).collect();
            let Some((page, _)) = page.split_once(".md") else {
                continue;
            };
            count += 1;
            if !root.join("docs").join(format!("{page}.md")).exists() {
                failed.push(format!("{}: docs/{page}.md", path.display()));
            }
        }
    }
    assert!(count > 10, "found only {count}");
    assert!(failed.is_empty(), "no such page:\n{}", failed.join("\n"));
}

/// The most KiB of each page. A page that needs more is shortened, or divided.
const SIZES_MAX: &[(&str, usize)] = &[
    ("README.md", 6),
    ("ARCHITECTURE.md", 20),
    ("CONTRIBUTING.md", 5),
    ("STYLE.md", 5),
    ("docs/SUMMARY.md", 3),
    ("docs/guide/quickstart.md", 3),
    ("docs/guide/redis-commands.md", 4),
    ("docs/guide/command-list.md", 4),
    ("docs/guide/groups.md", 6),
    ("docs/guide/time-travel.md", 4),
    ("docs/guide/library.md", 5),
    ("docs/guide/services.md", 8),
    ("docs/guide/service-calls.md", 6),
    ("docs/guide/configuration.md", 6),
    ("docs/guide/cli.md", 4),
    ("docs/guide/measuring.md", 6),
    ("docs/guide/scenarios.md", 6),
    ("docs/operations/deploy.md", 4),
    ("docs/operations/monitoring.md", 5),
    ("docs/operations/metrics.md", 12),
    ("docs/operations/failures.md", 6),
    ("docs/operations/backup.md", 2),
    ("docs/operations/change.md", 3),
    ("docs/operations/members.md", 5),
    ("docs/operations/transports.md", 5),
    ("docs/operations/security.md", 2),
    ("docs/protocols/choosing.md", 4),
    ("docs/protocols/adding.md", 6),
    ("docs/protocols/mapping.md", 9),
    ("docs/protocols/derecho-paper.md", 7),
    ("docs/design/boundary.md", 9),
    ("docs/design/epochs.md", 6),
    ("docs/design/durability.md", 6),
    ("docs/design/sessions-and-reads.md", 5),
    ("docs/design/state-transfer.md", 4),
    ("docs/design/runtime.md", 6),
    ("docs/design/simulator.md", 6),
    ("docs/design/testing.md", 7),
    ("docs/design/torture.md", 4),
    ("docs/design/performance-model.md", 4),
    ("docs/design/replay-scripts.md", 4),
    ("docs/design/small-scopes.md", 5),
    ("docs/design/histories.md", 3),
    ("docs/design/glossary.md", 3),
    ("docs/results/method.md", 3),
    ("docs/results/performance.md", 6),
    ("docs/results/bugs-found.md", 5),
    ("docs/results/gray-failures.md", 3),
    ("docs/results/reconfigure.md", 3),
    ("docs/results/chain-paxos.md", 7),
    ("docs/results/chora.md", 7),
    ("docs/results/derecho.md", 8),
    ("docs/results/nezha.md", 7),
    ("docs/results/services.md", 6),
    ("docs/results/racs.md", 7),
];

/// The same of the page of one protocol.
const PROTOCOL_SIZE_MAX: usize = 3;

/// The page of a protocol.
fn page_of(protocol: &str) -> String {
    format!("docs/protocols/{}.md", protocol.replace('_', "-"))
}

#[test]
fn pages_keep_their_size() {
    let mut sizes: BTreeMap<String, usize> = SIZES_MAX
        .iter()
        .map(|(name, size)| ((*name).to_owned(), *size))
        .collect();
    for entry in PROTOCOLS {
        sizes.insert(page_of(entry.info.name), PROTOCOL_SIZE_MAX);
    }
    let mut failed = Vec::new();
    for (name, text) in documents() {
        let size = sizes.remove(&name);
        if name == "CHANGELOG.md" {
            continue;
        }
        match size {
            None => failed.push(format!("{name}: has no size in SIZES_MAX")),
            Some(max) if text.len() > max << 10 => failed.push(format!(
                "{name}: {} bytes, at most {}",
                text.len(),
                max << 10
            )),
            Some(_) => {}
        }
    }
    failed.extend(sizes.keys().map(|name| format!("{name}: does not exist")));
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

fn source(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// The cells of a table's row.
fn cells(line: &str) -> Vec<&str> {
    line.trim_matches('|').split('|').map(str::trim).collect()
}

#[test]
fn protocol_pages_list_options_with_defaults() {
    let all = documents();
    for entry in PROTOCOLS {
        let page = page_of(entry.info.name);
        let table = all[&page].split("## Options").nth(1).unwrap();
        let rows = table.lines().filter(|line| line.starts_with("| `"));
        let rows: Vec<_> = rows.map(|line| cells(line)[..2].join(" ")).collect();
        let options = entry.options.iter().filter(|spec| spec.name != "bug");
        let options: Vec<_> = options
            .map(|spec| format!("`{}` {}", spec.name, spec.default))
            .collect();
        assert_eq!(rows, options, "{page}");
    }
}

#[test]
fn readme_and_choosing_agree_with_registry() {
    let all = documents();
    for entry in PROTOCOLS {
        let status = match entry.info.stable {
            true => "stable",
            false => "experimental",
        };
        for name in ["README.md", "docs/protocols/choosing.md"] {
            let begins = format!("| [`{}`](", entry.info.name);
            let row = all[name].lines().find(|line| line.starts_with(&begins));
            let row = row.unwrap_or_else(|| panic!("{name} has no row of {}", entry.info.name));
            assert_eq!(cells(row)[2], status, "{name}: {}", entry.info.name);
        }
    }
}

#[test]
fn configuration_page_lists_each_key() {
    let schema = source("crates/quintet/src/cli/settings/schema.rs");
    let table = schema.split("pub const KEYS").nth(1).unwrap();
    // Each key is `key("name", …)`.
    let calls = table.split("key(").skip(1);
    let names = calls.filter_map(|call| call.trim_start().strip_prefix('"'));
    let names: BTreeSet<_> = names.filter_map(|name| name.split('"').next()).collect();
    assert!(names.len() > 30, "found only {names:?}");
    let page = &documents()["docs/guide/configuration.md"];
    for name in names {
        assert!(page.contains(&format!("`{name}`")), "no key {name}");
    }
}

#[test]
fn boundary_page_lists_each_call() {
    let context = source("crates/replica/src/context.rs");
    let of_replicas = context.split("impl<P: Protocol> Context<'_, P>").nth(1);
    let calls = of_replicas.unwrap().split("\nimpl").next().unwrap();
    let calls: Vec<_> = calls
        .split("pub fn ")
        .skip(1)
        .filter_map(|call| call.split(['(', '<']).next())
        .collect();
    assert!(calls.len() > 20, "found only {calls:?}");
    let page = &documents()["docs/design/boundary.md"];
    for call in calls {
        assert!(page.contains(&format!("`{call}`")), "no call {call}");
    }
}

#[test]
fn metrics_in_documents_exist() {
    let mut sources = Vec::new();
    files_below(&root().join("crates/runtime/src"), &[".rs"], &mut sources);
    let sources: String = sources
        .iter()
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    let mut count = 0;
    for (name, text) in documents() {
        if name == "CHANGELOG.md" {
            continue;
        }
        for piece in text.split("`quintet_").skip(1) {
            let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
            let metric: String = piece.chars().take_while(|c| is_name(*c)).collect();
            let is_crate = ["simulator", "replica"].contains(&metric.as_str());
            let known = is_crate || sources.contains(&format!("\"{metric}\""));
            assert!(metric.is_empty() || known, "{name}: quintet_{metric}");
            count += 1;
        }
    }
    assert!(count > 20, "found only {count}");
}

#[test]
fn architecture_lists_dependencies_of_each_crate() {
    let all = documents();
    let rows = all["ARCHITECTURE.md"].lines().map(cells);
    let is_crate = |row: &Vec<&str>| row.len() == 2 && row[1].starts_with(['`', '–']);
    let mut count = 0;
    for row in rows.filter(is_crate) {
        let manifest = root().join(row[0].trim_matches('`')).join("Cargo.toml");
        let Ok(manifest) = fs::read_to_string(manifest) else {
            continue;
        };
        let section = manifest.split("[dependencies]").nth(1).unwrap_or_default();
        let lines = section.lines().take_while(|line| !line.starts_with('['));
        let names = lines.filter_map(|line| line.strip_prefix("quintet-"));
        let mut names: Vec<_> = names
            .filter_map(|name| name.split(['.', ' ', '=']).next())
            .map(|name| format!("`{name}`"))
            .collect();
        names.sort();
        let listed = row[1].trim_matches('–').to_owned();
        assert_eq!(listed, names.join(", "), "{}", row[0]);
        count += 1;
    }
    assert_eq!(count, 11);
}

#[test]
fn library_page_shows_the_example() {
    let page = &documents()["docs/guide/library.md"];
    assert!(page.contains(&source("examples/counter.rs")));
    let page = &documents()["docs/guide/services.md"];
    assert!(page.contains(&source("examples/versioned_counter.rs")));
}

#[test]
fn scenarios_page_shows_each_scenario_key() {
    let reader = source("crates/lab/src/scenario/read.rs");
    let attack = source("crates/lab/src/scenario/attack.rs");
    let page = &documents()["docs/guide/scenarios.md"];
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words: BTreeSet<_> = page.split(|c| !is_word(c)).collect();
    let mut count = 0;
    for text in [reader, attack] {
        // A table of the file is a struct whose name ends with "Text".
        let structs = text.split("struct ").skip(1);
        let tables = structs.filter_map(|table| table.split_once("Text {\n"));
        for (_, table) in tables.filter(|(name, _)| name.chars().all(is_word)) {
            let fields = table.split("\n}").next().unwrap().lines();
            let fields = fields.filter_map(|line| line.trim().split_once(": "));
            for (name, _) in fields.filter(|(name, _)| name.chars().all(is_word)) {
                assert!(words.contains(name), "no key {name}");
                count += 1;
            }
        }
    }
    assert!(count > 40, "found only {count}");
}

#[test]
fn cli_page_lists_exit_codes() {
    let rows = EXIT_CODES.lines().skip(1).map(|line| {
        let (code, meaning) = line.trim().split_once("  ").unwrap();
        format!("| {code} | {meaning} |")
    });
    let page = &documents()["docs/guide/cli.md"];
    for row in rows {
        assert!(page.contains(&row), "no row '{row}'");
    }
}
