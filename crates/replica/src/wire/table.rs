//! Encodings as tables: which fields a value has on the wire, in which order, and how each stands
//! there.
//!
//! ```text
//!   wire! ──► encode, decode
//!    │   field             as its type does (Field)
//!    └── field as Codec    as this codec does
//! ```

use super::{DecodeError, Frame, Reader, Wire, Writer};
use crate::{BatchId, CommandTime, FrontendId, Incarnation, Level, ReplicaId, ReplicaSet, Slot};
use alloc::{boxed::Box, sync::Arc, vec::Vec};
use bytes::Bytes;
use core::marker::PhantomData;
use smallvec::{Array, SmallVec};

/// How a value stands in a message. A type with an encoding of its own stands as that.
pub trait Field: Sized {
    /// The least number of bytes that it takes: how many of them can follow is known from the
    /// length of the rest, before anything is allocated.
    const SIZE_MIN: usize;
    /// Appends it.
    fn put(&self, writer: &mut Writer<'_>);
    /// Reads it; `field` is its name for errors.
    ///
    /// # Errors
    /// On bytes that [`Self::put`] could not have written.
    fn get(reader: &mut Reader, field: &'static str) -> Result<Self, DecodeError>;
}

impl<T: Wire> Field for T {
    const SIZE_MIN: usize = T::SIZE_MIN;
    #[inline]
    fn put(&self, writer: &mut Writer<'_>) {
        self.encode(writer);
    }
    #[inline]
    fn get(reader: &mut Reader, _: &'static str) -> Result<Self, DecodeError> {
        Self::decode(reader)
    }
}

macro_rules! fields {
    ($($type:ty [$size:literal]: |$value:ident, $writer:ident| $put:expr,
        |$reader:ident, $field:ident| $get:expr;)*) => {$(
        impl Field for $type {
            const SIZE_MIN: usize = $size;
            #[inline]
            fn put(&self, $writer: &mut Writer<'_>) {
                let $value = self;
                $put;
            }
            #[inline]
            fn get($reader: &mut Reader, $field: &'static str) -> Result<Self, DecodeError> {
                $get
            }
        }
    )*};
}
fields! {
    bool [1]: |it, writer| writer.bool(*it), |reader, field| reader.bool(field);
    u8 [1]: |it, writer| writer.u8(*it), |reader, field| reader.u8(field);
    u32 [4]: |it, writer| writer.u32(*it), |reader, field| reader.u32(field);
    u64 [8]: |it, writer| writer.u64(*it), |reader, field| reader.u64(field);
    u128 [16]: |it, writer| writer.u128(*it), |reader, field| reader.u128(field);
    Slot [8]: |it, writer| writer.u64(it.0), |reader, field| reader.slot(field);
    ReplicaId [2]: |it, writer| writer.u16(it.0), |reader, field| reader.replica(field);
    ReplicaSet [16]: |it, writer| writer.u128(it.0), |reader, field| reader.replicas(field);
    Incarnation [8]: |it, writer| writer.u64(it.0), |reader, field| reader.u64(field).map(Self);
    CommandTime [8]: |it, writer| writer.u64(it.0), |reader, field| reader.u64(field).map(Self);
    BatchId [8]: |it, writer| writer.u64(it.0), |reader, field| reader.u64(field).map(Self);
    FrontendId [8]: |it, writer| writer.u64(it.0), |reader, field| reader.u64(field).map(Self);
    Level [1]: |it, writer| writer.u8(*it as u8),
        |reader, field| Self::from_byte(reader.u8(field)?).ok_or(DecodeError::Bad(field));
    Bytes [4]: |it, writer| writer.blob(it), |reader, field| reader.blob(field);
    Frame [4]: |it, writer| writer.rope(it), |reader, field| reader.blob(field).map(Self::from);
}

/// After a byte that says whether it is there.
impl<T: Field> Field for Option<T> {
    const SIZE_MIN: usize = 1;
    fn put(&self, writer: &mut Writer<'_>) {
        writer.bool(self.is_some());
        if let Some(it) = self {
            it.put(writer);
        }
    }
    fn get(reader: &mut Reader, field: &'static str) -> Result<Self, DecodeError> {
        Ok(match reader.bool(field)? {
            true => Some(T::get(reader, field)?),
            false => None,
        })
    }
}

/// After their number, in four bytes.
impl<T: Field> Field for Vec<T> {
    const SIZE_MIN: usize = 4;
    fn put(&self, writer: &mut Writer<'_>) {
        writer.length(self.len());
        self.iter().for_each(|it| it.put(writer));
    }
    fn get(reader: &mut Reader, field: &'static str) -> Result<Self, DecodeError> {
        let count = reader.length(T::SIZE_MIN, field)?;
        let mut list = Self::with_capacity(count);
        for _ in 0..count {
            list.push(T::get(reader, field)?);
        }
        Ok(list)
    }
}

/// As a `Vec`.
impl<A: Array<Item: Field>> Field for SmallVec<A> {
    const SIZE_MIN: usize = 4;
    fn put(&self, writer: &mut Writer<'_>) {
        writer.length(self.len());
        self.iter().for_each(|it| it.put(writer));
    }
    fn get(reader: &mut Reader, field: &'static str) -> Result<Self, DecodeError> {
        let count = reader.length(A::Item::SIZE_MIN, field)?;
        items(count, reader, field)
    }
}

/// Reads `count` elements. (Collecting results would not know how many come.)
fn items<A: Array<Item: Field>>(
    count: usize,
    reader: &mut Reader,
    field: &'static str,
) -> Result<SmallVec<A>, DecodeError> {
    let mut list = SmallVec::with_capacity(count);
    for _ in 0..count {
        list.push(A::Item::get(reader, field)?);
    }
    Ok(list)
}

macro_rules! tuples {
    ($(($($item:ident $at:tt),+);)*) => {$(
        /// One after the other.
        impl<$($item: Field),+> Field for ($($item,)+) {
            const SIZE_MIN: usize = 0 $(+ $item::SIZE_MIN)+;
            fn put(&self, writer: &mut Writer<'_>) {
                $(self.$at.put(writer);)+
            }
            fn get(reader: &mut Reader, field: &'static str) -> Result<Self, DecodeError> {
                Ok(($($item::get(reader, field)?,)+))
            }
        }
    )*};
}
tuples! { (A 0, B 1); (A 0, B 1, C 2); }

macro_rules! pointers {
    ($($pointer:ident)*) => {$(
        /// As what it points to.
        impl<T: Wire> Wire for $pointer<T> {
            const SIZE_MIN: usize = T::SIZE_MIN;
            fn encode(&self, writer: &mut Writer<'_>) {
                T::encode(self, writer);
            }
            fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
                T::decode(reader).map(Self::new)
            }
        }
    )*};
}
pointers! { Box Arc }

/// An enumeration whose variants stand in a message among those of another one, behind the bytes
/// that the other one gives them.
pub trait Variants: Sized {
    /// Which variant it is, from 0.
    fn number(&self) -> usize;
    /// Appends it.
    fn put(&self, writer: &mut Writer<'_>);
    /// Reads the variant of this number.
    ///
    /// # Errors
    /// On bytes that [`Self::put`] could not have written.
    fn get(number: usize, reader: &mut Reader) -> Result<Self, DecodeError>;
}

/// Another way than its type's own for a field to stand in a message.
pub trait Codec<T> {
    /// The least number of bytes that it takes, for lists of it.
    const SIZE_MIN: usize = 1;
    /// Appends the value.
    fn put(value: &T, writer: &mut Writer<'_>);
    /// Reads it; `field` is its name for errors.
    ///
    /// # Errors
    /// On bytes that [`Self::put`] could not have written.
    fn get(reader: &mut Reader, field: &'static str) -> Result<T, DecodeError>;
}

/// The way of its type, where a codec is to be named.
pub struct Plain;

impl<T: Field> Codec<T> for Plain {
    const SIZE_MIN: usize = T::SIZE_MIN;
    fn put(value: &T, writer: &mut Writer<'_>) {
        value.put(writer);
    }
    fn get(reader: &mut Reader, field: &'static str) -> Result<T, DecodeError> {
        T::get(reader, field)
    }
}

macro_rules! tuple_codecs {
    ($(($($item:ident $codec:ident $at:tt),+);)*) => {$(
        /// One after the other.
        impl<$($item, $codec: Codec<$item>),+> Codec<($($item,)+)> for ($($codec,)+) {
            const SIZE_MIN: usize = 0 $(+ $codec::SIZE_MIN)+;
            fn put(value: &($($item,)+), writer: &mut Writer<'_>) {
                $($codec::put(&value.$at, writer);)+
            }
            fn get(
                reader: &mut Reader,
                field: &'static str,
            ) -> Result<($($item,)+), DecodeError> {
                Ok(($($codec::get(reader, field)?,)+))
            }
        }
    )*};
}
tuple_codecs! { (A CA 0, B CB 1); (A CA 0, B CB 1, C CC 2); }

/// A list of which each element stands so.
pub struct Each<C>(PhantomData<C>);

impl<T, C: Codec<T>> Codec<Vec<T>> for Each<C> {
    const SIZE_MIN: usize = 4;
    fn put(value: &Vec<T>, writer: &mut Writer<'_>) {
        writer.length(value.len());
        value.iter().for_each(|it| C::put(it, writer));
    }
    fn get(reader: &mut Reader, field: &'static str) -> Result<Vec<T>, DecodeError> {
        let count = reader.length(C::SIZE_MIN, field)?;
        (0..count).map(|_| C::get(reader, field)).collect()
    }
}

/// A number that counts something: [`Reader::number`].
pub struct Number;

impl Codec<u64> for Number {
    const SIZE_MIN: usize = 8;
    fn put(value: &u64, writer: &mut Writer<'_>) {
        writer.u64(*value);
    }
    fn get(reader: &mut Reader, field: &'static str) -> Result<u64, DecodeError> {
        reader.number(field)
    }
}

/// A number that is at most `MAX`.
pub struct UpTo<const MAX: u64>;

impl<const MAX: u64> Codec<u64> for UpTo<MAX> {
    fn put(value: &u64, writer: &mut Writer<'_>) {
        writer.u64(*value);
    }
    fn get(reader: &mut Reader, field: &'static str) -> Result<u64, DecodeError> {
        match reader.u64(field)? {
            number if number <= MAX => Ok(number),
            _ => Err(DecodeError::Bad(field)),
        }
    }
}

/// A slot that a list begins with: from 1.
pub struct FirstSlot;

impl Codec<Slot> for FirstSlot {
    fn put(value: &Slot, writer: &mut Writer<'_>) {
        value.put(writer);
    }
    fn get(reader: &mut Reader, field: &'static str) -> Result<Slot, DecodeError> {
        match reader.slot(field)? {
            Slot(0) => Err(DecodeError::Bad(field)),
            slot => Ok(slot),
        }
    }
}

/// A slot from 1, or none: 0.
pub struct OrZero;

impl Codec<Option<Slot>> for OrZero {
    fn put(value: &Option<Slot>, writer: &mut Writer<'_>) {
        writer.u64(value.map_or(0, |slot| slot.0));
    }
    fn get(reader: &mut Reader, field: &'static str) -> Result<Option<Slot>, DecodeError> {
        Ok(Some(reader.slot(field)?).filter(|slot| slot.0 > 0))
    }
}

/// A replica, or none: the highest number.
pub struct OrNone;

impl Codec<Option<ReplicaId>> for OrNone {
    fn put(value: &Option<ReplicaId>, writer: &mut Writer<'_>) {
        writer.u16(value.map_or(u16::MAX, |id| id.0));
    }
    fn get(reader: &mut Reader, field: &'static str) -> Result<Option<ReplicaId>, DecodeError> {
        reader.replica_or(u16::MAX, field)
    }
}

/// A list with one element for each member, or an empty one.
pub struct PerMember<C = Plain>(PhantomData<C>);

impl<T, C: Codec<T>> Codec<Vec<T>> for PerMember<C> {
    fn put(value: &Vec<T>, writer: &mut Writer<'_>) {
        Each::<C>::put(value, writer);
    }
    fn get(reader: &mut Reader, field: &'static str) -> Result<Vec<T>, DecodeError> {
        let list = Each::<C>::get(reader, field)?;
        reader.one_per_member(list.len(), field)?;
        Ok(list)
    }
}

/// The same after their number in one byte.
impl<A: Array<Item: Field>> Codec<SmallVec<A>> for PerMember {
    fn put(value: &SmallVec<A>, writer: &mut Writer<'_>) {
        Short::put(value, writer);
    }
    fn get(reader: &mut Reader, field: &'static str) -> Result<SmallVec<A>, DecodeError> {
        let count = reader.u8(field)?;
        items(reader.one_per_member(count.into(), field)?, reader, field)
    }
}

/// A list of fewer than 256 elements, after their number in one byte.
pub struct Short;

impl<A: Array<Item: Field>> Codec<SmallVec<A>> for Short {
    fn put(value: &SmallVec<A>, writer: &mut Writer<'_>) {
        writer.u8(value.len() as u8);
        value.iter().for_each(|it| it.put(writer));
    }
    fn get(reader: &mut Reader, field: &'static str) -> Result<SmallVec<A>, DecodeError> {
        let count = reader.u8(field)?;
        items(count.into(), reader, field)
    }
}

/// Not at all: what the field is without being told.
pub struct Absent;

impl<T: Default> Codec<T> for Absent {
    fn put(_: &T, _: &mut Writer<'_>) {}
    fn get(_: &mut Reader, _: &'static str) -> Result<T, DecodeError> {
        Ok(T::default())
    }
}

/// At the end of what is kept: nothing for what earlier versions do not know, when it is empty.
pub struct Trailing;

impl<T: Field + Default + PartialEq> Codec<T> for Trailing {
    fn put(value: &T, writer: &mut Writer<'_>) {
        if *value != T::default() {
            value.put(writer);
        }
    }
    fn get(reader: &mut Reader, field: &'static str) -> Result<T, DecodeError> {
        match reader.remaining() {
            0 => Ok(T::default()),
            _ => T::get(reader, field),
        }
    }
}

/// Gives a type its encoding: its fields in the order of the wire, each as its type stands there
/// ([`Field`]) or `as` a [`Codec`] does. A variant of an enumeration stands behind the byte that is
/// written before it; of several rows for one variant, the first whose condition holds is written.
/// `[n]` is the least number of bytes that the value takes. `where check` names a function that
/// says of a value that was read whether it can be. A first row `[6, 9] = Name(variants)`
/// gives the [`Variants`] in a variant a byte each.
///
/// ```
/// use quintet_replica::{Slot, Wire};
///
/// #[derive(Debug, PartialEq)]
/// pub struct Range {
///     first: Slot,
///     last: Slot,
/// }
/// fn in_order(range: &Range) -> bool {
///     range.first <= range.last
/// }
/// quintet_replica::wire! { struct Range [16] { first, last } where in_order }
///
/// #[derive(Debug, PartialEq)]
/// pub enum Message {
///     Fetch(Range),
///     Heartbeat,
///     Trimmed { first: Slot, until: Option<Slot> },
///     Vote(Vote),
/// }
/// #[derive(Debug, PartialEq)]
/// pub enum Vote {
///     Request { round: u64 },
///     Grant { round: u64 },
/// }
/// quintet_replica::wire! {
///     variants Vote { 0 = Request { round }, 1 = Grant { round } }
/// }
/// quintet_replica::wire! {
///     enum Message {
///         [3, 5] = Vote(variants),
///         0 = Fetch(range),
///         1 = Trimmed { first, until as quintet_replica::OrZero },
///         2 = Heartbeat,
///     }
/// }
/// let bytes = Message::Trimmed { first: Slot(3), until: None }.encode_to_bytes();
/// assert_eq!(bytes[..], [1, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
/// let grant = Message::Vote(Vote::Grant { round: 7 });
/// assert_eq!(grant.encode_to_bytes()[..2], [5, 7]);
/// assert_eq!(Message::decode_all(grant.encode_to_bytes()), Ok(grant));
/// let backwards = Range { first: Slot(3), last: Slot(2) };
/// assert!(Message::decode_all(Message::Fetch(backwards).encode_to_bytes()).is_err());
/// ```
#[macro_export]
macro_rules! wire {
    (@put $value:expr, $writer:ident) => { $crate::Field::put($value, $writer) };
    (@put $value:expr, $writer:ident, $codec:ty) => {
        <$codec as $crate::Codec<_>>::put($value, $writer)
    };
    (@get $field:ident, $reader:ident) => { $crate::Field::get($reader, stringify!($field))? };
    (@get $field:ident, $reader:ident, $codec:ty) => {
        <$codec as $crate::Codec<_>>::get($reader, stringify!($field))?
    };

    (
        struct $name:ident $(<$entry:ident>)? $([$least:expr])? {
            $($field:ident $(as $codec:ty)?),* $(,)?
        } $(where $valid:path)?
    ) => {
        impl $(<$entry: $crate::Wire>)? $crate::Wire for $name $(<$entry>)? {
            $(const SIZE_MIN: usize = $least;)?
            fn encode(&self, writer: &mut $crate::Writer<'_>) {
                $($crate::wire!(@put &self.$field, writer $(, $codec)?);)*
            }
            fn decode(reader: &mut $crate::Reader) -> Result<Self, $crate::DecodeError> {
                let value = Self { $($field: $crate::wire!(@get $field, reader $(, $codec)?)),* };
                $(if !$valid(&value) {
                    return Err($crate::DecodeError::Bad(stringify!($name)));
                })?
                Ok(value)
            }
        }
    };

    (
        enum $name:ident $([$least:expr])? {
            $([$($inner_tag:literal),+] = $inner:ident(variants),)?
            $($tag:literal = $variant:ident
                $({ $($field:ident $(as $codec:ty)?),* $(,)? })?
                $(( $($item:ident $(as $item_codec:ty)?),* ))?
                $(if $condition:expr)?
            ),* $(,)?
        } $(where $valid:path)?
    ) => {
        impl $crate::Wire for $name {
            $(const SIZE_MIN: usize = $least;)?
            fn encode(&self, writer: &mut $crate::Writer<'_>) {
                match self {
                    $(Self::$variant $({ $($field),* })? $(( $($item),* ))? $(if $condition)? => {
                        writer.u8($tag);
                        $($($crate::wire!(@put $field, writer $(, $codec)?);)*)?
                        $($($crate::wire!(@put $item, writer $(, $item_codec)?);)*)?
                    })*
                    $(Self::$inner(it) => {
                        writer.u8([$($inner_tag),+][$crate::Variants::number(it)]);
                        $crate::Variants::put(it, writer);
                    })?
                }
            }
            fn decode(reader: &mut $crate::Reader) -> Result<Self, $crate::DecodeError> {
                const TAG: &str = concat!("kind of ", stringify!($name));
                let value = match reader.u8(TAG)? {
                    $($tag => Self::$variant
                        $({ $($field: $crate::wire!(@get $field, reader $(, $codec)?)),* })?
                        $(( $($crate::wire!(@get $item, reader $(, $item_codec)?)),* ))?,)*
                    $(tag @ ($($inner_tag)|+) => {
                        let mut tags = [$($inner_tag),+].into_iter();
                        let number = tags.position(|it| it == tag).unwrap_or_default();
                        Self::$inner($crate::Variants::get(number, reader)?)
                    })?
                    _ => return Err($crate::DecodeError::Bad(TAG)),
                };
                $(if !$valid(&value) {
                    return Err($crate::DecodeError::Bad(stringify!($name)));
                })?
                Ok(value)
            }
        }
    };

    (variants $name:ident $(<$entry:ident>)? {
        $($number:literal = $variant:ident { $($field:ident $(as $codec:ty)?),* $(,)? }),* $(,)?
    }) => {
        impl $(<$entry: $crate::Wire>)? $crate::Variants for $name $(<$entry>)? {
            fn number(&self) -> usize {
                match self {
                    $(Self::$variant { .. } => $number,)*
                }
            }
            fn put(&self, writer: &mut $crate::Writer<'_>) {
                match self {
                    $(Self::$variant { $($field),* } => {
                        $($crate::wire!(@put $field, writer $(, $codec)?);)*
                    })*
                }
            }
            fn get(
                number: usize,
                reader: &mut $crate::Reader,
            ) -> Result<Self, $crate::DecodeError> {
                Ok(match number {
                    $($number => Self::$variant {
                        $($field: $crate::wire!(@get $field, reader $(, $codec)?)),*
                    },)*
                    _ => return Err($crate::DecodeError::Bad(stringify!($name))),
                })
            }
        }
    };
}
