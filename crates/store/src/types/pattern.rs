//! Patterns as KEYS and the SCAN family take them.
//!
//! ```text
//!   *       any bytes, none included        [abc]   one of these
//!   ?       one byte                        [^abc]  one byte that is none of these
//!   \x      x, whatever it means            [a-c]   one in this range
//! ```

/// What one piece of a pattern says about a byte, and how long the piece is.
fn piece(pattern: &[u8], byte: u8) -> (bool, usize) {
    match pattern {
        [b'?', ..] => (true, 1),
        [b'[', class @ ..] => {
            let (matched, length) = class_piece(class, byte);
            (matched, length + 1)
        }
        [b'\\', escaped, ..] => (*escaped == byte, 2),
        [literal, ..] => (*literal == byte, 1),
        [] => (false, 0),
    }
}

/// As [`piece`], behind the opening bracket. A class that is never closed ends with the pattern.
fn class_piece(class: &[u8], byte: u8) -> (bool, usize) {
    let negated = class.first() == Some(&b'^');
    let mut at = usize::from(negated);
    let mut found = false;
    loop {
        match &class[at..] {
            [] => break,
            [b'\\', escaped, ..] => {
                found |= *escaped == byte;
                at += 2;
            }
            [b']', ..] => {
                at += 1;
                break;
            }
            [from, b'-', to, ..] => {
                let (low, high) = if from <= to { (from, to) } else { (to, from) };
                found |= (low..=high).contains(&&byte);
                at += 3;
            }
            [literal, ..] => {
                found |= *literal == byte;
                at += 1;
            }
        }
    }
    (found != negated, at)
}

/// Whether `pattern` describes all of `text`. Takes at most time proportional to the product of
/// their lengths.
#[must_use]
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut in_pattern, mut in_text) = (0, 0);
    // Where to go on when a star has to take one byte more.
    let mut retry: Option<(usize, usize)> = None;
    while in_text < text.len() {
        if pattern.get(in_pattern) == Some(&b'*') {
            in_pattern += 1;
            retry = Some((in_pattern, in_text));
            continue;
        }
        let (matched, length) = piece(&pattern[in_pattern..], text[in_text]);
        if matched {
            in_pattern += length;
            in_text += 1;
        } else if let Some((after_star, taken)) = retry {
            in_pattern = after_star;
            in_text = taken + 1;
            retry = Some((after_star, in_text));
        } else {
            return false;
        }
    }
    pattern[in_pattern..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_redis_means() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "abc", true),
            ("a*", "abc", true),
            ("a*", "a", true),
            ("*c", "abc", true),
            ("*b*", "abc", true),
            ("*d*", "abc", false),
            ("a*b*c", "axxbyybzzc", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("h[ae]llo", "hello", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("h[a-c]llo", "hdllo", false),
            ("a\\*c", "a*c", true),
            ("a\\*c", "abc", false),
            ("[\\]]", "]", true),
            ("[]", "a", false),
            ("[", "a", false),
            ("[^", "a", true),
            ("[abc", "b", true),
            ("\\", "\\", true),
            ("user:*:name", "user:17:name", true),
            ("***", "x", true),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes()),
                expected,
                "{pattern} {text}"
            );
        }
    }

    #[test]
    fn many_stars_take_no_time() {
        let pattern = "a*".repeat(500) + "b";
        assert!(!matches(pattern.as_bytes(), "a".repeat(5000).as_bytes()));
    }
}
