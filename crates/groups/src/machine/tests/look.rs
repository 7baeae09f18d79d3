//! Fields as they are shown to programs without the types.

use super::*;
use crate::look::{Form, Look, Looked, NoKey};

/// As of now, or of a version or a time.
fn look_at<S: Methods>(
    rig: &Rig<S>,
    kind: Kind,
    field: u32,
    look: &Look<'_>,
) -> Result<Done<Looked>, CallError> {
    let call = Around::Look.put(&Call::encode(kind, field, look));
    let mut reply = Vec::new();
    if kind == Kind::Query {
        rig.machine.query(&rig.at(), &call, &mut reply);
    } else {
        let answer = rig.machine.query_at(&rig.at(), &call, &mut reply);
        assert_eq!(answer, PastAnswer::Done);
    }
    call::read_answer(&reply, "it/0")
}

fn field<S: Methods>(name: &str) -> (u32, Form) {
    let mut fields = S::NAMED_FIELDS.iter();
    let field = fields.find(|it| it.name == name).expect("a field");
    (field.number, field.form)
}

/// The version, its time and the text of a value.
pub(super) fn value<S: Methods>(
    rig: &Rig<S>,
    kind: Kind,
    name: &str,
    key: Option<&str>,
) -> Option<(Option<u64>, u64, String)> {
    let (number, form) = field::<S>(name);
    let key = key.map(|key| (form.key.expect("a map").read)(key.as_bytes()).expect("a key"));
    let looked = look_at(rig, kind, number, &Look::Value(key.as_deref()));
    match looked.expect("told").value {
        Looked::Value {
            version,
            time,
            bytes,
        } => {
            let text = (form.value)(&bytes).expect("a value");
            Some((version, time, String::from_utf8(text).expect("text")))
        }
        Looked::Nothing => None,
        other => panic!("{other:?}"),
    }
}

/// All keys, one in each answer.
fn keys<S: Methods>(rig: &Rig<S>, kind: Kind, name: &str) -> Vec<String> {
    let (number, form) = field::<S>(name);
    let form = form.key.expect("a map");
    let (mut found, mut from) = (Vec::new(), None);
    loop {
        let look = Look::Keys {
            from: from.as_deref(),
            count: 1,
        };
        let looked = look_at(rig, kind, number, &look).expect("told").value;
        let Looked::Keys { keys, next } = looked else {
            panic!("{looked:?}");
        };
        for key in keys {
            let text = (form.write)(&key).expect("a key");
            found.push(String::from_utf8(text).expect("text"));
        }
        match next {
            Some(next) => from = Some(next.to_vec()),
            None => return found,
        }
    }
}

fn ledger(retention: Retention) -> Rig<Ledger> {
    let mut rig = Rig::new(retention);
    for (name, amount) in [("a", 1), ("b/c", 2), ("a", 3)] {
        let put = rig.ordered::<Option<i64>>("put", &(name, amount));
        put.expect("executed");
        rig.time += 10;
    }
    rig.ordered::<bool>("close", &("b/c",)).expect("executed");
    rig
}

#[test]
fn fields_are_shown_as_of_now_and_of_each_version() {
    let rig = ledger(Retention::default());
    let at = Kind::QueryAtVersion;
    assert_eq!(keys(&rig, Kind::Query, "accounts"), ["a"]);
    assert_eq!(keys(&rig, at(3), "accounts"), ["a", "b/c"]);
    assert!(keys(&rig, at(0), "accounts").is_empty());
    let account = |kind, key| value(&rig, kind, "accounts", Some(key));
    assert_eq!(
        account(Kind::Query, "a"),
        Some((Some(3), 120, "3\n".into()))
    );
    assert_eq!(account(at(2), "a"), Some((Some(1), 100, "1\n".into())));
    assert_eq!(account(at(3), "b/c"), Some((Some(2), 110, "2\n".into())));
    assert_eq!(account(Kind::Query, "b/c"), None);
    assert_eq!(account(Kind::Query, "none"), None);
    let total = |kind| value(&rig, kind, "total", None);
    assert_eq!(total(Kind::Query), Some((Some(4), 130, "3\n".into())));
    assert_eq!(total(at(3)), Some((Some(3), 120, "5\n".into())));
    assert_eq!(total(at(0)), Some((Some(0), 0, "0\n".into())));
    // As of the time that the rig asks for.
    assert_eq!(total(Kind::QueryAtTime), total(Kind::Query));
    let told = look_at(&rig, at(2), 0, &Look::Version).expect("told");
    assert_eq!((told.version.0, told.time.0.0), (2, 110));
    assert_eq!(told.value, Looked::Nothing);
}

#[derive(Default, Service)]
struct Large {
    value: Persistent<crate::Bytes>,
    count: Persistent<u64>,
}

#[service]
impl Large {
    #[ordered]
    fn set(&mut self, bytes: u64) {
        let bytes = usize::try_from(bytes).expect("small");
        *self.value = vec![0; bytes].into();
        *self.count += 1;
    }
}

