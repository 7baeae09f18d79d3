//! The words that are not used here, with how often each still occurs: a count may only fall.
//!
//! `ci/words.txt` has a row per word: the largest count, the pattern, what to write instead, and
//! parts of paths that are excepted, as papers keep their words. A pattern is a regular expression
//! over lower-case words: `TwoWords`, `two_words` and "two words" are all `two words`. Rows that
//! begin with `=` are rules for names of tests and for sentences.

use regex::Regex;
use std::{collections::BTreeSet, fs, path::Path, process::Command};

const TABLE: &str = "ci/words.txt";
/// What quotes others, what lists the words themselves, and what tells of the past.
const SKIPPED: [&str; 6] = [
    "ci/words",
    "xtask/src/words.rs",
    "docs/design/glossary.md",
    "CHANGELOG.md",
    "Cargo.lock",
    "bench/openraft-store/Cargo.lock",
];
const KINDS: [&str; 7] = [".rs", ".md", ".py", ".sh", ".toml", ".mjs", "justfile"];
const NAME_MAX: usize = 60;
const STARTS: [&str; 13] = [
    "a_",
    "an_",
    "the_",
    "who_",
    "whoever_",
    "what_",
    "whatever_",
    "nothing_",
    "nobody_",
    "somebody_",
    "something_",
    "and_",
    "one_who_",
];
const SHOWN_MAX: usize = 20;

struct Row {
    most: usize,
    pattern: String,
    instead: String,
    excepted: String,
}

impl Row {
    fn parse(line: &str) -> Result<Self, String> {
        let mut columns = line.split(" | ").map(|column| column.trim().to_owned());
        let most = columns.next().unwrap_or_default();
        Ok(Self {
            most: (most.parse()).map_err(|_| format!("{TABLE}: '{most}' is no count"))?,
            pattern: (columns.next()).ok_or(format!("{TABLE}: '{line}' has no pattern"))?,
            instead: columns.next().unwrap_or_default(),
            excepted: columns.next().unwrap_or_default(),
        })
    }

    fn is_rule(&self) -> bool {
        self.pattern.starts_with('=')
    }

    fn counts_in(&self, name: &str) -> bool {
        let mut excepted = self.excepted.split(',').filter(|part| !part.is_empty());
        !excepted.any(|part| name.contains(part))
    }

    fn line(&self) -> String {
        let line = format!(
            "{:4} | {} | {} | {}",
            self.most, self.pattern, self.instead, self.excepted
        );
        line.trim_end_matches([' ', '|']).to_owned()
    }
}

fn regex(pattern: &str) -> Result<Regex, String> {
    Regex::new(pattern).map_err(|error| format!("{TABLE}: {error}"))
}

fn is_read(name: &str) -> bool {
    let script = (name.starts_with("ci/") || name.starts_with(".ci/"))
        && !name.rsplit('/').next().unwrap_or(name).contains('.');
    let skipped = SKIPPED.iter().any(|skipped| name.starts_with(skipped));
    !skipped && (script || KINDS.iter().any(|kind| name.ends_with(kind)))
}

/// A text as lower-case words; lines stay lines.
fn words_of(text: &str) -> String {
    let mut words = String::with_capacity(text.len() + text.len() / 8);
    let mut before = '\n';
    for letter in text.chars() {
        let begins =
            letter.is_ascii_uppercase() && (before.is_ascii_lowercase() || before.is_ascii_digit());
        let parts = matches!(letter, '_' | '-' | ' ');
        if (begins || parts) && !words.ends_with(' ') {
            words.push(' ');
        }
        if !parts {
            words.extend(letter.to_lowercase());
        }
        before = letter;
    }
    words
}

/// The prose of a line: a comment of code, all of a page.
fn prose_of<'a>(name: &str, line: &'a str) -> &'a str {
    if name.ends_with(".md") {
        let marks = |letter: char| letter.is_ascii_digit() || "-*. ".contains(letter);
        return line.trim().trim_start_matches(marks);
    }
    let comment = line.trim_start().strip_prefix("//").unwrap_or_default();
    let comment = comment.strip_prefix(['/', '!']).unwrap_or(comment);
    comment.strip_prefix(' ').unwrap_or(comment)
}

