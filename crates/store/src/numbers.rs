//! Numbers as Redis reads and writes them.

use crate::error::CommandError;
use crate::types::score::parse_score;
use crate::value::ShortBytes;

/// Appends the decimal digits of `number`.
#[inline]
pub fn write_integer(out: &mut Vec<u8>, number: i64) {
    let mut digits = [0; DIGITS_MAX];
    out.extend_from_slice(digits_of(&mut digits, number));
}

/// Appends the decimal digits of `number` to bytes that need no allocation for it.
#[inline]
pub fn push_integer(out: &mut ShortBytes, number: i64) {
    let mut digits = [0; DIGITS_MAX];
    out.extend_from_slice(digits_of(&mut digits, number));
}

const DIGITS_MAX: usize = 20;

#[inline]
fn digits_of(digits: &mut [u8; DIGITS_MAX], number: i64) -> &[u8] {
    const PAIRS: &[u8; 200] = b"0001020304050607080910111213141516171819\
        2021222324252627282930313233343536373839\
        4041424344454647484950515253545556575859\
        6061626364656667686970717273747576777879\
        8081828384858687888990919293949596979899";
    let mut at = digits.len();
    let mut rest = number.unsigned_abs();
    while rest >= 10 {
        let pair = (rest % 100) as usize * 2;
        rest /= 100;
        at -= 2;
        digits[at..at + 2].copy_from_slice(&PAIRS[pair..pair + 2]);
    }
    if rest > 0 || number == 0 {
        at -= 1;
        digits[at] = b'0' + rest as u8;
    }
    if number < 0 {
        at -= 1;
        digits[at] = b'-';
    }
    &digits[at..]
}

/// Appends `number` with 17 significant digits, in the shorter of plain and exponent notation.
pub fn write_double(out: &mut Vec<u8>, number: f64) {
    if number.is_nan() {
        out.extend_from_slice(b"nan");
    } else if number.is_infinite() {
        out.extend_from_slice(if number > 0.0 { b"inf" } else { b"-inf" });
    } else if number == 0.0 {
        out.extend_from_slice(if number.is_sign_negative() {
            b"-0"
        } else {
            b"0"
        });
    } else if number.fract() == 0.0 && number.abs() < 1e15 {
        write_integer(out, number as i64);
    } else {
        let text = format!("{number:.16e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        let (sign, mantissa) = match mantissa.strip_prefix('-') {
            Some(mantissa) => ("-", mantissa),
            None => ("", mantissa),
        };
        out.extend_from_slice(sign.as_bytes());
        let digits: Vec<u8> = mantissa.bytes().filter(u8::is_ascii_digit).collect();
        let significant = digits
            .iter()
            .rposition(|digit| *digit != b'0')
            .map_or(1, |at| at + 1);
        let digits = &digits[..significant];
        if (-4..17).contains(&exponent) {
            if exponent < 0 {
                out.extend_from_slice(b"0.");
                out.extend(std::iter::repeat_n(b'0', (-exponent - 1) as usize));
                out.extend_from_slice(digits);
            } else {
                let whole = exponent as usize + 1;
                for place in 0..whole.max(digits.len()) {
                    if place == whole {
                        out.push(b'.');
                    }
                    out.push(digits.get(place).copied().unwrap_or(b'0'));
                }
            }
        } else {
            out.push(digits[0]);
            if digits.len() > 1 {
                out.push(b'.');
                out.extend_from_slice(&digits[1..]);
            }
            out.extend_from_slice(if exponent < 0 { b"e-" } else { b"e+" });
            if exponent.abs() < 10 {
                out.push(b'0');
            }
            write_integer(out, i64::from(exponent.abs()));
        }
    }
}

/// Reads a whole number as strictly as Redis does: no spaces, no plus, no leading zeros.
#[must_use]
pub fn integer_of(bytes: &[u8]) -> Option<i64> {
    let (negative, digits) = match bytes {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let mut number = 0u64;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        number = number * 10 + u64::from(digit - b'0');
    }
    if negative {
        (number <= 1 << 63).then(|| (number as i64).wrapping_neg())
    } else {
        i64::try_from(number).ok()
    }
}

/// Reads a whole number, or says what Redis says.
///
/// # Errors
/// [`CommandError::NotInteger`].
pub fn parse_integer(bytes: &[u8]) -> Result<i64, CommandError> {
    integer_of(bytes).ok_or(CommandError::NotInteger)
}

/// Reads a number, or says what Redis says.
///
/// # Errors
/// [`CommandError::NotFloat`].
pub fn parse_float(bytes: &[u8]) -> Result<f64, CommandError> {
    parse_score(bytes).ok_or(CommandError::NotFloat)
}

/// Reads a whole number from a range that Redis names in its answer to one outside.
///
/// # Errors
/// [`CommandError::NotInteger`], or a text with the range.
pub fn parse_integer_in(
    bytes: &[u8],
    range: core::ops::RangeInclusive<i64>,
) -> Result<i64, CommandError> {
    let number = parse_integer(bytes)?;
    if !range.contains(&number) {
        let (low, high) = range.into_inner();
        return Err(CommandError::Owned(format!(
            "ERR value is out of range, value must between {low} and {high}"
        )));
    }
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_strictly() {
        for (text, number) in [
            ("0", Some(0)),
            ("-1", Some(-1)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("-9223372036854775809", None),
            ("99999999999999999999", None),
            ("01", None),
            ("-0", None),
            ("+1", None),
            (" 1", None),
            ("1 ", None),
            ("", None),
            ("-", None),
            ("1a", None),
        ] {
            assert_eq!(integer_of(text.as_bytes()), number, "{text:?}");
        }
    }

    #[test]
    fn integers_are_written() {
        for number in [
            0,
            1,
            9,
            10,
            99,
            100,
            101,
            -1,
            -10,
            i64::MAX,
            i64::MIN,
            1_234_567,
        ] {
            let mut out = Vec::new();
            write_integer(&mut out, number);
            assert_eq!(out, number.to_string().into_bytes());
        }
    }

    #[test]
    fn doubles_are_written_with_17_digits() {
        for (number, text) in [
            (0.1, "0.10000000000000001"),
            (3.25, "3.25"),
            (-2.5, "-2.5"),
            (1e15, "1000000000000000"),
            (1e16, "10000000000000000"),
            (1e17, "1e+17"),
            (1.5e300, "1.5000000000000001e+300"),
            (1e-4, "0.0001"),
            (1e-5, "1.0000000000000001e-05"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (-0.0, "-0"),
        ] {
            let mut out = Vec::new();
            write_double(&mut out, number);
            assert_eq!(String::from_utf8(out).unwrap(), text);
        }
    }
}
