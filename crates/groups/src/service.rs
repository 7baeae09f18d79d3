//! The traits that the macros implement: a service as a list of fields and a list of methods.

use crate::{
    CallContext, Place, ShardView, encoding,
    fields::{AnyField, Persistent, PersistentMap},
    look::Form,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::marker::PhantomData;

/// A replicated service: a struct of fields. `#[derive(Service)]` implements it.
pub trait Service: Default + Send + 'static {
    /// The struct's name.
    const NAME: &'static str;
    /// Whether all its fields answer as of earlier versions.
    const VERSIONED: bool;
    /// A number of the names and types of its fields: members compare it.
    const FIELDS: u32;
    /// All fields by their names.
    const NAMED_FIELDS: &'static [NamedField];

    /// The same content, sharing storage.
    #[must_use]
    fn fork(&self) -> Self;
    /// All fields with their numbers.
    fn each(&self, visit: &mut dyn FnMut(u32, &dyn AnyField));
    /// All fields with their numbers.
    fn each_mut(&mut self, visit: &mut dyn FnMut(u32, &mut dyn AnyField));
}

/// A field of a service, for programs without its types.
#[derive(Clone, Copy, Debug)]
pub struct NamedField {
    /// Its name.
    pub name: &'static str,
    /// Its number.
    pub number: u32,
    /// The text of its keys and values.
    pub form: Form,
}

/// A service of which all fields have versions: it can be asked for its past.
/// `#[derive(Service)]` implements it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has a field without versions, so it cannot be asked for its past",
    label = "a field is `Volatile` or `VolatileMap`",
    note = "`Persistent` and `PersistentMap` have versions"
)]
pub trait Versioned: Service {}

/// How a method is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MethodKind {
    /// In order, at every member.
    Ordered,
    /// At one member.
    Query,
    /// At each member, with an answer of each.
    Gather,
    /// By the members themselves, in order, when the shard's members change.
    View,
}

/// A method of a service.
#[derive(Clone, Copy, Debug)]
pub struct Method {
    /// Its number: of its name and the types of its arguments.
    pub number: u32,
    /// Its name.
    pub name: &'static str,
    /// Kind, name, types of arguments and answer.
    pub signature: &'static str,
    /// The signature's number: members compare it.
    pub terms: u32,
    /// How it is called.
    pub kind: MethodKind,
    /// Whether it is told its [`Place`].
    pub has_place: bool,
}

/// The methods of a service. `#[service]` implements it.
pub trait Methods: Service {
    /// All methods that can be called.
    const METHODS: &'static [Method];
    /// The method that is told of the shard's members, if there is one.
    const VIEW: Option<Method> = None;

    /// A call by the name of its method, with the arguments as an array in JSON; `None` if there is no
    /// such method.
    fn call_of_json(method: &str, arguments: &str) -> Option<Result<JsonCall, String>>;
    /// An answer of a method in JSON.
    fn answer_to_json(method: u32, value: &[u8]) -> Option<String>;

    /// Executes an ordered method and appends its answer to `reply`; `None` if there is none with
    /// this number that takes these arguments.
    fn call_ordered(
        &mut self,
        context: &mut CallContext<'_>,
        method: u32,
        arguments: &[u8],
        reply: &mut Vec<u8>,
    ) -> Option<()>;
    /// Executes [`Self::VIEW`].
    fn call_view(&mut self, _: &mut CallContext<'_>, _: &ShardView) {}
    /// The same of a query, or of a member's part of a gather; `None` also where the method is told its
    /// place and there is none.
    fn call_query(
        &self,
        place: Option<&Place>,
        method: u32,
        arguments: &[u8],
        reply: &mut Vec<u8>,
    ) -> Option<()>;
}

/// An answer of a method: plain data without references.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the answer of a service's method",
    label = "not plain data",
    note = "answers are serde's `Serialize` and `DeserializeOwned`: derive them"
)]
pub trait Reply: Serialize + DeserializeOwned + Send + 'static {}
impl<T: Serialize + DeserializeOwned + Send + 'static> Reply for T {}

/// A field of a service, for queries of its past.
#[derive(Debug)]
pub struct FieldOf<S, F> {
    number: u32,
    types: PhantomData<fn() -> (S, F)>,
}

