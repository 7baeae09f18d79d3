//! Patterns as KEYS and the SCAN family take them.
//!
//! ```text
//!   *       any bytes, none included        [abc]   one of these
//!   ?       one byte                        [^abc]  one byte that is none of these
//!   \x      x, whatever it means            [a-c]   one in this range
//! ```

use crate::error::CommandError;

/// Whether one piece of a pattern matches a byte, and the length of the piece.
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

/// Bytes of patterns and texts that one command compares at most: some 0.2 s.
const COMPARED_MAX: u64 = 1 << 26;

/// The pattern of one command, for all texts that it looks at.
#[derive(Debug)]
pub struct Glob<'a> {
    pattern: &'a [u8],
    left: u64,
}

impl<'a> Glob<'a> {
    /// For one command.
    #[must_use]
    pub const fn new(pattern: &'a [u8]) -> Self {
        Self {
            pattern,
            left: COMPARED_MAX,
        }
    }

    /// Whether the pattern describes all of `text`. Once comparing has taken too long it describes
    /// nothing any more; see [`Self::finish`].
    pub fn matches(&mut self, text: &[u8]) -> bool {
        self.left > 0 && compare(self.pattern, text, &mut self.left)
    }

    /// Must be asked at the end.
    ///
    /// # Errors
    /// When comparing took too long, so that what was found is not all.
    pub fn finish(self) -> Result<(), CommandError> {
        match self.left {
            0 => Err(CommandError::Owned(format!(
                "ERR comparing a pattern of {} bytes with what is there takes too long",
                self.pattern.len()
            ))),
            _ => Ok(()),
        }
    }
}

/// Whether `pattern` describes all of `text`. Takes at most time proportional to the product of
/// their lengths.
#[must_use]
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let mut unlimited = u64::MAX;
    compare(pattern, text, &mut unlimited)
}

/// The same; false when it would take more than is `left`.
fn compare(pattern: &[u8], text: &[u8], left: &mut u64) -> bool {
    let (mut in_pattern, mut in_text) = (0, 0);
    // Where to continue when a star has to take one byte more.
    let mut retry: Option<(usize, usize)> = None;
    while in_text < text.len() {
        if pattern.get(in_pattern) == Some(&b'*') {
            in_pattern += 1;
            *left = left.saturating_sub(1);
            if in_pattern == pattern.len() {
                return true;
            }
            retry = Some((in_pattern, in_text));
            continue;
        }
        let (matched, length) = piece(&pattern[in_pattern..], text[in_text]);
        *left = left.saturating_sub(length.max(1) as u64);
        if *left == 0 {
            return false;
        }
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
    fn comparing_ends_when_it_takes_too_long() {
        let pattern = b"*a".repeat(20_000);
        let text = b"a".repeat(20_000 - 1);
        let mut glob = Glob::new(&pattern);
        assert!(glob.matches(&b"a".repeat(20_000)));
        assert!(!glob.matches(&text));
        let slow = [b"*".as_slice(), &b"a".repeat(30_000), b"b"].concat();
        let mut glob = Glob::new(&slow);
        assert!(!glob.matches(&b"a".repeat(60_000)));
        assert!(!glob.matches(b"whatever"));
        let refused = glob.finish().map_err(|error| error.to_string());
        assert!(refused.is_err_and(|text| text.ends_with("takes too long")));
        assert_eq!(Glob::new(b"a*").finish(), Ok(()));
    }

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
