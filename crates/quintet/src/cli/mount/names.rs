//! Keys as names of files: percent-encoded where a name cannot have a byte.

/// No name of a file is longer.
pub const NAME_BYTES_MAX: usize = 255;

/// A key as a file's name.
pub fn name_of(key: &[u8]) -> Vec<u8> {
    let mut name = Vec::new();
    let is_dots = key == b"." || key == b"..";
    for byte in key {
        match byte {
            b'/' | b'%' | 0..=31 | 127 => name.extend_from_slice(format!("%{byte:02X}").as_bytes()),
            b'.' if is_dots => name.extend_from_slice(b"%2E"),
            byte => name.push(*byte),
        }
    }
    match name.is_empty() {
        true => b"%".to_vec(),
        false => name,
    }
}

/// The key of such a name; `None` where no key has it.
pub fn key_of(name: &[u8]) -> Option<Vec<u8>> {
    if name == b"%" {
        return Some(Vec::new());
    }
    let (mut key, mut rest) = (Vec::new(), name);
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        if *byte != b'%' {
            key.push(*byte);
            continue;
        }
        let (digits, behind) = rest.split_at_checked(2)?;
        key.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = behind;
    }
    // Another spelling of the same key is none.
    (name_of(&key) == name).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_keys() {
        let keys: [&[u8]; 9] = [
            b"",
            b"a",
            b".",
            b"..",
            b"...",
            b"a/b",
            b"100%",
            b"\x00\n\x7f",
            b"\xff\xfe",
        ];
        for key in keys {
            let name = name_of(key);
            assert!(!name.contains(&b'/') && !name.contains(&0) && !name.is_empty());
            assert_eq!(key_of(&name).as_deref(), Some(key));
        }
        for name in [&b"%2"[..], b"%zz", b"%41", b"a%", b"%2e"] {
            assert_eq!(key_of(name), None);
        }
    }
}
