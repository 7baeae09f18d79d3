//! Sums of decimal numbers with 64 bits of precision, as INCRBYFLOAT and HINCRBYFLOAT compute.
//!
//! ```text
//!   "10.5" ──parse──►  sign · mantissa · 2^exponent  ──add──►  …  ──to_text──► "10.6"
//!                             └ 64 bits, top bit set
//! ```
//!
//! Redis adds in the 80-bit format of x87 and prints 17 decimals. 64-bit floats would give other
//! digits for sums as simple as 0.1 + 0.2, and the hardware's own 80-bit format is neither in this
//! language nor on every machine, while all replicas must agree to the last digit. So the few
//! operations that are needed are done here with integers.

use core::cmp::Ordering;

/// No finite value has a greater exponent of its top bit.
const EXPONENT_MAX: i32 = 16_383;
/// Numbers below this power of two count as out of range.
const EXPONENT_MIN: i32 = -16_445;
/// Longer texts are no numbers, as in Redis.
const TEXT_MAX: usize = 5 * 1024 - 1;
const DECIMALS: u32 = 17;
const DECIMALS_POWER: u128 = 10u128.pow(DECIMALS);

/// A finite number: `mantissa · 2^exponent`, negated if `negative`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extended {
    negative: bool,
    /// 0, or with its top bit set.
    mantissa: u64,
    exponent: i32,
}

/// Why a text or a sum is no number to continue with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotFinite {
    /// It is not how a number is written, or it is out of range.
    Malformed,
    /// It is infinity.
    Infinite,
}

/// The last digit kept and everything behind it: which way to round.
fn rounds_up(kept_odd: bool, rest: Ordering) -> bool {
    match rest {
        Ordering::Greater => true,
        Ordering::Equal => kept_odd,
        Ordering::Less => false,
    }
}

impl Extended {
    /// Nothing.
    pub const ZERO: Self = Self {
        negative: false,
        mantissa: 0,
        exponent: 0,
    };

    /// The nearest number to `wide · 2^exponent`, where `sticky` says that a little more than
    /// that is meant.
    fn round(negative: bool, wide: u128, exponent: i32, sticky: bool) -> Result<Self, NotFinite> {
        if wide == 0 {
            return Ok(Self {
                negative,
                ..Self::ZERO
            });
        }
        let shift = wide.leading_zeros();
        let wide = wide << shift;
        let exponent = exponent - shift as i32 + 64;
        let (mut mantissa, rest) = ((wide >> 64) as u64, wide as u64);
        let rest = rest.cmp(&(1 << 63)).then(if sticky {
            Ordering::Greater
        } else {
            Ordering::Equal
        });
        let mut exponent = exponent;
        if rounds_up(mantissa & 1 == 1, rest) {
            let (sum, overflow) = mantissa.overflowing_add(1);
            mantissa = if overflow { 1 << 63 } else { sum };
            exponent += i32::from(overflow);
        }
        if exponent + 63 > EXPONENT_MAX {
            return Err(NotFinite::Infinite);
        }
        Ok(Self {
            negative,
            mantissa,
            exponent,
        })
    }