impl<S, F> Clone for FieldOf<S, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S, F> Copy for FieldOf<S, F> {}

impl<S, F> FieldOf<S, F> {
    /// The field's number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.number
    }

    /// The field with this number. For the macro.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self {
            number,
            types: PhantomData,
        }
    }
}

/// A field whose past can be asked for.
pub trait HasHistory {
    /// The name of one of its values: nothing, or the key of a map.
    type Key: Serialize;
    /// The value.
    type Value: DeserializeOwned;

    /// The key, encoded.
    fn key(key: &Self::Key) -> Option<Vec<u8>>;
}

impl<T: crate::fields::Value> HasHistory for Persistent<T> {
    type Key = ();
    type Value = T;

    fn key((): &()) -> Option<Vec<u8>> {
        None
    }
}

impl<K: crate::fields::Key, V: crate::fields::Value> HasHistory for PersistentMap<K, V> {
    type Key = K;
    type Value = V;

    fn key(key: &K) -> Option<Vec<u8>> {
        Some(encoding::encode(key))
    }
}

/// A call that was read from JSON.
#[derive(Clone, Debug)]
pub struct JsonCall {
    /// The number of the method.
    pub method: u32,
    /// How it is called.
    pub kind: MethodKind,
    /// The arguments, as they travel.
    pub arguments: Vec<u8>,
}

/// Bytes in JSON: a string, or an array of numbers.
#[derive(Deserialize)]
#[serde(untagged)]
pub enum JsonBytes {
    /// Their text.
    Text(String),
    /// Each byte.
    Numbers(Vec<u8>),
}

impl Serialize for JsonBytes {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(match self {
            Self::Text(text) => text.as_bytes(),
            Self::Numbers(numbers) => numbers,
        })
    }
}

/// Bytes that are encoded as they are, for the macro's code.
#[derive(Clone, Copy, Debug)]
pub struct RawBytes<'a>(pub &'a [u8]);

impl Serialize for RawBytes<'_> {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(self.0)
    }
}

/// Reads arguments from JSON, for the macro's code.
///
/// # Errors
/// When they are others; it names the types of `signature`.
pub fn call_of_json<T: Serialize + DeserializeOwned>(
    method: u32,
    kind: MethodKind,
    signature: &str,
    arguments: &str,
) -> Result<JsonCall, String> {
    let read: T = serde_json::from_str(arguments)
        .map_err(|error| format!("the arguments of '{signature}': {error}"))?;
    Ok(JsonCall {
        method,
        kind,
        arguments: encoding::encode(&read),
    })
}

/// Reads no arguments from JSON, for the macro's code.
///
/// # Errors
/// When there are some.
pub fn call_of_empty_json(
    method: u32,
    kind: MethodKind,
    signature: &str,
    arguments: &str,
) -> Result<JsonCall, String> {
    let none: Result<[(); 0], _> = serde_json::from_str(arguments);
    none.map_err(|error| format!("the arguments of '{signature}': {error}"))?;
    Ok(JsonCall {
        method,
        kind,
        arguments: Vec::new(),
    })
}

/// Writes an answer in JSON, for the macro's code.
#[must_use]
pub fn answer_to_json<T: Reply>(value: &[u8]) -> Option<String> {
    let value: T = encoding::decode(value)?;
    serde_json::to_string(&value).ok()
}

/// Arguments of a call; `None` when the bytes are others. For the macro's code.
pub fn arguments<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Option<T> {
    encoding::decode(bytes)
}

/// Appends an answer, for the macro's code.
pub fn answer<T: Reply>(value: &T, reply: &mut Vec<u8>) {
    encoding::append(value, reply);
}

/// All methods that members compare.
pub(crate) fn compared<S: Methods>() -> impl Iterator<Item = Method> {
    S::METHODS.iter().copied().chain(S::VIEW)
}

/// A number of the signatures of all methods, whatever their order.
pub fn terms_of<S: Methods>() -> u32 {
    let term = |method: Method| method.number.rotate_left(7) ^ method.terms;
    compared::<S>().map(term).fold(S::FIELDS, u32::wrapping_add)
}
