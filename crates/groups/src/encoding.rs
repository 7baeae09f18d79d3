//! Values as bytes: postcard's format, which is specified and the same in every build.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// The encoding of a value.
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    append(value, &mut bytes);
    bytes
}

/// Appends it.
///
/// # Panics
/// When the value's own `Serialize` fails: at every replica then.
pub fn append<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) {
    let taken = std::mem::take(out);
    *out = postcard::to_extend(value, taken).expect("a value that can be serialized");
}

/// The encoding of a value that is to be kept.
///
/// # Errors
/// When it cannot be written, or not be read back: some of serde's attributes need a format that
/// describes itself.
pub fn checked<T: Serialize + DeserializeOwned>(value: &T) -> Result<Vec<u8>, String> {
    let of = std::any::type_name::<T>();
    let bytes = postcard::to_allocvec(value);
    let bytes = bytes.map_err(|error| format!("a value of {of} cannot be written: {error}"))?;
    match decode::<T>(&bytes) {
        Some(_) => Ok(bytes),
        None => Err(format!(
            "a value of {of} cannot be read back as it was written: leave out serde's untagged, tag, \
             flatten and skip_serializing_if"
        )),
    }
}

/// Its length.
pub fn length<T: Serialize + ?Sized>(value: &T) -> u64 {
    let size = postcard::ser_flavors::Size::default();
    postcard::serialize_with_flavor(value, size).map_or(0, |length| length as u64)
}

/// The value that these bytes begin with.
pub fn decode_first<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Option<T> {
    split_first(bytes).map(|(value, _)| value)
}

/// The value that these bytes are, all of them.
pub fn decode<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Option<T> {
    let (value, rest) = split_first(bytes)?;
    rest.is_empty().then_some(value)
}

/// The value that these bytes begin with, and what stands behind it.
pub fn split_first<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Option<(T, &'de [u8])> {
    postcard::take_from_bytes(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bytes, service::RawBytes};

    #[test]
    fn bytes_have_one_encoding_however_they_are_held() {
        let bytes: &[u8] = &[0, 1, 127, 128, 255];
        let held = Bytes::from_static(&[0, 1, 127, 128, 255]);
        let expected = encode(&bytes.to_vec());
        assert_eq!(encode(&RawBytes(bytes)), expected);
        assert_eq!(encode(&held), expected);
        assert_eq!(checked(&held), Ok(expected.clone()));
        assert_eq!(decode::<Bytes>(&expected), Some(held));
        assert_eq!(decode::<&[u8]>(&expected), Some(bytes));
    }
}
