//! Strings as arrays of bits.
//!
//! ```text
//!   byte      0        1
//!   bit    0123 4567 89…          bit 0 is the most significant of byte 0
//! ```

use crate::command::Op;
use crate::commands::arguments::is;
use crate::commands::{bitfield, unsupported};
use crate::context::{ReadContext, WriteContext};
use crate::error::{CommandError, CommandResult};
use crate::keyspace::Expiry;
use crate::numbers::{integer_of, parse_integer};
use crate::request::Args;
use crate::value::{ShortBytes, StringValue, Value};

/// Redis's own limit on how long a bit command makes a string, whatever this store's is.
const BYTES_MAX: u64 = 512 * 1024 * 1024;

pub(crate) const OFFSET_ERROR: CommandError =
    CommandError::Text("ERR bit offset is not an integer or out of range");

pub(crate) fn read(op: Op, context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    match op {
        Op::Getbit => {
            let offset = offset_of(args[1], 1)?;
            let bytes = bytes_of(context, args[0])?;
            context.reply.yes(bit(bytes, offset));
            Ok(())
        }
        Op::Bitcount => bit_count(context, args),
        Op::Bitpos => bit_position(context, args),
        Op::BitfieldRo => bitfield::read(context, args),
        _ => Err(unsupported()),
    }
}

pub(crate) fn write(op: Op, context: &mut WriteContext<'_>, args: Args<'_>) -> CommandResult {
    match op {
        Op::Setbit => set_bit(context, args),
        Op::Bitop => bit_op(context, args),
        Op::Bitfield => bitfield::write(context, args),
        _ => Err(unsupported()),
    }
}

fn bytes_of<'a>(context: &ReadContext<'a>, key: &[u8]) -> Result<&'a [u8], CommandError> {
    Ok(context
        .read::<StringValue>(key)?
        .map_or(&[], |value| value.bytes.as_slice()))
}

/// The number of a bit: `argument`, or for a field of `width` bits `#argument` times that.
pub(crate) fn offset_of(argument: &[u8], width: u64) -> Result<u64, CommandError> {
    let (digits, unit) = match argument {
        [b'#', digits @ ..] if width > 1 => (digits, width),
        digits => (digits, 1),
    };
    integer_of(digits)
        .and_then(|number| u64::try_from(number).ok()?.checked_mul(unit))
        .filter(|offset| offset >> 3 < BYTES_MAX)
        .ok_or(OFFSET_ERROR)
}

fn bit(bytes: &[u8], offset: u64) -> bool {
    bytes
        .get((offset >> 3) as usize)
        .is_some_and(|byte| byte >> (7 - offset % 8) & 1 == 1)
}

fn set_bit(context: &mut WriteContext<'_>, args: Args<'_>) -> CommandResult {
    let offset = offset_of(args[1], 1)?;
    let on = match args[2] {
        b"0" => false,
        b"1" => true,
        _ => {
            return Err(CommandError::Text(
                "ERR bit is not an integer or out of range",
            ));
        }
    };
    let place = (offset >> 3) as usize;
    context.keys.read::<StringValue>(args[0])?;
    context.options.check_value_len(place + 1)?;
    let mut value = context.keys.open_or_create::<StringValue>(args[0])?;
    let before = bit(&value.bytes, offset);
    if value.bytes.len() <= place || before != on {
        let value = value.change();
        value.raw = true;
        value.grow(place + 1);
        let mask = 0x80 >> (offset % 8);
        if on {
            value.bytes[place] |= mask;
        } else {
            value.bytes[place] &= !mask;
        }
    } else {
        // Redis counts a bit that stays as a change too, which WATCH notices.
        value.change().raw = true;
    }
    context.reply.yes(before);
    Ok(())
}

/// A range of bits as BITCOUNT and BITPOS are given it.
#[derive(Clone, Copy, Debug)]
struct BitRange {
    /// The first bit.
    start: u64,
    /// Behind the last bit.
    end: u64,
}

fn bit_range(start: i64, end: i64, in_bits: bool, bytes: &[u8]) -> Option<BitRange> {
    let unit = if in_bits { 1 } else { 8 };
    let total = bytes.len() as i64 * 8 / unit;
    if start < 0 && end < 0 && start > end {
        return None;
    }
    let from_end = |place: i64| {
        if place < 0 {
            (place + total).max(0)
        } else {
            place
        }
    };
    let (start, end) = (from_end(start), from_end(end).min(total - 1));
    (start <= end).then(|| BitRange {
        start: (start * unit) as u64,
        end: ((end + 1) * unit) as u64,
    })
}

fn unit_is_bit(unit: &[u8]) -> Result<bool, CommandError> {
    if is(unit, "bit") {
        Ok(true)
    } else if is(unit, "byte") {
        Ok(false)
    } else {
        Err(CommandError::Syntax)
    }
}