/// Where each row's words stand.
fn count(rows: &[Row], texts: &[(String, String)]) -> Result<Vec<Vec<String>>, String> {
    let mut places = vec![Vec::new(); rows.len()];
    let mut patterns = Vec::new();
    let mut all = Vec::new();
    for (at, row) in rows.iter().enumerate().filter(|(_, row)| !row.is_rule()) {
        let pattern = format!(r"\b(?:{})\b", row.pattern);
        patterns.push((at, regex(&pattern)?));
        all.push(pattern);
    }
    let together = regex(&all.join("|"))?;
    let relative = regex(r"(?:^|[.:!?]\s+)(?:What|Who|Whoever|Whatever)\b[^?]*$")?;
    let test = regex(r"#\[test\]\s*(?:#\[[^\]]*\]\s*)*(?:pub )?fn (\w+)")?;
    let rule = |name: &str| rows.iter().position(|row| row.pattern == name);
    let (relatives, long, start) = (rule("=relative"), rule("=long"), rule("=start"));
    let mut put = |row: Option<usize>, place: &str, times: usize| {
        if let Some(row) = row {
            places[row].extend(std::iter::repeat_n(place.to_owned(), times));
        }
    };
    for (name, text) in texts {
        for (number, line) in (1..).zip(words_of(text).split('\n')) {
            if !together.is_match(line) {
                continue;
            }
            for (at, pattern) in patterns.iter().filter(|(at, _)| rows[*at].counts_in(name)) {
                let times = pattern.find_iter(line).count();
                put(Some(*at), &format!("{name}:{number}"), times);
            }
        }
        for (number, line) in (1..).zip(text.split('\n')) {
            if relative.is_match(prose_of(name, line)) {
                put(relatives, &format!("{name}:{number}"), 1);
            }
        }
        for found in test.captures_iter(text).filter_map(|it| it.get(1)) {
            let line = text[..found.start()].matches('\n').count() + 1;
            let place = format!("{name}:{line} {}", found.as_str());
            if found.len() > NAME_MAX {
                put(long, &place, 1);
            }
            if STARTS.iter().any(|it| found.as_str().starts_with(it)) {
                put(start, &place, 1);
            }
        }
    }
    Ok(places)
}

/// The places on lines that main, or the last commit, does not have; all if there are none.
fn added(root: &Path, places: &[String]) -> Vec<String> {
    let mut new = BTreeSet::new();
    for base in ["main", "HEAD"] {
        let diff = Command::new("git")
            .args(["diff", "-U0", base])
            .current_dir(root)
            .output();
        let diff = diff.map(|diff| diff.stdout).unwrap_or_default();
        let mut name = String::new();
        for line in String::from_utf8_lossy(&diff).lines() {
            if let Some(file) = line.strip_prefix("+++ b/") {
                name = file.to_owned();
            }
            let hunk = line
                .strip_prefix("@@ ")
                .and_then(|hunk| hunk.split_once(" +"));
            let Some((_, lines)) = hunk else { continue };
            let lines = lines.split(' ').next().unwrap_or_default();
            let (first, length) = lines.split_once(',').unwrap_or((lines, "1"));
            let first: usize = first.parse().unwrap_or(0);
            let length: usize = length.parse().unwrap_or(0);
            new.extend((first..first + length).map(|at| format!("{name}:{at}")));
        }
    }
    let is_new = |place: &&String| new.contains(place.split(' ').next().unwrap_or_default());
    let found: Vec<String> = places.iter().filter(is_new).cloned().collect();
    if found.is_empty() {
        places.to_vec()
    } else {
        found
    }
}

/// The report on these texts, and the table with the counts that have fallen.
fn check(
    table: &str,
    texts: &[(String, String)],
    shown: impl Fn(&[String]) -> Vec<String>,
) -> Result<(String, String), String> {
    let mut heads = Vec::new();
    let mut rows = Vec::new();
    for line in table.lines() {
        match line.is_empty() || line.starts_with('#') {
            true => heads.push(line.to_owned()),
            false => rows.push(Row::parse(line)?),
        }
    }
    let places = count(&rows, texts)?;
    let allowed: usize = rows.iter().map(|row| row.most).sum();
    let mut bad = String::new();
    for (row, places) in rows.iter_mut().zip(&places) {
        if places.len() > row.most {
            bad += &format!(
                "words: `{}` occurs {} times, at most {} are allowed; write: {}\n",
                row.pattern,
                places.len(),
                row.most,
                row.instead
            );
            for place in shown(places).iter().take(SHOWN_MAX) {
                bad += &format!("  {place}\n");
            }
        }
        row.most = row.most.min(places.len());
    }
    if !bad.is_empty() {
        return Err(bad.trim_end().to_owned());
    }
    let total: usize = places.iter().map(Vec::len).sum();
    let hint = match total < allowed {
        true => ", `cargo xtask words --lower` writes them down",
        false => "",
    };
    let report = format!(
        "words: {total} of {allowed} allowed places in {} rows{hint}",
        rows.len()
    );
    heads.extend(rows.iter().map(Row::line));
    Ok((report, heads.join("\n") + "\n"))
}