    /// Reads a number as C's `strtold` does, without blanks around it: decimal or hexadecimal
    /// digits with an optional point and exponent.
    ///
    /// # Errors
    /// When it is none, when it is out of range, or when it is spelt infinity.
    pub fn parse(text: &[u8]) -> Result<Self, NotFinite> {
        if text.len() > TEXT_MAX {
            return Err(NotFinite::Malformed);
        }
        let (negative, text) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            rest => (false, rest),
        };
        if text.eq_ignore_ascii_case(b"inf") || text.eq_ignore_ascii_case(b"infinity") {
            return Err(NotFinite::Infinite);
        }
        let (hexadecimal, text) = match text {
            [b'0', b'x' | b'X', rest @ ..] => (true, rest),
            rest => (false, rest),
        };
        let base = if hexadecimal { 16 } else { 10 };
        let mut digits = Vec::with_capacity(text.len());
        let mut point: Option<usize> = None;
        let mut at = 0;
        while let Some(&byte) = text.get(at) {
            match char::from(byte).to_digit(base) {
                Some(digit) => digits.push(digit as u8),
                None if byte == b'.' && point.is_none() => point = Some(digits.len()),
                None => break,
            }
            at += 1;
        }
        if digits.is_empty() {
            return Err(NotFinite::Malformed);
        }
        let power = match text.get(at..) {
            None | Some([]) => 0,
            Some([b'e' | b'E', rest @ ..]) if !hexadecimal => parse_power(rest)?,
            Some([b'p' | b'P', rest @ ..]) if hexadecimal => parse_power(rest)?,
            Some(_) => return Err(NotFinite::Malformed),
        };
        let fraction = (digits.len() - point.unwrap_or(digits.len())) as i32;
        let leading = digits.iter().take_while(|&&digit| digit == 0).count();
        let digits = &digits[leading..];
        if digits.is_empty() {
            return Ok(Self {
                negative,
                ..Self::ZERO
            });
        }
        let result = if hexadecimal {
            from_hexadecimal(negative, digits, power.saturating_sub(4 * fraction))
        } else {
            from_decimal(negative, digits, power.saturating_sub(fraction))
        };
        match result {
            Ok(number) if number.exponent + 63 >= EXPONENT_MIN => Ok(number),
            _ => Err(NotFinite::Malformed),
        }
    }

    /// The sum of two numbers.
    ///
    /// # Errors
    /// When it exceeds the range.
    pub fn plus(self, other: Self) -> Result<Self, NotFinite> {
        if self.mantissa == 0 || other.mantissa == 0 {
            let rest = if self.mantissa == 0 { other } else { self };
            let negative = rest.negative && (rest.mantissa != 0 || self.negative);
            return Ok(Self { negative, ..rest });
        }
        let key = |number: &Self| (number.exponent, number.mantissa);
        let (large, small) = if key(&self) >= key(&other) {
            (self, other)
        } else {
            (other, self)
        };
        let distance = (large.exponent - small.exponent) as u32;
        // One bit is left for the carry; what is shifted out is remembered in the lowest bit,
        // which lies far below the ones that decide the rounding.
        let wide = u128::from(large.mantissa) << 63;
        let small_wide = u128::from(small.mantissa) << 63;
        let shifted = small_wide.checked_shr(distance).unwrap_or(0);
        let lost = distance >= 128 || shifted << distance != small_wide;
        let shifted = shifted | u128::from(lost);
        let sum = if large.negative == small.negative {
            wide + shifted
        } else {
            wide - shifted
        };
        if sum == 0 {
            return Ok(Self::ZERO);
        }
        Self::round(large.negative, sum, large.exponent - 63, false)
    }

    /// The nearest 64-bit float; infinite beyond their range.
    #[must_use]
    pub fn to_f64(self) -> f64 {
        let mut number = self.mantissa as f64;
        let mut exponent = self.exponent;
        // In steps, because neither the power nor what is between may leave the range too early.
        while exponent != 0 && number != 0.0 && number.is_finite() {
            let step = exponent.clamp(-500, 500);
            number *= 2f64.powi(step);
            exponent -= step;
        }
        if self.negative { -number } else { number }
    }

    /// Appends the number with up to 17 decimals, without zeros at the end, without an exponent.
    pub fn to_text(self, out: &mut Vec<u8>) {
        use std::io::Write;
        let start = out.len();
        if self.negative {
            out.push(b'-');
        }
        // Writing to a vector cannot fail.
        if self.exponent >= 0 {
            let mut number = Natural::from_u64(self.mantissa);
            number.shift_left(self.exponent as u32);
            number.into_text(out);
        } else {
            let shift = self.exponent.unsigned_abs();
            let wide = u128::from(self.mantissa) * DECIMALS_POWER;
            let kept = wide.checked_shr(shift).unwrap_or(0);
            // The product has fewer than 122 bits: beyond that, it is less than one half.
            let rest = if shift < 127 {
                wide - (kept << shift)
            } else {
                0
            };
            let half = 1u128 << (shift - 1).min(126);
            let scaled = kept + u128::from(rounds_up(kept & 1 == 1, rest.cmp(&half)));
            let (whole, part) = (scaled / DECIMALS_POWER, scaled % DECIMALS_POWER);
            let _ = write!(out, "{whole}");
            if part != 0 {
                let _ = write!(out, ".{part:017}");
                while out.last() == Some(&b'0') {
                    out.pop();
                }
            }
        }
        if out[start..] == *b"-0" {
            out.remove(start);
        }
    }
}

