//! Rules that no compiler checks:
//!
//! - a protocol's folder never uses another protocol's folder, but for layers that are none;
//! - a part of a protocol knows nothing of the replica, and no struct has more than 15 fields,
//!   where `mod.rs` lists the parts;
//! - no source file is longer than 1,200 lines;
//! - nothing half done is left behind, and no file that no module names;
//! - the boundary needs no standard library and no unsafe code;
//! - what serves does not depend on what simulates and measures.

use regex::Regex;
use std::{collections::BTreeSet, fs, path::Path};

const PROTOCOLS: &str = "protocols/src/";
/// Dissemination below protocols; no protocol by itself.
const SHARED: &str = "sadl";
const LINES_MAX: usize = 1_200;
const FIELDS_MAX: usize = 15;

/// A source file's name and text.
type Source = (String, String);

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a pattern of this file")
}

/// Lines of a file in which a pattern is found, as `name:line: text`.
fn lines_with(pattern: &Regex, (name, text): &Source) -> Vec<String> {
    let lines = (1..)
        .zip(text.lines())
        .filter(|(_, line)| pattern.is_match(line));
    lines
        .map(|(at, line)| format!("{name}:{at}: {}", line.trim()))
        .collect()
}

fn protocols_apart(folders: &BTreeSet<&str>, sources: &[Source], bad: &mut Vec<String>) {
    for other in folders.iter().filter(|other| **other != SHARED) {
        // Paths like crate::other::…, super::super::other::…, or other inside `use crate::{…}`.
        let uses = regex(&format!(r"(crate|super)::(\{{[^}}]*)?\b{other}\b"));
        for source in sources {
            let folder = source
                .0
                .strip_prefix(PROTOCOLS)
                .and_then(|it| it.split_once('/'));
            if let Some((folder, _)) = folder
                && folder != *other
            {
                bad.extend(lines_with(&uses, source).iter().map(|place| {
                    format!("{place}: '{folder}' uses protocol '{other}'; share the piece in parts")
                }));
            }
        }
    }
}

/// The parts that a protocol's `mod.rs` lists.
fn parts(text: &str) -> Vec<&str> {
    let lines = text
        .lines()
        .skip_while(|line| !line.starts_with("// Its parts"));
    let lines = lines.take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.strip_prefix("mod ")?.split(';').next());
    names.collect()
}

fn fields_bounded((name, text): &Source, bad: &mut Vec<String>) {
    let begins = regex(r"^(pub(\([a-z]+\))? )?struct ([A-Za-z<>]+).* \{$");
    let field = regex(r"^    (pub(\([a-z]+\))? )?[a-z_]+: ");
    let mut inside: Option<(String, usize)> = None;
    for line in text.lines() {
        if let Some(found) = begins.captures(line) {
            inside = Some((found[3].to_owned(), 0));
        } else if let Some((_, count)) = &mut inside
            && field.is_match(line)
        {
            *count += 1;
        } else if line.starts_with('}')
            && let Some((of, count)) = inside.take()
            && count > FIELDS_MAX
        {
            bad.push(format!(
                "{name}: {of} has {count} fields; group them into parts"
            ));
        }
    }
}

fn parts_alone(folder: &str, sources: &[Source], bad: &mut Vec<String>) {
    let home = format!("{PROTOCOLS}{folder}/");
    let file = |name: &str| {
        sources
            .iter()
            .find(|(of, _)| *of == format!("{home}{name}.rs"))
    };
    let parts = file("mod").map_or(Vec::new(), |(_, text)| parts(text));
    if parts.is_empty() {
        return;
    }
    let replica = regex(r"\breplica::");
    for source in parts.into_iter().filter_map(file) {
        let found = lines_with(&replica, source);
        bad.extend(
            found
                .iter()
                .map(|place| format!("{place}: a part uses the replica")),
        );
    }
    for source in sources {
        if source
            .0
            .strip_prefix(&home)
            .is_some_and(|name| !name.contains('/'))
        {
            fields_bounded(source, bad);
        }
    }
}