/// `cargo xtask words`.
pub fn main(root: &Path, files: &[String], arguments: &[String]) -> Result<String, String> {
    let table = fs::read_to_string(root.join(TABLE)).map_err(|it| format!("{TABLE}: {it}"))?;
    let mut texts = Vec::new();
    for name in files.iter().filter(|name| is_read(name)) {
        let path = root.join(name);
        if !path.is_symlink() {
            let bytes = fs::read(&path).map_err(|error| format!("{name}: {error}"))?;
            texts.push((name.clone(), String::from_utf8_lossy(&bytes).into_owned()));
        }
    }
    match arguments {
        [] => Ok(check(&table, &texts, |places| added(root, places))?.0),
        [option] if option == "--lower" => {
            let (report, lower) = check(&table, &texts, |places| added(root, places))?;
            fs::write(root.join(TABLE), lower).map_err(|error| format!("{TABLE}: {error}"))?;
            Ok(report)
        }
        [option, pattern] if option == "--show" => {
            let row = Row::parse(&format!("0 | {pattern}"))?;
            Ok(count(&[row], &texts)?.concat().join("\n"))
        }
        _ => Err("cargo xtask words [--lower | --show PATTERN]".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: &str = "# Head\n   1 | judge[sd]? | check | docs/papers\n   0 | under way | in flight\n   0 | =relative | name it\n   0 | =long | short\n   0 | =start | subject\n";

    fn checked(name: &str, text: &str) -> Result<(String, String), String> {
        let texts = [(name.to_owned(), text.to_owned())];
        check(ROWS, &texts, <[String]>::to_vec)
    }

    fn refused(text: &str) -> String {
        checked("a.rs", text).err().unwrap_or_default()
    }

    #[test]
    fn count_may_fall_and_never_rise() {
        let (report, lower) = checked("a.rs", "fn check() {}").expect("no word is used");
        assert!(report.starts_with("words: 0 of 1"), "{report}");
        assert!(
            lower.contains("   0 | judge[sd]? | check | docs/papers\n"),
            "{lower}"
        );
        let (_, same) = checked("a.rs", "// It judges.").expect("one is allowed");
        assert_eq!(same, ROWS);
        let two = refused("// It judges.\nfn judge() {}");
        assert!(
            two.contains("occurs 2 times, at most 1") && two.contains("a.rs:2"),
            "{two}"
        );
    }

    #[test]
    fn word_is_found_in_names_of_all_kinds() {
        for text in [
            "// It is under way.",
            "fn is_under_way()",
            "enum UnderWay",
            "under-way",
        ] {
            assert!(refused(text).contains("`under way` occurs 1"), "{text}");
        }
        assert_eq!(refused("// wonder ways"), "");
    }

    #[test]
    fn names_of_tests_and_sentences_have_rules() {
        let named = |name: &str| refused(&format!("#[test]\nfn {name}() {{}}"));
        assert!(named("the_test").contains("=start"));
        assert!(named(&"x".repeat(61)).contains("=long"));
        assert_eq!(named("leader_resigns"), "");
        assert!(refused("// Who asks waits.").contains("=relative"));
        assert_eq!(refused("// Who asks?"), "");
        assert_eq!(refused("let text = \"Who asks waits.\";"), "");
    }

    #[test]
    fn papers_keep_their_words() {
        let text = "judge judge judge";
        assert!(checked("docs/page.md", text).is_err());
        assert!(checked("docs/papers/page.md", text).is_ok());
    }

    #[test]
    fn table_and_changelog_are_not_read() {
        assert!(!is_read("ci/words.txt") && !is_read("CHANGELOG.md") && !is_read("a.png"));
        assert!(is_read("ci/fast") && is_read("justfile") && is_read("docs/page.md"));
    }
}