impl From<i64> for Extended {
    fn from(number: i64) -> Self {
        let magnitude = number.unsigned_abs();
        if magnitude == 0 {
            return Self::ZERO;
        }
        let shift = magnitude.leading_zeros();
        Self {
            negative: number < 0,
            mantissa: magnitude << shift,
            exponent: -(shift as i32),
        }
    }
}

/// The exponent behind an `e` or `p`; one far out of range is cut to what is out of range too.
fn parse_power(text: &[u8]) -> Result<i32, NotFinite> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(NotFinite::Malformed);
    }
    let power = digits.iter().fold(0i32, |sum, digit| {
        (sum * 10 + i32::from(digit - b'0')).min(1_000_000)
    });
    Ok(if negative { -power } else { power })
}

fn from_hexadecimal(negative: bool, digits: &[u8], power: i32) -> Result<Extended, NotFinite> {
    let (head, tail) = digits.split_at(digits.len().min(24));
    let wide = head
        .iter()
        .fold(0u128, |sum, &digit| sum << 4 | u128::from(digit));
    let sticky = tail.iter().any(|&digit| digit != 0);
    let power = power.saturating_add(4 * tail.len() as i32);
    Extended::round(negative, wide, power.clamp(-100_000, 100_000), sticky)
}

fn from_decimal(negative: bool, digits: &[u8], power: i32) -> Result<Extended, NotFinite> {
    // The place of the first digit tells most numbers out of range without computing them.
    let magnitude = power.saturating_add(digits.len() as i32);
    if !(-5000..=5000).contains(&magnitude) {
        return Err(NotFinite::Malformed);
    }
    let mut above = Natural::default();
    for &digit in digits {
        above.multiply_add(10, u32::from(digit));
    }
    let mut below = Natural::from_u64(1);
    for _ in 0..power.unsigned_abs() {
        if power > 0 {
            above.multiply_add(10, 0)
        } else {
            below.multiply_add(10, 0)
        }
    }
    // Bring both to the same length, then take the bits of the quotient one by one.
    let mut exponent = above.bits() as i32 - below.bits() as i32;
    if exponent > 0 {
        below.shift_left(exponent.unsigned_abs());
    } else {
        above.shift_left(exponent.unsigned_abs());
    }
    let mut wide = 0u128;
    for _ in 0..68 {
        wide <<= 1;
        if above.compare(&below) != Ordering::Less {
            above.subtract(&below);
            wide |= 1;
        }
        above.shift_left(1);
    }
    exponent -= 67;
    Extended::round(negative, wide, exponent, above.bits() > 0)
}

/// A natural number of any size, least significant digit (of base 2³²) first, no zeros on top.
#[derive(Clone, Debug, Default)]
struct Natural(Vec<u32>);

impl Natural {
    fn from_u64(number: u64) -> Self {
        let mut natural = Self(vec![number as u32, (number >> 32) as u32]);
        natural.trim();
        natural
    }

    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    fn bits(&self) -> u32 {
        self.0
            .last()
            .map_or(0, |top| self.0.len() as u32 * 32 - top.leading_zeros())
    }

    fn multiply_add(&mut self, factor: u32, summand: u32) {
        let mut carry = u64::from(summand);
        for digit in &mut self.0 {
            carry += u64::from(*digit) * u64::from(factor);
            *digit = carry as u32;
            carry >>= 32;
        }
        if carry > 0 {
            self.0.push(carry as u32);
        }
    }

    fn shift_left(&mut self, count: u32) {
        let (whole, part) = ((count / 32) as usize, count % 32);
        let mut carry = 0u64;
        for digit in &mut self.0 {
            carry |= u64::from(*digit) << part;
            *digit = carry as u32;
            carry >>= 32;
        }
        if carry > 0 {
            self.0.push(carry as u32);
        }
        if whole > 0 && !self.0.is_empty() {
            self.0.splice(..0, core::iter::repeat_n(0, whole));
        }
    }

    fn compare(&self, other: &Self) -> Ordering {
        self.0
            .len()
            .cmp(&other.0.len())
            .then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }

    /// Takes away a number that is not greater.
    fn subtract(&mut self, other: &Self) {
        let mut borrow = 0i64;
        for (at, digit) in self.0.iter_mut().enumerate() {
            let rest =
                i64::from(*digit) - i64::from(other.0.get(at).copied().unwrap_or(0)) + borrow;
            *digit = rest as u32;
            borrow = rest >> 32;
        }
        self.trim();
    }