#[test]
fn look_reads_one_value_and_none_that_is_too_large() {
    let archive = Damaged::default();
    let is_damaged = archive.0.clone();
    let mut rig = Rig::<Large>::with_archive(Retention::default(), Arc::new(archive));
    for bytes in [33_u64 << 20, 7, 8] {
        rig.ordered::<()>("set", &bytes).expect("executed");
    }
    let (number, _) = field::<Large>("value");
    let look = |version| {
        let look = Look::Value(None);
        look_at(&rig, Kind::QueryAtVersion(version), number, &look)
    };
    let count = |version| value(&rig, Kind::QueryAtVersion(version), "count", None);
    let encoded = |bytes: usize| encoding::length(&crate::Bytes::from(vec![0; bytes]));
    let shown = look(2).expect("told").value;
    let is_whole =
        matches!(&shown, Looked::Value { bytes, .. } if bytes.len() as u64 == encoded(7));
    assert!(is_whole, "{shown:?}");
    is_damaged.store(true, std::sync::atomic::Ordering::Relaxed);
    let large = Looked::TooLarge(encoded(33 << 20));
    assert_eq!(look(1).expect("told").value, large);
    assert!(matches!(
        look(2),
        Err(CallError::Panicked { stopped: false, .. })
    ));
    // Where the value of another field is whole.
    assert_eq!(count(3), Some((Some(3), 100, "3\n".into())));
    let told = look_at(&rig, Kind::QueryAtVersion(1), 0, &Look::Version);
    assert_eq!(told.expect("told").version.0, 1);
}

#[test]
fn version_that_is_trimmed_shows_nothing() {
    let rig = ledger(Retention {
        versions: 1,
        ..Retention::default()
    });
    let (number, _) = field::<Ledger>("accounts");
    for look in [Look::Version, Look::Value(None)] {
        let refused = look_at(&rig, Kind::QueryAtVersion(2), number, &look);
        let is_trimmed = matches!(refused, Err(CallError::Trimmed { oldest, .. }) if oldest.0 == 3);
        assert!(is_trimmed, "{refused:?}");
    }
    let rig = ledger(Retention {
        versions: 0,
        ..Retention::default()
    });
    // A value that was made before all that is kept is as old as that.
    let told = value(&rig, Kind::Query, "accounts", Some("a"));
    assert_eq!(told, Some((Some(4), 130, "3\n".into())));
}

#[test]
fn look_at_what_is_not_there_is_refused() {
    let rig = ledger(Retention::default());
    let (total, form) = field::<Ledger>("total");
    let (accounts, _) = field::<Ledger>("accounts");
    assert!(form.key.is_none());
    let keys = |from| Look::Keys { from, count: 9 };
    for (field, look) in [
        (7, Look::Value(None)),
        (total, Look::Value(Some(b"\x01a"))),
        (total, keys(None)),
        (accounts, Look::Value(None)),
        // A text of nine bytes in one.
        (accounts, Look::Value(Some(b"\x09a"))),
        (accounts, keys(Some(b"\x01\xff"))),
    ] {
        let refused = look_at(&rig, Kind::Query, field, &look);
        assert!(
            matches!(refused, Err(CallError::Schema { .. })),
            "{look:?}: {refused:?}"
        );
    }
    let mut reply = Vec::new();
    let call = Around::Look.put(&Call::encode(Kind::Query, accounts, &255_u8));
    rig.machine.query(&rig.at(), &call, &mut reply);
    let refused: Result<Done<Looked>, _> = call::read_answer(&reply, "it/0");
    assert!(matches!(refused, Err(CallError::Schema { .. })));
}

#[test]
fn field_without_versions_is_as_old_as_its_state() {
    let mut rig = Rig::<Cache>::new(Retention::default());
    for (key, set) in [(200_u8, 1_u8), (3, 2)] {
        rig.time += 10;
        rig.ordered::<()>("set", &(key, set)).expect("executed");
    }
    assert_eq!(keys(&rig, Kind::Query, "newest"), ["3", "200"]);
    let told = value(&rig, Kind::Query, "newest", Some("200"));
    assert_eq!(told, Some((None, 120, "1\n".into())));
    let read = field::<Cache>("newest").1.key.expect("a map").read;
    assert!(matches!(read(b"300"), Err(NoKey::Other(_))));
}

/// A map alone: no other field is read when an earlier version is asked for.
#[derive(Default, Service)]
struct Shelf {
    items: PersistentMap<String, u8>,
}

#[service]
impl Shelf {
    #[ordered]
    fn put(&mut self, key: String, value: u8) {
        self.items.insert(key, value);
    }
}

#[test]
fn damaged_past_value_that_is_looked_at_is_an_error() {
    let archive = Damaged::default();
    let is_damaged = archive.0.clone();
    let mut rig = Rig::<Shelf>::with_archive(Retention::default(), Arc::new(archive));
    for put in 1..4u8 {
        rig.ordered::<()>("put", &("a", put)).expect("executed");
    }
    let then = Kind::QueryAtVersion(1);
    let shown = |rig: &Rig<Shelf>, kind| value(rig, kind, "items", Some("a")).map(|it| it.2);
    assert_eq!(shown(&rig, then), Some("1\n".to_owned()));
    is_damaged.store(true, std::sync::atomic::Ordering::Relaxed);
    let (number, form) = field::<Shelf>("items");
    let key = (form.key.expect("a map").read)(b"a").expect("a key");
    let looked = look_at(&rig, then, number, &Look::Value(Some(&key)));
    assert!(
        matches!(looked, Err(CallError::Panicked { stopped: false, .. })),
        "{looked:?}"
    );
    assert_eq!(shown(&rig, Kind::Query), Some("3\n".to_owned()));
}
