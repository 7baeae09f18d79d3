//! Messages in few words.
//!
//! ```text
//!   Accept { ballot: Ballot { round: 1, owner: ReplicaId(0) }, first: Slot(1), … }
//!      ──(show ballot first)──► Accept(ballot {round 1, owner 0}, first 1)
//! ```

/// The name that a message's text begins with; a message of an election has its own.
pub(super) fn name(text: &str) -> &str {
    let text = text.strip_prefix("Election(").unwrap_or(text);
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    &text[..end.unwrap_or(text.len())]
}

/// The value of a field in a message's text, as the text has it.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut from = 0;
    loop {
        let at = from + text[from..].find(name)?;
        let rest = &text[at + name.len()..];
        let begins = at == 0 || !text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        if begins && rest.starts_with(": ") {
            let value = &rest[2..];
            let mut depth = 0;
            let end = value.find(|c| {
                match c {
                    '{' | '(' | '[' => depth += 1,
                    '}' | ')' | ']' => depth -= 1,
                    _ => {}
                }
                depth < 0 || (depth == 0 && c == ',')
            });
            return Some(value[..end.unwrap_or(value.len())].trim());
        }
        from = at + name.len();
    }
}

/// Without the names of types: `Slot(4)` is `4`, `Some(Slot(4))` is `4`, bytes are their number.
fn plain(value: &str) -> String {
    let mut out = String::new();
    let mut rest = value;
    while let Some(first) = rest.chars().next() {
        if rest.starts_with("b\"") {
            let mut escaped = false;
            let end = rest[2..].find(|c| {
                let ends = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                ends
            });
            let end = end.map_or(rest.len(), |end| end + 3);
            out.push_str("bytes");
            rest = &rest[end..];
        } else if first.is_alphabetic() {
            let word = name(rest);
            rest = &rest[word.len()..];
            if let Some(inside) = rest.strip_prefix('(') {
                rest = inside;
            } else if let Some(inside) = rest.strip_prefix(" {") {
                out.push('{');
                rest = inside.trim_start();
            } else {
                out.push_str(word);
                rest = rest.strip_prefix(':').unwrap_or(rest);
            }
        } else {
            if first != ')' {
                out.push(first);
            }
            rest = &rest[first.len_utf8()..];
        }
    }
    out.replace(" }", "}")
}

/// A message by its name and the fields that are wanted.
pub(super) fn short(text: &str, fields: &[String]) -> String {
    let shown: Vec<String> = fields
        .iter()
        .filter_map(|wanted| Some(format!("{wanted} {}", plain(field(text, wanted)?))))
        .collect();
    match shown.is_empty() {
        true => name(text).to_string(),
        false => format!("{}({})", name(text), shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Accept { ballot: Ballot { round: 1, owner: ReplicaId(0) }, first: Slot(3), \
                        until: Some(Slot(4)), batch: b\"a\\\"}b\", all: [Slot(1), Slot(2)] }";

    #[test]
    fn messages_are_shown_with_the_fields_that_are_wanted() {
        let fields = ["first", "ballot", "until", "all", "no_such"].map(String::from);
        assert_eq!(name(TEXT), "Accept");
        assert_eq!(name("Election(Stand { round: 1 })"), "Stand");
        assert_eq!(short(TEXT, &[]), "Accept");
        assert_eq!(
            short(TEXT, &fields),
            "Accept(first 3, ballot {round 1, owner 0}, until 4, all [1, 2])"
        );
        assert_eq!(short("Reply", &fields), "Reply");
        assert_eq!(plain("b\"a\\\"}b\""), "bytes");
    }
}
