//! BITFIELD: integers of any width at any bit of a string.
//!
//! ```text
//!   GET u4 2        bits  01[2345]67 …        SET, INCRBY write back; OVERFLOW says what
//!                            └ 0..15          becomes of a number that does not fit
//! ```

use crate::commands::arguments::is;
use crate::commands::bits::offset_of;
use crate::context::{ReadContext, WriteContext};
use crate::error::{CommandError, CommandResult};
use crate::numbers::{integer_of, parse_integer};
use crate::reply::Reply;
use crate::request::Args;
use crate::value::StringValue;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Get,
    Set(i64),
    Add(i64),
}

#[derive(Clone, Copy, Debug)]
struct Step {
    action: Action,
    signed: bool,
    width: u32,
    offset: u64,
    overflow: Overflow,
}

impl Step {
    const fn bytes(&self) -> usize {
        (self.offset + self.width as u64).div_ceil(8) as usize
    }

    /// The number that stands in `bytes`; what is behind them is zero.
    fn load(&self, bytes: &[u8]) -> i64 {
        let mut number = 0u64;
        for place in self.offset..self.offset + u64::from(self.width) {
            let byte = bytes.get((place >> 3) as usize).copied().unwrap_or(0);
            number = number << 1 | u64::from(byte >> (7 - place % 8) & 1);
        }
        let unused = 64 - self.width;
        if self.signed {
            (number << unused) as i64 >> unused
        } else {
            number as i64
        }
    }

    fn store(&self, bytes: &mut [u8], number: i64) {
        for bit in 0..self.width {
            let place = self.offset + u64::from(self.width - 1 - bit);
            let mask = 0x80u8 >> (place % 8);
            let byte = &mut bytes[(place >> 3) as usize];
            if number >> bit & 1 == 1 {
                *byte |= mask;
            } else {
                *byte &= !mask;
            }
        }
    }

    /// The value to store when `number` is wanted; `None` if it does not fit and must not be
    /// stored.
    fn fit(&self, number: i128) -> Option<i64> {
        let (low, high) = if self.signed {
            (
                -(1i128 << (self.width - 1)),
                (1i128 << (self.width - 1)) - 1,
            )
        } else {
            (0, (1i128 << self.width) - 1)
        };
        if (low..=high).contains(&number) {
            return Some(number as i64);
        }
        match self.overflow {
            Overflow::Fail => None,
            Overflow::Saturate => Some(if number > high { high } else { low } as i64),
            Overflow::Wrap => {
                let unused = 64 - self.width;
                let wrapped = (number as u64) << unused;
                Some(if self.signed {
                    wrapped as i64 >> unused
                } else {
                    (wrapped >> unused) as i64
                })
            }
        }
    }

    /// The number that `argument` stands for in a SET or INCRBY of this field.
    fn wanted(&self, number: i64) -> i128 {
        // A negative number given for an unsigned field is the unsigned one of the same bits.
        if self.signed {
            i128::from(number)
        } else {
            i128::from(number as u64)
        }
    }
}

fn field_type(argument: &[u8]) -> Result<(bool, u32), CommandError> {
    let width = |digits| integer_of(digits).filter(|width| (1..=64).contains(width));
    match argument {
        [b'i', digits @ ..] => width(digits).map(|width| (true, width as u32)),
        [b'u', digits @ ..] => width(digits)
            .filter(|width| *width < 64)
            .map(|width| (false, width as u32)),
        _ => None,
    }
    .ok_or(CommandError::Text(
        "ERR Invalid bitfield type. Use something like i16 u8. \
         Note that u64 is not supported but i64 is.",
    ))
}

fn parse(mut args: Args<'_>) -> Result<Vec<Step>, CommandError> {
    let mut steps = Vec::new();
    let mut overflow = Overflow::Wrap;
    while let [name, rest @ ..] = args {
        if is(name, "overflow")
            && let [how, rest @ ..] = rest
        {
            overflow = if is(how, "wrap") {
                Overflow::Wrap
            } else if is(how, "sat") {
                Overflow::Saturate
            } else if is(how, "fail") {
                Overflow::Fail
            } else {
                return Err(CommandError::Text("ERR Invalid OVERFLOW type specified"));
            };
            args = rest;
            continue;
        }
        let takes_number = is(name, "set") || is(name, "incrby");
        let (kind, offset, number, rest) = match rest {
            [kind, offset, rest @ ..] if is(name, "get") => (kind, offset, None, rest),
            [kind, offset, number, rest @ ..] if takes_number => (kind, offset, Some(number), rest),
            _ => return Err(CommandError::Syntax),
        };
        let (signed, width) = field_type(kind)?;
        let offset = if offset.first() == Some(&b'#') && width == 1 {
            offset_of(&offset[1..], 1)?
        } else {
            offset_of(offset, u64::from(width))?
        };
        let action = match number {
            None => Action::Get,
            Some(number) if is(name, "set") => Action::Set(parse_integer(number)?),
            Some(number) => Action::Add(parse_integer(number)?),
        };
        steps.push(Step {
            action,
            signed,
            width,
            offset,
            overflow,
        });
        args = rest;
    }
    Ok(steps)
}

fn reply_gets(reply: &mut Reply<'_>, steps: &[Step], bytes: &[u8]) {
    reply.array(steps.len());
    for step in steps {
        reply.integer(step.load(bytes));
    }
}

pub(crate) fn read(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let steps = parse(&args[1..])?;
    if steps.iter().any(|step| step.action != Action::Get) {
        return Err(CommandError::Text(
            "ERR BITFIELD_RO only supports the GET subcommand",
        ));
    }
    let value = context.read::<StringValue>(args[0])?;
    let bytes = value.map_or(&[][..], |value| &value.bytes);
    reply_gets(&mut context.reply, &steps, bytes);
    Ok(())
}

pub(crate) fn write(context: &mut WriteContext<'_>, args: Args<'_>) -> CommandResult {
    let key = args[0];
    let steps = parse(&args[1..])?;
    let value = context.keys.read::<StringValue>(key)?;
    let written = steps.iter().filter(|step| step.action != Action::Get);
    let Some(end) = written.map(Step::bytes).max() else {
        let bytes = value.map_or(&[][..], |value| &value.bytes);
        reply_gets(&mut context.reply, &steps, bytes);
        return Ok(());
    };
    context.options.check_value_len(end)?;
    let mut value = context.keys.open_or_create::<StringValue>(key)?;
    let value = value.change();
    value.raw = true;
    value.grow(end);
    context.reply.array(steps.len());
    for step in &steps {
        let before = step.load(&value.bytes);
        let (wanted, answer_before) = match step.action {
            Action::Get => {
                context.reply.integer(before);
                continue;
            }
            Action::Set(number) => (step.wanted(number), true),
            Action::Add(number) => (i128::from(before) + i128::from(number), false),
        };
        match step.fit(wanted) {
            Some(after) => {
                step.store(&mut value.bytes, after);
                context
                    .reply
                    .integer(if answer_before { before } else { after });
            }
            None => context.reply.null(),
        }
    }
    Ok(())
}
