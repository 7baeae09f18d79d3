//! Fields as they are, for programs without the types: which keys there are, and the values.
//!
//! ```text
//!   text of a key ──► Form ──► Look ──► the field, now or rewound ──► Looked ──► Form ──► text of the value
//!                     └─ where the types are: a server of calls ──────────────────┘
//! ```
//!
//! Text is what files and clients of Redis show. A `String` is its text, [`Bytes`] are themselves,
//! anything else is JSON.

use crate::{
    encoding,
    fields::{Key, Value},
    past::Past,
    service::RawBytes,
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::any::Any;

/// No longer value is shown, in bytes of its encoding.
pub const VALUE_BYTES_MAX: u64 = 32 << 20;
/// Keys in one answer, and bytes of their encodings.
pub const KEYS_MAX: u64 = 1000;
const KEYS_BYTES_MAX: usize = 1 << 20;
/// Keys that are looked at for one answer, also those that are there at other times only.
const VISITED_MAX: usize = 10_000;

/// A question about a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Look<'a> {
    /// Nothing of it: the version of the state, and its time, which every answer has.
    Version,
    /// The value; of a map that under this key.
    #[serde(borrow)]
    Value(Option<&'a [u8]>),
    /// Keys of a map in their order.
    Keys {
        /// The first one, if it is there; else the first one behind it.
        #[serde(borrow)]
        from: Option<&'a [u8]>,
        /// At most this number of them.
        count: u64,
    },
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Looked {
    /// There is no such key, or nothing was asked for.
    Nothing,
    /// A value.
    Value {
        /// The version that made it; of a field without versions none.
        version: Option<u64>,
        /// The time of that version.
        time: u64,
        /// Its encoding.
        bytes: Bytes,
    },
    /// A value whose encoding has this length, above [`VALUE_BYTES_MAX`].
    TooLarge(u64),
    /// Keys.
    Keys {
        /// Their encodings.
        keys: Vec<Bytes>,
        /// Ask from this one on for more, unless these are all.
        next: Option<Bytes>,
    },
}

/// Shows a value that this version made.
pub(crate) fn value<V: Value>(version: Option<u64>, value: Option<&V>) -> Looked {
    let Some(value) = value else {
        return Looked::Nothing;
    };
    shown(version, encoding::length(value), || encoding::encode(value))
}

/// Shows a past value; one that is too large is not read.
pub(crate) fn past<V: Value>(past: &Past<V>) -> Looked {
    match past.value {
        Some(_) => shown(Some(past.since), past.length(), || {
            past.encoding().unwrap_or_default()
        }),
        None => Looked::Nothing,
    }
}

fn shown(version: Option<u64>, length: u64, encoding: impl FnOnce() -> Vec<u8>) -> Looked {
    match length > VALUE_BYTES_MAX {
        true => Looked::TooLarge(length),
        false => Looked::Value {
            version,
            time: 0,
            bytes: encoding().into(),
        },
    }
}

/// Shows keys, of which each is there or not.
pub(crate) fn keys<'a, K: Key>(all: impl Iterator<Item = (&'a K, bool)>, count: u64) -> Looked {
    let (mut keys, mut bytes) = (Vec::new(), 0);
    let mut next = None;
    for (visited, (key, is_there)) in all.enumerate() {
        let is_full = keys.len() as u64 >= count.clamp(1, KEYS_MAX) || bytes >= KEYS_BYTES_MAX;
        if is_full || visited >= VISITED_MAX {
            next = Some(encoding::encode(key).into());
            break;
        }
        if is_there {
            let key = encoding::encode(key);
            bytes += key.len();
            keys.push(key.into());
        }
    }
    Looked::Keys { keys, next }
}

/// How a field's values are written as text, and the keys of a map.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// The text of a value from its encoding; `None` when that is none.
    pub value: fn(&[u8]) -> Option<Vec<u8>>,
    /// Of a map's keys.
    pub key: Option<KeyForm>,
}

