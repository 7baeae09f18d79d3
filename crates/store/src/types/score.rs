//! How scores and bounds of scores are read.
//!
//! ```text
//!   "+1.5e3"  "0x10"  "-inf"  ──► f64, as C's strtod reads them
//!   "1e400"   ""      " 1"    ──► refused as a score, taken as a bound
//! ```

use super::extended::Extended;

/// Reads a score: no blanks, not NaN, not out of range.
#[must_use]
pub fn parse_score(text: &[u8]) -> Option<f64> {
    let number = parse_float(text)?;
    if number == 0.0 || number.is_infinite() {
        let body = text
            .strip_prefix(b"-")
            .or(text.strip_prefix(b"+"))
            .unwrap_or(text);
        let spelt = matches!(body.first(), Some(b'i' | b'I'));
        if number.is_infinite() != spelt {
            return None;
        }
        let hexadecimal = body.len() > 1 && matches!(body[1], b'x' | b'X');
        let mantissa = body.split(|byte| match byte {
            b'e' | b'E' => !hexadecimal,
            b'p' | b'P' => hexadecimal,
            _ => false,
        });
        let significant = |byte: &u8| byte.is_ascii_hexdigit() && *byte != b'0';
        if number == 0.0 && mantissa.take(1).flatten().any(significant) {
            return None;
        }
    }
    Some(number)
}

/// Reads a bound of a range of scores: blanks before it are skipped, nothing at all is 0, and what
/// is out of range is infinite or 0, all as `strtod` has it.
#[must_use]
pub fn parse_bound(text: &[u8]) -> Option<f64> {
    let blanks = text
        .iter()
        .take_while(|byte| byte.is_ascii_whitespace() || **byte == 0x0b)
        .count();
    match &text[blanks..] {
        [] if blanks == 0 => Some(0.0),
        rest => parse_float(rest),
    }
}

/// Any number but NaN; out of range it becomes infinite or 0.
fn parse_float(text: &[u8]) -> Option<f64> {
    let body = text
        .strip_prefix(b"-")
        .or(text.strip_prefix(b"+"))
        .unwrap_or(text);
    if let [b'0', b'x' | b'X', ..] = body {
        return parse_hexadecimal(text);
    }
    let number: f64 = core::str::from_utf8(text).ok()?.parse().ok()?;
    (!number.is_nan()).then_some(number)
}

fn parse_hexadecimal(text: &[u8]) -> Option<f64> {
    Extended::parse(text).ok().map(Extended::to_f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_as_c_reads_them() {
        for (given, expected) in [
            ("1", Some(1.0)),
            ("+1.5", Some(1.5)),
            (".5", Some(0.5)),
            ("5.", Some(5.0)),
            ("1e3", Some(1000.0)),
            ("0x10", Some(16.0)),
            ("-0x1.8p1", Some(-3.0)),
            ("inf", Some(f64::INFINITY)),
            ("-Infinity", Some(f64::NEG_INFINITY)),
            ("0e5", Some(0.0)),
            ("0x0", Some(0.0)),
            ("nan", None),
            ("", None),
            (" 1", None),
            ("1 ", None),
            ("1e400", None),
            ("-1e400", None),
            ("1e-400", None),
            ("0x", None),
            ("abc", None),
            ("1e", None),
            ("-", None),
        ] {
            assert_eq!(parse_score(given.as_bytes()), expected, "{given}");
        }
        assert_eq!(parse_bound(b" 1"), Some(1.0));
        assert_eq!(parse_bound(b""), Some(0.0));
        assert_eq!(parse_bound(b"1e400"), Some(f64::INFINITY));
        assert_eq!(parse_bound(b"nan"), None);
    }
}
