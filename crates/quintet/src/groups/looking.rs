//! Fields by name for clients of Redis, and for `quintet mount`: their keys and values, now and then.
//!
//! ```text
//!   QUINTET.KEYS store/3 items FROM pallet ──► Look, encoded ──► a member ──► Looked ──► texts
//!   QUINTET.VALUE store/3 items KEY pallet AT v:17
//! ```

use super::{
    CallError, Pending, Shard, When,
    json::{Callers, JsonError},
    look::{Form, KEYS_MAX, Look, Looked, VALUE_BYTES_MAX},
    redis::{Reply, text_of},
};
use quintet_groups::service::NamedField;
use std::sync::Arc;

/// No text of a value is longer.
const TEXT_BYTES_MAX: usize = 63 << 20;
const FIELDS: &str = "QUINTET.FIELDS SHARD";
const VERSION: &str = "QUINTET.VERSION SHARD [AT WHEN]";
const KEYS: &str = "QUINTET.KEYS SHARD FIELD [FROM KEY] [COUNT NUMBER] [AT WHEN]";
const VALUE: &str = "QUINTET.VALUE SHARD FIELD [KEY KEY] [AT WHEN]";

/// An answer on its way.
pub(super) struct Looking {
    pending: Pending<Looked>,
    field: Arc<str>,
    /// Nothing is asked of a field.
    form: Option<Form>,
}

/// Why there is none.
enum Refused {
    Usage(&'static str),
    /// With its code.
    Text(String),
}

impl From<JsonError> for Refused {
    fn from(error: JsonError) -> Self {
        Self::Text(text_of(&error))
    }
}

#[derive(Default)]
struct Options<'a> {
    key: Option<&'a [u8]>,
    from: Option<&'a [u8]>,
    count: Option<u64>,
    when: Option<When>,
}

impl<'a> Options<'a> {
    fn read(words: &[&'a [u8]], usage: &'static str) -> Result<Self, Refused> {
        let mut options = Self::default();
        for option in words.chunks(2) {
            let [word, value] = *option else {
                return Err(Refused::Usage(usage));
            };
            let text = std::str::from_utf8(value);
            match &*word.to_ascii_uppercase() {
                b"KEY" if usage == VALUE => options.key = Some(value),
                b"FROM" if usage == KEYS => options.from = Some(value),
                b"COUNT" if usage == KEYS => {
                    let count = text.ok().and_then(|text| text.parse().ok());
                    let count = count.filter(|count| *count > 0);
                    options.count = Some(count.ok_or(Refused::Usage(usage))?);
                }
                b"AT" => {
                    let when = When::read(text.map_err(|_| Refused::Usage(usage))?);
                    let when = when.map_err(|error| Refused::Text(format!("ERR {error}")))?;
                    options.when = Some(when);
                }
                _ => return Err(Refused::Usage(usage)),
            }
        }
        Ok(options)
    }
}

/// Answers a command of this kind; `None` where it is another.
pub(super) fn answer(name: &[u8], rest: &[&[u8]], callers: &Callers) -> Option<Reply> {
    let answered = match &*name.to_ascii_uppercase() {
        b"QUINTET.FIELDS" => fields(rest, callers),
        b"QUINTET.VERSION" => version(rest, callers),
        b"QUINTET.KEYS" => keys(rest, callers),
        b"QUINTET.VALUE" => value(rest, callers),
        _ => return None,
    };
    Some(answered.unwrap_or_else(|refused| {
        Reply::error(&match refused {
            Refused::Usage(usage) => format!("ERR usage: {usage}"),
            Refused::Text(text) => text,
        })
    }))
}

fn fields(rest: &[&[u8]], callers: &Callers) -> Result<Reply, Refused> {
    let [shard] = rest else {
        return Err(Refused::Usage(FIELDS));
    };
    let fields = callers.shard(&text(shard)?)?.service.fields;
    let mut out = Vec::new();
    let mut reply = quintet_store::Reply::unbounded(&mut out, false);
    reply.array(fields.len());
    for field in fields {
        reply.array(2);
        reply.bulk(match field.form.key {
            Some(_) => b"map",
            None => b"value",
        });
        reply.bulk(field.name.as_bytes());
    }
    Ok(Reply::Ready(out))
}

fn version(rest: &[&[u8]], callers: &Callers) -> Result<Reply, Refused> {
    let Some((shard, options)) = rest.split_first() else {
        return Err(Refused::Usage(VERSION));
    };
    let options = Options::read(options, VERSION)?;
    look(callers, shard, None, options.when, &Look::Version)
}

fn keys(rest: &[&[u8]], callers: &Callers) -> Result<Reply, Refused> {
    let [shard, name, options @ ..] = rest else {
        return Err(Refused::Usage(KEYS));
    };
    let options = Options::read(options, KEYS)?;
    let field = field(callers, shard, name)?;
    if field.form.key.is_none() {
        let text = format!("ERR field '{}' is no map: it has no keys", field.name);
        return Err(Refused::Text(text));
    }
    let from = options.from.map(|from| key(field, from)).transpose()?;
    let asked = Look::Keys {
        from: from.as_deref(),
        count: options.count.unwrap_or(KEYS_MAX),
    };
    look(callers, shard, Some(field), options.when, &asked)
}

fn value(rest: &[&[u8]], callers: &Callers) -> Result<Reply, Refused> {
    let [shard, name, options @ ..] = rest else {
        return Err(Refused::Usage(VALUE));
    };
    let options = Options::read(options, VALUE)?;
    let field = field(callers, shard, name)?;
    if field.form.key.is_some() && options.key.is_none() {
        let text = format!("ERR field '{}' is a map: name a key with KEY", field.name);
        return Err(Refused::Text(text));
    }
    let key = options.key.map(|text| key(field, text)).transpose()?;
    let asked = Look::Value(key.as_deref());
    look(callers, shard, Some(field), options.when, &asked)
}

fn text(bytes: &[u8]) -> Result<String, Refused> {
    let text = std::str::from_utf8(bytes).map(str::to_owned);
    text.map_err(|_| Refused::Text("ERR the arguments are not UTF-8".to_owned()))
}

fn field(callers: &Callers, shard: &[u8], name: &[u8]) -> Result<&'static NamedField, Refused> {
    let service = &callers.shard(&text(shard)?)?.service;
    let name = text(name)?;
    let found = service.fields.iter().find(|field| field.name == name);
    found.ok_or_else(|| {
        let known: Vec<_> = service.fields.iter().map(|field| field.name).collect();
        let (of, known) = (service.name, known.join(", "));
        Refused::Text(format!(
            "ERR service {of} has no field '{name}'; it has {known}"
        ))
    })
}

