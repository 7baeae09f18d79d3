//! Sizes, lengths of time and hexadecimal digits as people write them.

use std::time::Duration;

const SIZES: [(&str, u64); 4] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

/// `64MiB`, `10KiB`, `4096`.
///
/// # Errors
/// With what is accepted.
pub fn bytes(text: &str) -> Result<u64, String> {
    let refuse = || format!("'{text}' is not a size like 4096, 512KiB, 64MiB or 4GiB");
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (count, unit) = text.split_at(digits);
    let count: u64 = count.parse().map_err(|_| refuse())?;
    let unit = unit.trim().to_ascii_lowercase();
    let scale = match unit.as_str() {
        "" | "b" => 1,
        "k" | "kib" | "kb" => 1 << 10,
        "m" | "mib" | "mb" => 1 << 20,
        "g" | "gib" | "gb" => 1 << 30,
        _ => return Err(refuse()),
    };
    count.checked_mul(scale).ok_or_else(refuse)
}

/// The same as a length of something in memory.
///
/// # Errors
/// With what is accepted.
pub fn length(text: &str) -> Result<usize, String> {
    usize::try_from(bytes(text)?).map_err(|_| format!("'{text}' is more than memory can hold"))
}

/// Writes a number of bytes as [`bytes`] reads it, in the largest unit that fits exactly.
pub fn show_bytes(value: u64) -> String {
    let fits = |(_, scale): &&(&str, u64)| value != 0 && value.is_multiple_of(*scale);
    match SIZES.iter().find(fits) {
        Some((unit, scale)) => format!("{}{unit}", value / scale),
        None => value.to_string(),
    }
}

/// `10s`, `2m`, `100us`.
///
/// # Errors
/// With what is accepted.
pub fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| format!("'{text}' is not a length of time like 100us, 50ms, 10s or 2m"))
}

/// Writes a duration as [`duration`] reads it.
pub fn show_duration(value: Duration) -> String {
    humantime::format_duration(value).to_string()
}

/// 64 hexadecimal digits as bytes.
pub fn bytes_of_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(bytes)
}

/// Bytes as hexadecimal digits.
pub fn hex_of_bytes(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Unpredictable bytes from the operating system.
///
/// # Errors
/// When it gives none.
pub fn random_bytes<const N: usize>() -> std::io::Result<[u8; N]> {
    use std::io::Read;
    let mut bytes = [0; N];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(bytes("64MiB"), Ok(64 << 20));
        assert_eq!(bytes("64 mb"), Ok(64 << 20));
        for wrong in [
            "",
            "MiB",
            "1.5GiB",
            "-1",
            "1TiB",
            "99999999999999999999",
            "18446744073709551615k",
        ] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
        for value in [0, 1, 1000, 1024, 3 << 20, 5 << 30] {
            assert_eq!(bytes(&show_bytes(value)), Ok(value));
        }
        assert_eq!(show_bytes(64 << 20), "64MiB");
    }

    #[test]
    fn hexadecimal() {
        let bytes: [u8; 32] = random_bytes().unwrap();
        assert_eq!(bytes_of_hex(&hex_of_bytes(&bytes)), Some(bytes));
        assert_eq!(bytes_of_hex("00"), None);
        assert_eq!(bytes_of_hex(&"é".repeat(32)), None);
    }
}