fn ones(bytes: &[u8], range: BitRange) -> u64 {
    let (first, last) = ((range.start >> 3) as usize, ((range.end - 1) >> 3) as usize);
    let mut count = bytes[first..=last]
        .iter()
        .map(|byte| u64::from(byte.count_ones()))
        .sum();
    let before = !(0xffu8 >> (range.start % 8));
    count -= u64::from((bytes[first] & before).count_ones());
    if !range.end.is_multiple_of(8) {
        let behind = 0xffu8 >> (range.end % 8);
        count -= u64::from((bytes[last] & behind).count_ones());
    }
    count
}

fn bit_count(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let Some(value) = context.read::<StringValue>(args[0])? else {
        context.reply.integer(0);
        return Ok(());
    };
    let bytes = value.bytes.as_slice();
    let range = match &args[1..] {
        [] => None,
        [start, end] => Some((parse_integer(start)?, parse_integer(end)?, false)),
        [start, end, unit] => {
            let (start, end) = (parse_integer(start)?, parse_integer(end)?);
            Some((start, end, unit_is_bit(unit)?))
        }
        _ => return Err(CommandError::Syntax),
    };
    let (start, end, in_bits) = range.unwrap_or((0, -1, false));
    let range = bit_range(start, end, in_bits, bytes);
    context
        .reply
        .integer(range.map_or(0, |range| ones(bytes, range)) as i64);
    Ok(())
}

fn bit_position(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let wanted = match integer_of(args[1]).ok_or(CommandError::NotInteger)? {
        0 => false,
        1 => true,
        _ => return Err(CommandError::Text("ERR The bit argument must be 1 or 0.")),
    };
    let Some(value) = context.read::<StringValue>(args[0])? else {
        context.reply.integer(if wanted { -1 } else { 0 });
        return Ok(());
    };
    let (start, end, in_bits) = match &args[2..] {
        [] => (0, None, false),
        [start] => (parse_integer(start)?, None, false),
        [start, end] => (parse_integer(start)?, Some(parse_integer(end)?), false),
        [start, end, unit] => {
            let start = parse_integer(start)?;
            let in_bits = unit_is_bit(unit)?;
            (start, Some(parse_integer(end)?), in_bits)
        }
        _ => return Err(CommandError::Syntax),
    };
    let bytes = value.bytes.as_slice();
    let from_end = end.unwrap_or(-1);
    let unit = if in_bits { 1 } else { 8 };
    let total = bytes.len() as i64 * 8 / unit;
    // Unlike BITCOUNT, a reversed range of negative places is clamped first.
    let clamp = |place: i64| {
        if place < 0 {
            (place + total).max(0)
        } else {
            place
        }
    };
    let (first, last) = (clamp(start), clamp(from_end).min(total - 1));
    if first > last {
        context.reply.integer(-1);
        return Ok(());
    }
    let range = BitRange {
        start: (first * unit) as u64,
        end: ((last + 1) * unit) as u64,
    };
    let position = match first_bit(bytes, range, wanted) {
        Some(position) => position as i64,
        // Behind the string there are zeros without end, unless the range says where it ends.
        None if !wanted && end.is_none() => bytes.len() as i64 * 8,
        None => -1,
    };
    context.reply.integer(position);
    Ok(())
}

fn first_bit(bytes: &[u8], range: BitRange, wanted: bool) -> Option<u64> {
    let nothing = if wanted { 0x00 } else { 0xff };
    let mut place = range.start;
    while place < range.end {
        if place.is_multiple_of(8) && bytes[(place >> 3) as usize] == nothing {
            place += 8;
        } else if bit(bytes, place) == wanted {
            return Some(place);
        } else {
            place += 1;
        }
    }
    None
}

fn bit_op(context: &mut WriteContext<'_>, args: Args<'_>) -> CommandResult {
    let (name, target, sources) = (args[0], args[1], &args[2..]);
    let names = ["and", "or", "xor", "not"];
    let which = names
        .iter()
        .position(|op| is(name, op))
        .ok_or(CommandError::Syntax)?;
    if which == 3 && sources.len() != 1 {
        return Err(CommandError::Text(
            "ERR BITOP NOT must be called with a single source key.",
        ));
    }
    let mut len = 0;
    for source in sources {
        let value = context.keys.read::<StringValue>(source)?;
        len = len.max(value.map_or(0, |value| value.bytes.len()));
    }
    if len == 0 {
        context.keys.remove(target);
        context.reply.integer(0);
        return Ok(());
    }
    let mut result = ShortBytes::from_elem(0, len);
    for (at, source) in sources.iter().enumerate() {
        let value = context.keys.read::<StringValue>(source)?;
        let bytes = value.map_or(&[][..], |value| &value.bytes);
        let padded = bytes.iter().copied().chain(core::iter::repeat(0));
        for (into, from) in result.iter_mut().zip(padded) {
            *into = match which {
                _ if at == 0 => from,
                0 => *into & from,
                1 => *into | from,
                _ => *into ^ from,
            };
        }
    }
    if which == 3 {
        result.iter_mut().for_each(|byte| *byte = !*byte);
    }
    let value = StringValue {
        bytes: result,
        raw: true,
    };
    context
        .keys
        .set(target, Value::String(value), Expiry::Never);
    context.reply.count(len);
    Ok(())
}
