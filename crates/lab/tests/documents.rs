//! The documents hold together: every page has its place, every link its target.
//!
//! ```text
//!   docs/SUMMARY.md ──► each page below docs/, each once
//!   [text](path#anchor) ──► a file of the repository, a heading of that page
//!   docs/… in sources and scripts ──► a page that exists
//! ```
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

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

/// What a page can be linked at, formed from its headings as GitHub and mdBook form it.
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
        // What is no text names no page.
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