fn finished(sources: &[Source], bad: &mut Vec<String>) {
    // In brackets, so that this file does not match itself.
    let marks = regex(r"\b(TOD[O]|FIXM[E]|XX[X])\b|\btodo[!]\(|\bunimplemented[!]\(|#\[ignor[e]");
    for source in sources {
        let lines = source.1.matches('\n').count();
        if lines > LINES_MAX {
            bad.push(format!(
                "{} has {lines} lines; at most {LINES_MAX} are allowed",
                source.0
            ));
        }
        if source.0.ends_with(".rs") {
            let found = lines_with(&marks, source);
            bad.extend(found.iter().map(|place| format!("{place}: left half done")));
        }
    }
}

/// Files below `src/` that no `mod` or path of their crate names are never compiled.
fn files_used(sources: &[Source], bad: &mut Vec<String>) {
    let declares = regex(r"(?m)^\s*(?:pub(?:\([a-z]+\))? )?mod (\w+)(?:;| \{)");
    let split = |name: &str| {
        let (home, path) = name.split_once("/src/")?;
        Some((home.to_owned(), path.strip_suffix(".rs")?.to_owned()))
    };
    // Of an attribute, or of a program in Cargo.toml.
    let path = regex(r#"path = "(?:[^"]*/)?(\w+)\.rs""#);
    let mut declared = BTreeSet::new();
    for (name, text) in sources {
        let manifest = name.strip_suffix("/Cargo.toml").map(str::to_owned);
        if let Some(home) = split(name).map(|(home, _)| home).or(manifest) {
            let names = (declares.captures_iter(text)).chain(path.captures_iter(text));
            declared.extend(names.map(|found| (home.clone(), found[1].to_owned())));
        }
    }
    for (name, _) in sources {
        let Some((home, path)) = split(name) else {
            continue;
        };
        let path = path.strip_suffix("/mod").unwrap_or(&path);
        let module = path.rsplit('/').next().unwrap_or(path);
        let is_root = matches!(path, "lib" | "main") || path.starts_with("bin/");
        if !is_root && !declared.contains(&(home, module.to_owned())) {
            bad.push(format!("{name}: no module names this file; remove it"));
        }
    }
}

fn crates_bounded(sources: &[Source], bad: &mut Vec<String>) {
    let text = |name: String| {
        let found = sources.iter().find(|(of, _)| *of == name);
        (name, found.map_or("", |(_, text)| text.as_str()).to_owned())
    };
    for of in ["crates/replica", "protocols"] {
        let (name, text) = text(format!("{of}/src/lib.rs"));
        for attribute in ["#![no_std]", "#![forbid(unsafe_code)]"] {
            if !text.lines().any(|line| line.starts_with(attribute)) {
                bad.push(format!("{name} lacks {attribute}"));
            }
        }
    }
    let measures = regex(r"^quintet-(lab|simulator)\b");
    for of in ["replica", "store", "runtime", "cli", "quintet"] {
        let found = lines_with(&measures, &text(format!("crates/{of}/Cargo.toml")));
        bad.extend(
            found
                .iter()
                .map(|it| format!("{it}: the lab and the simulator stay apart")),
        );
    }
    let serves = regex(r"^quintet(-runtime)?[ .=]");
    let found = lines_with(&serves, &text("crates/lab/Cargo.toml".to_owned()));
    bad.extend(
        found
            .iter()
            .map(|it| format!("{it}: the lab starts the program instead")),
    );
}

/// Every violation, and the number of protocol folders.
fn check(sources: &[Source]) -> (Vec<String>, usize) {
    let folder = |(name, _): &'_ Source| {
        let (folder, _) = name.strip_prefix(PROTOCOLS)?.split_once('/')?;
        Some(folder.to_owned())
    };
    let folders: BTreeSet<String> = sources.iter().filter_map(folder).collect();
    let names: BTreeSet<&str> = folders.iter().map(String::as_str).collect();
    let mut bad = Vec::new();
    protocols_apart(&names, sources, &mut bad);
    for folder in &names {
        parts_alone(folder, sources, &mut bad);
    }
    finished(sources, &mut bad);
    files_used(sources, &mut bad);
    crates_bounded(sources, &mut bad);
    (bad, folders.len())
}

fn is_source(name: &str) -> bool {
    let ends = [".rs", ".py", ".sh", "Cargo.toml"];
    ends.iter().any(|end| name.ends_with(end))
        || name.starts_with("ci/")
        || name.starts_with(".ci/")
}