/// How a map's keys are written as text.
#[derive(Clone, Copy, Debug)]
pub struct KeyForm {
    /// The text of a key from its encoding; `None` when it has none.
    pub write: fn(&[u8]) -> Option<Vec<u8>>,
    /// The encoding of a key from its text.
    pub read: fn(&[u8]) -> Result<Vec<u8>, NoKey>,
}

/// Why a text is no key of a map.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoKey {
    /// It has another type.
    #[error("a key is a {0}, as text or in JSON")]
    Other(&'static str),
    /// It is another text of a key: each key has one.
    #[error("that key is written {0}")]
    Spelling(String),
}

impl Form {
    /// That of a single value.
    #[must_use]
    pub const fn of_value<V: Value>() -> Self {
        Self {
            value: text_of_value::<V>,
            key: None,
        }
    }

    /// That of a map.
    #[must_use]
    pub const fn of_map<K: Key, V: Value>() -> Self {
        Self {
            value: text_of_value::<V>,
            key: Some(KeyForm {
                write: |key| text_of_key::<K>(&encoding::decode(key)?),
                read: read_key::<K>,
            }),
        }
    }
}

/// Plain text, or plain bytes.
fn plain<T: Value>(value: &T) -> Option<Vec<u8>> {
    let value = value as &dyn Any;
    let text = value.downcast_ref::<String>();
    let text = text.map(|text| text.clone().into_bytes());
    text.or_else(|| value.downcast_ref::<Bytes>().map(|bytes| bytes.to_vec()))
}

/// JSON in one line; the encoding itself where JSON has no form for it.
fn text_of_value<V: Value>(bytes: &[u8]) -> Option<Vec<u8>> {
    let value: V = encoding::decode(bytes)?;
    if let Some(plain) = plain(&value) {
        return Some(plain);
    }
    Some(match serde_json::to_vec(&value) {
        Ok(mut json) => {
            json.push(b'\n');
            json
        }
        Err(_) => bytes.to_vec(),
    })
}

/// A string's text where that is not the JSON of another key.
fn text_of_key<K: Key>(key: &K) -> Option<Vec<u8>> {
    if let Some(plain) = plain(key) {
        return Some(plain);
    }
    let json = serde_json::to_string(key).ok()?;
    let text: Option<String> = serde_json::from_str(&json).ok();
    let text = text.filter(|text| serde_json::from_str::<K>(text).is_err());
    Some(text.unwrap_or(json).into_bytes())
}