/// A key of a field, encoded.
fn key(field: &NamedField, text: &[u8]) -> Result<Vec<u8>, Refused> {
    let shown = String::from_utf8_lossy(text);
    let bad = |why: String| {
        Refused::Text(format!(
            "BADKEY '{shown}' is no key of field '{}': {why}",
            field.name
        ))
    };
    let form = field
        .form
        .key
        .ok_or_else(|| bad("it is no map".to_owned()))?;
    (form.read)(text).map_err(|error| bad(error.to_string()))
}

fn look(
    callers: &Callers,
    shard: &[u8],
    field: Option<&NamedField>,
    when: Option<When>,
    look: &Look<'_>,
) -> Result<Reply, Refused> {
    let entry = callers.shard(&text(shard)?)?;
    if when.is_some() && !entry.service.is_versioned {
        return Err(JsonError::from(CallError::NotKept).into());
    }
    let shard: Shard<()> = Shard::new(&callers.calls, entry.known.source());
    Ok(Reply::Look(Looking {
        pending: shard.when(when).look(field.map_or(0, |it| it.number), look),
        field: field.map_or("", |it| it.name).into(),
        form: field.map(|it| it.form),
    }))
}

impl Looking {
    /// Waits for the answer.
    pub fn put(self, out: &mut quintet_store::Reply<'_>) {
        let done = match self.pending.done() {
            Ok(done) => done,
            Err(error) => return out.error(&text_of(&error.into())),
        };
        let field = self.field;
        match (done.value, self.form) {
            (Looked::Nothing, None) => {
                out.array(2);
                out.integer(done.version.0 as i64);
                out.integer(done.time.0.0 as i64);
            }
            (Looked::Nothing, Some(_)) => out.null(),
            (Looked::TooLarge(length), _) => put_too_large(&field, length, VALUE_BYTES_MAX, out),
            (
                Looked::Value {
                    version,
                    time,
                    bytes,
                },
                Some(form),
            ) => match (form.value)(&bytes) {
                Some(text) if text.len() > TEXT_BYTES_MAX => {
                    let (length, most) = (text.len() as u64, TEXT_BYTES_MAX as u64);
                    put_too_large(&field, length, most, out);
                }
                Some(text) => {
                    out.array(3);
                    out.bulk(&text);
                    out.integer(version.unwrap_or(done.version.0) as i64);
                    out.integer(time as i64);
                }
                None => out.error(&format!("ERR a value of field '{field}' cannot be read")),
            },
            (
                Looked::Keys { keys, next },
                Some(Form {
                    key: Some(form), ..
                }),
            ) => {
                let texts = keys.iter().map(|key| (form.write)(key));
                let texts: Option<Vec<_>> = texts.collect();
                let next = next.map(|next| (form.write)(&next));
                let (Some(texts), None | Some(Some(_))) = (texts, &next) else {
                    let text = format!("ERR a key of field '{field}' cannot be written in JSON");
                    return out.error(&text);
                };
                out.array(2);
                out.bulk_or_null(next.flatten().as_deref());
                out.array(texts.len());
                for text in texts {
                    out.bulk(&text);
                }
            }
            _ => out.error("ERR an answer of another form"),
        }
    }
}

fn put_too_large(field: &str, length: u64, most: u64, out: &mut quintet_store::Reply<'_>) {
    out.error(&format!(
        "TOOLARGE the value of field '{field}' has {length} bytes; at most {most} are shown"
    ));
}