/// `cargo xtask layout`.
pub fn main(root: &Path, files: &[String]) -> Result<String, String> {
    let mut sources = Vec::new();
    for name in files.iter().filter(|name| is_source(name)) {
        let bytes = fs::read(root.join(name)).map_err(|error| format!("{name}: {error}"))?;
        sources.push((name.clone(), String::from_utf8_lossy(&bytes).into_owned()));
    }
    let (bad, folders) = check(&sources);
    if !bad.is_empty() {
        return Err(bad.join("\n"));
    }
    Ok(format!(
        "layout: {folders} protocol folders, {} source files, all within the rules",
        sources.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The violations of a good tree with these files added to it.
    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let library = "#![no_std]\n#![forbid(unsafe_code)]\n";
        let well = [
            ("crates/replica/src/lib.rs", library),
            (
                "protocols/src/lib.rs",
                "#![no_std]\n#![forbid(unsafe_code)]\nmod one;\npub mod two;\nmod sadl;\n",
            ),
            (
                "protocols/src/one/mod.rs",
                "// Its parts\nmod log;\n\nmod replica;\n",
            ),
            ("protocols/src/one/log.rs", "use crate::sadl::Name;\n"),
            ("protocols/src/two/mod.rs", "mod a;\n"),
            ("protocols/src/sadl/mod.rs", ""),
        ];
        let mut sources: Vec<Source> = Vec::new();
        for (name, text) in well.iter().chain(files) {
            sources.retain(|(of, _)| of != name);
            sources.push(((*name).to_owned(), (*text).to_owned()));
        }
        check(&sources).0
    }

    #[test]
    fn good_tree_passes() {
        assert_eq!(found(&[]), Vec::<String>::new());
    }

    #[test]
    fn each_violation_is_found() {
        let long = "\n".repeat(LINES_MAX + 1);
        let fields = format!("struct Wide {{\n{}}}\n", "    field: u8,\n".repeat(16));
        let unfinished = ["TO", "DO"].concat();
        for (name, text, expected) in [
            (
                "protocols/src/two/a.rs",
                "use crate::one::Log;",
                "'two' uses protocol 'one'",
            ),
            (
                "protocols/src/two/a.rs",
                "use crate::{group, one};",
                "'two' uses protocol 'one'",
            ),
            (
                "protocols/src/one/log.rs",
                "use super::replica::One;",
                "a part uses the replica",
            ),
            (
                "protocols/src/one/replica.rs",
                &fields,
                "Wide has 16 fields",
            ),
            ("ci/long", &long, "has 1201 lines"),
            ("crates/store/src/old.rs", "", "no module names this file"),
            (
                "crates/store/src/old/mod.rs",
                "",
                "no module names this file",
            ),
            (
                "crates/a.rs",
                &format!("// {unfinished}: later"),
                "left half done",
            ),
            (
                "protocols/src/lib.rs",
                "#![no_std]\nmod one;\nmod two;\nmod sadl;",
                "lacks #![forbid(unsafe_code)]",
            ),
            (
                "crates/store/Cargo.toml",
                "quintet-lab.workspace = true",
                "stay apart",
            ),
            (
                "crates/lab/Cargo.toml",
                "quintet-runtime.workspace = true",
                "starts the program",
            ),
        ] {
            let found = found(&[(name, text)]);
            assert_eq!(found.len(), 1, "{name}: {found:?}");
            assert!(found[0].contains(expected), "{name}: {found:?}");
        }
    }

    #[test]
    fn allowed_files_pass() {
        let fifteen = format!("struct Fits {{\n{}}}\n", "    field: u8,\n".repeat(15));
        let allowed = [
            ("fuzz/Cargo.toml", "path = \"src/smoke.rs\""),
            ("fuzz/src/smoke.rs", ""),
            ("protocols/src/one/replica.rs", fifteen.as_str()),
            ("protocols/src/two/a.rs", "use crate::someone::Else;"),
            (
                "crates/lab/Cargo.toml",
                "quintet-simulator.workspace = true",
            ),
        ];
        assert_eq!(found(&allowed), Vec::<String>::new());
    }
}