    fn into_text(mut self, out: &mut Vec<u8>) {
        use std::io::Write;
        const GROUP: u64 = 1_000_000_000;
        let mut groups = Vec::new();
        while !self.0.is_empty() {
            let mut rest = 0u64;
            for digit in self.0.iter_mut().rev() {
                rest = rest << 32 | u64::from(*digit);
                *digit = (rest / GROUP) as u32;
                rest %= GROUP;
            }
            groups.push(rest);
            self.trim();
        }
        // Writing to a vector cannot fail.
        let _ = write!(out, "{}", groups.pop().unwrap_or(0));
        for group in groups.iter().rev() {
            let _ = write!(out, "{group:09}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(number: Extended) -> String {
        let mut out = Vec::new();
        number.to_text(&mut out);
        String::from_utf8(out).unwrap()
    }

    fn sum(a: &str, b: &str) -> String {
        let a = Extended::parse(a.as_bytes()).unwrap();
        let b = Extended::parse(b.as_bytes()).unwrap();
        text(a.plus(b).unwrap())
    }

    #[test]
    fn sums_as_redis_prints_them() {
        assert_eq!(sum("0.1", "0.2"), "0.3");
        assert_eq!(sum("10.5", "0.1"), "10.6");
        assert_eq!(sum("5.0e3", "2.0e2"), "5200");
        assert_eq!(sum("3", "-3"), "0");
        assert_eq!(sum("-0", "0"), "0");
        assert_eq!(sum("1", "-1.5"), "-0.5");
        assert_eq!(sum("-1e-30", "0"), "0");
        assert_eq!(sum("0x10", "0x.8"), "16.5");
        assert_eq!(sum("9223372036854775807", "1"), "9223372036854775808");
        assert_eq!(sum("1e-17", "0"), "0.00000000000000001");
    }

    #[test]
    fn invalid_number_is_rejected() {
        for bad in [
            "", "-", ".", "e5", "1e", "1e+", "1 ", " 1", "0x", "nan", "1e5000", "1e-5000", "1x",
        ] {
            assert_eq!(
                Extended::parse(bad.as_bytes()),
                Err(NotFinite::Malformed),
                "{bad}"
            );
        }
        assert_eq!(Extended::parse(b"-inf"), Err(NotFinite::Infinite));
        let most = Extended::parse(b"1.1e4932").unwrap();
        assert_eq!(most.plus(most), Err(NotFinite::Infinite));
        assert_eq!(text(most).len(), 4933);
        assert!(
            text(most).starts_with("10999999999999999999") || text(most).starts_with("1100000000")
        );
        assert!(Extended::parse(&[b'1'; 4932]).is_ok());
        assert!(Extended::parse(&[b'9'; 4933]).is_err());
    }

    proptest! {
        #[test]
        fn whole_numbers_are_exact(a in any::<i32>(), b in any::<i32>()) {
            prop_assert_eq!(sum(&a.to_string(), &b.to_string()), (i64::from(a) + i64::from(b)).to_string());
            prop_assert_eq!(text(Extended::from(i64::from(a))), a.to_string());
        }

        #[test]
        fn reading_agrees_with_floats(number in any::<f64>()) {
            prop_assume!(number.is_finite() && (number == 0.0 || number.abs() > 1e-300));
            let expected = if number == 0.0 {
                0
            } else {
                let bits = number.to_bits();
                ((bits & ((1 << 52) - 1)) | 1 << 52) << 11
            };
            // Enough digits to mean exactly this float.
            let read = Extended::parse(format!("{number:.1100e}").as_bytes()).unwrap();
            prop_assert_eq!(read.mantissa, expected);
        }

        #[test]
        fn sums_of_close_floats_agree(a in -1000i32..1000, b in -1000i32..1000) {
            let a = f64::from(a) / 64.0;
            let b = f64::from(b) / 64.0;
            prop_assert_eq!(sum(&a.to_string(), &b.to_string()), (a + b + 0.0).to_string());
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in "[-+0-9.exEXpP]{0,12}") {
            if let Ok(number) = Extended::parse(bytes.as_bytes()) {
                let _ = text(number);
                let _ = number.plus(number);
            }
        }
    }
}