fn read_key<K: Key>(text: &[u8]) -> Result<Vec<u8>, NoKey> {
    let other = || NoKey::Other(std::any::type_name::<K>());
    // A key that is bytes is these.
    let as_bytes: Option<K> = encoding::decode(&encoding::encode(&RawBytes(text)));
    let as_bytes = as_bytes.filter(|key| plain(key).is_some());
    let read = as_bytes.or_else(|| {
        let text = std::str::from_utf8(text).ok()?;
        let json = serde_json::from_str(text).ok();
        json.or_else(|| serde_json::from_value(text.into()).ok())
    });
    let key = read.ok_or_else(other)?;
    match text_of_key(&key).ok_or_else(other)? {
        spelling if spelling == text => Ok(encoding::encode(&key)),
        spelling => Err(NoKey::Spelling(
            String::from_utf8_lossy(&spelling).into_owned(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::BTreeMap, fmt::Debug};

    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    struct Name(String);

    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    enum Colour {
        Red,
        Mixed(u8, u8),
    }

    #[track_caller]
    fn is_written<K: Key + Debug>(key: &K, text: &[u8]) {
        let form = Form::of_map::<K, u8>().key.expect("of a map");
        let bytes = encoding::encode(key);
        let written = (form.write)(&bytes).expect("it has a text");
        assert_eq!(
            written.escape_ascii().to_string(),
            text.escape_ascii().to_string()
        );
        assert_eq!((form.read)(text), Ok(bytes));
    }

    #[test]
    fn each_key_has_one_text_that_leads_back() {
        for text in ["pallet", "", "17", "null", "\"quoted\"", "[1]", " a"] {
            is_written(&text.to_owned(), text.as_bytes());
        }
        is_written(&Name("pallet".to_owned()), b"pallet");
        is_written(&Name("17".to_owned()), b"17");
        is_written(&Name("\"a\"".to_owned()), br#""\"a\"""#);
        is_written(&Bytes::from_static(b"\xff\0"), b"\xff\0");
        is_written(&17_u64, b"17");
        is_written(&-5_i8, b"-5");
        is_written(&true, b"true");
        is_written(&'x', b"x");
        is_written(&Colour::Red, b"Red");
        is_written(&Colour::Mixed(1, 2), br#"{"Mixed":[1,2]}"#);
        is_written(&("a".to_owned(), 3_u8), br#"["a",3]"#);
        is_written(&None::<String>, b"null");
        is_written(&Some("null".to_owned()), br#""null""#);
        is_written(&Some("a".to_owned()), b"a");
    }

    #[test]
    fn other_texts_are_no_keys() {
        let read = Form::of_map::<u64, u8>().key.expect("of a map").read;
        for text in ["abc", "", "-1", "017", "1.0", "\"17\""] {
            assert!(
                matches!(read(text.as_bytes()), Err(NoKey::Other(_))),
                "{text}"
            );
        }
        assert!(matches!(read(b"\xff"), Err(NoKey::Other(_))));
        assert_eq!(read(b" 17"), Err(NoKey::Spelling("17".to_owned())));
        let read = Form::of_map::<Name, u8>().key.expect("of a map").read;
        assert_eq!(read(b"\"a\""), Err(NoKey::Spelling("a".to_owned())));
        assert!(matches!(read(b"\xff"), Err(NoKey::Other(_))));
        let read = Form::of_map::<String, u8>().key.expect("of a map").read;
        assert!(matches!(read(b"\xff"), Err(NoKey::Other(_))));
    }

    #[test]
    fn text_is_plain_and_anything_else_is_json() {
        fn shown<V: Value>(value: &V) -> Vec<u8> {
            (Form::of_value::<V>().value)(&encoding::encode(value)).expect("a value")
        }
        assert_eq!(shown(&"two\nlines".to_owned()), b"two\nlines");
        assert_eq!(shown(&Bytes::from_static(b"\x89PNG\0")), b"\x89PNG\0");
        assert_eq!(shown(&7_u64), b"7\n");
        assert_eq!(shown(&vec![("a".to_owned(), 1)]), b"[[\"a\",1]]\n");
        // JSON has no form for such a map.
        let odd = BTreeMap::from([((1_u8, 2_u8), 3_u8)]);
        assert_eq!(shown(&odd), encoding::encode(&odd));
        assert_eq!((Form::of_value::<u64>().value)(&[]), None);
    }

    #[test]
    fn keys_come_in_pages_of_bounded_work() {
        let all: Vec<u64> = (0..25_000).collect();
        // Only the last ones are there.
        let page = |from: u64, count| {
            let from = usize::try_from(from).expect("small");
            keys(all[from..].iter().map(|key| (key, *key >= 24_990)), count)
        };
        let (mut found, mut from, mut pages) = (Vec::new(), 0, 0);
        loop {
            let Looked::Keys { keys, next } = page(from, 6) else {
                panic!("keys");
            };
            found.extend(keys.iter().filter_map(|key| encoding::decode::<u64>(key)));
            pages += 1;
            let Some(next) = next else { break };
            from = encoding::decode(&next).expect("a key");
        }
        assert_eq!(found, (24_990..25_000).collect::<Vec<_>>());
        assert_eq!(pages, 4);
        let Looked::Keys { keys, next } = page(24_990, 0) else {
            panic!("keys");
        };
        assert_eq!((keys.len(), next.is_some()), (1, true));
    }

    #[test]
    fn value_above_the_bound_is_told_by_its_length() {
        let large = Bytes::from(vec![0; 33 << 20]);
        let length = encoding::length(&large);
        assert_eq!(value(Some(1), Some(&large)), Looked::TooLarge(length));
        assert_eq!(value::<Bytes>(Some(1), None), Looked::Nothing);
    }
}
