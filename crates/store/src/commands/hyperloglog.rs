//! PFADD, PFCOUNT and PFMERGE: about how many different elements there were, in 12 KiB at most.
//!
//! ```text
//!   element ─ MurmurHash64A ─► 14 bits: which register │ 50 bits: zeros at their end + 1
//!                                                          the register keeps the most
//!   "HYLL" encoding 0 0 0 cardinality:8   dense: 16,384 registers of 6 bits
//!                                         sparse: runs of zeros (1 or 2 bytes), of a value (1)
//! ```
//!
//! The string is Redis's, so that `DUMP`, `GET` and `RESTORE` carry it both ways. Its cached
//! cardinality is marked invalid by each change and not used: a read does not write here.

use crate::command::Op;
use crate::commands::unsupported;
use crate::context::{ReadContext, WriteContext};
use crate::error::{CommandError, CommandResult};
use crate::keyspace::Expiry;
use crate::request::Args;
use crate::value::StringValue;

/// About as many steps as going through the registers of one key takes.
pub(crate) const STEPS: u64 = 256;

/// Bits of a hash that choose a register.
const CHOICE_BITS: u32 = 14;
const REGISTERS: usize = 1 << CHOICE_BITS;
/// Bits of a hash that are counted.
const COUNTED_BITS: u32 = 64 - CHOICE_BITS;
const HEAD: usize = 16;
const DENSE: usize = HEAD + REGISTERS * 6 / 8;
/// A sparse form that is longer becomes a dense one (Redis's `hll-sparse-max-bytes`).
const SPARSE_MAX: usize = 3000;
/// The sparse form has no higher values.
const SPARSE_VALUE_MAX: u8 = 32;

const NOT_ONE: CommandError =
    CommandError::Text("WRONGTYPE Key is not a valid HyperLogLog string value.");
const CORRUPTED: CommandError = CommandError::Text("INVALIDOBJ Corrupted HLL object detected");

pub(crate) fn read(op: Op, context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    if op != Op::Pfcount {
        return Err(unsupported());
    }
    let mut union = Registers::default();
    for key in args {
        if let Some(string) = context.read::<StringValue>(key)? {
            union.join(&Registers::decode(&string.bytes)?);
        }
    }
    context.reply.integer(union.estimate());
    Ok(())
}

pub(crate) fn write(op: Op, context: &mut WriteContext<'_>, args: Args<'_>) -> CommandResult {
    match op {
        Op::Pfadd => pfadd(context, args),
        Op::Pfmerge => pfmerge(context, args),
        _ => Err(unsupported()),
    }
}

/// `PFADD key [element …]`
fn pfadd(context: &mut WriteContext<'_>, args: Args<'_>) -> CommandResult {
    let (key, elements) = (args[0], &args[1..]);
    let known = match context.keys.open::<StringValue>(key)? {
        None => None,
        Some(held) if check(&held.bytes)? == Form::Sparse => Some(Registers::decode(&held.bytes)?),
        Some(mut held) => {
            let rises = |bytes: &[u8], element: &&[u8]| {
                let (register, value) = register_of(element);
                (dense_register(bytes, register) < value).then_some((register, value))
            };
            let first = (elements.iter()).position(|element| rises(&held.bytes, element).is_some());
            if let Some(first) = first {
                let bytes = &mut held.change().bytes;
                for element in &elements[first..] {
                    if let Some((register, value)) = rises(bytes, element) {
                        set_dense_register(bytes, register, value);
                    }
                }
                bytes[HEAD - 1] |= 0x80;
            }
            context.reply.yes(first.is_some());
            return Ok(());
        }
    };
    let mut changes = known.is_none();
    let mut registers = known.unwrap_or_default();
    for element in elements {
        let (register, value) = register_of(element);
        changes |= registers.raise(register, value);
    }
    if changes {
        set(context, key, &registers)?;
    }
    context.reply.yes(changes);
    Ok(())
}

/// `PFMERGE destination [source …]`
fn pfmerge(context: &mut WriteContext<'_>, args: Args<'_>) -> CommandResult {
    let mut union = Registers::default();
    for key in args {
        if let Some(string) = context.keys.read::<StringValue>(key)? {
            union.join(&Registers::decode(&string.bytes)?);
        }
    }
    set(context, args[0], &union)?;
    context.reply.ok();
    Ok(())
}

fn set(context: &mut WriteContext<'_>, key: &[u8], registers: &Registers) -> CommandResult {
    let bytes = registers.encode();
    context.options.check_value_len(bytes.len())?;
    context.keys.set_string(key, &bytes, Expiry::Keep);
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Dense,
    Sparse,
}

/// How a string holds its registers, if it is such a string.
fn check(bytes: &[u8]) -> Result<Form, CommandError> {
    match bytes {
        [b'H', b'Y', b'L', b'L', 0, ..] if bytes.len() == DENSE => Ok(Form::Dense),
        [b'H', b'Y', b'L', b'L', 1, ..] if bytes.len() >= HEAD => Ok(Form::Sparse),
        _ => Err(NOT_ONE),
    }
}

fn dense_register(bytes: &[u8], register: usize) -> u8 {
    let (place, shift) = (HEAD + register * 6 / 8, register * 6 % 8);
    // The last register ends with its byte.
    let high = bytes.get(place + 1).copied().unwrap_or(0);
    (u16::from_le_bytes([bytes[place], high]) >> shift) as u8 & 63
}

fn set_dense_register(bytes: &mut [u8], register: usize, value: u8) {
    let (place, shift) = (HEAD + register * 6 / 8, register * 6 % 8);
    let high = bytes.get(place + 1).copied().unwrap_or(0);
    let both = u16::from_le_bytes([bytes[place], high]) & !(63 << shift);
    let [low, high] = (both | (u16::from(value) << shift)).to_le_bytes();
    bytes[place] = low;
    if let Some(byte) = bytes.get_mut(place + 1) {
        *byte = high;
    }
}

/// The register of an element, and what it is at least with it.
fn register_of(element: &[u8]) -> (usize, u8) {
    let hash = murmur(element);
    let register = hash as usize & (REGISTERS - 1);
    let counted = hash >> CHOICE_BITS | 1 << COUNTED_BITS;
    (register, counted.trailing_zeros() as u8 + 1)
}

/// MurmurHash64A with Redis's seed.
fn murmur(bytes: &[u8]) -> u64 {
    const MULTIPLIER: u64 = 0xc6a4_a793_5bd1_e995;
    const SEED: u64 = 0xadc8_3b19;
    let mut hash = SEED ^ (bytes.len() as u64).wrapping_mul(MULTIPLIER);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let mut word = u64::from_le_bytes(*word).wrapping_mul(MULTIPLIER);
        word ^= word >> 47;
        hash = (hash ^ word.wrapping_mul(MULTIPLIER)).wrapping_mul(MULTIPLIER);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        hash = (hash ^ u64::from_le_bytes(last)).wrapping_mul(MULTIPLIER);
    }
    hash = (hash ^ hash >> 47).wrapping_mul(MULTIPLIER);
    hash ^ hash >> 47
}

/// All registers, a byte each.
#[derive(Debug)]
struct Registers {
    values: Box<[u8; REGISTERS]>,
    /// One that was given a dense form keeps it.
    is_dense: bool,
}

impl Default for Registers {
    fn default() -> Self {
        Self {
            values: Box::new([0; REGISTERS]),
            is_dense: false,
        }
    }
}

impl Registers {
    fn decode(bytes: &[u8]) -> Result<Self, CommandError> {
        let mut registers = Self {
            is_dense: check(bytes)? == Form::Dense,
            ..Self::default()
        };
        if registers.is_dense {
            for (register, value) in registers.values.iter_mut().enumerate() {
                *value = dense_register(bytes, register);
            }
            return Ok(registers);
        }
        let (mut place, mut rest) = (0, &bytes[HEAD..]);
        while let [first, others @ ..] = rest {
            rest = others;
            let low = usize::from(first & 63);
            let (count, value) = match first >> 6 {
                0 => (low + 1, 0),
                1 => {
                    let (second, others) = rest.split_first().ok_or(CORRUPTED)?;
                    rest = others;
                    ((low << 8 | usize::from(*second)) + 1, 0)
                }
                _ => (low % 4 + 1, (first >> 2 & 31) + 1),
            };
            let run = registers.values.get_mut(place..place + count);
            run.ok_or(CORRUPTED)?.fill(value);
            place += count;
        }
        if place != REGISTERS {
            return Err(CORRUPTED);
        }
        Ok(registers)
    }

    /// The string that holds them.
    fn encode(&self) -> Vec<u8> {
        let head = |form: u8| {
            let mut bytes = vec![0; HEAD];
            bytes[..4].copy_from_slice(b"HYLL");
            bytes[4] = form;
            bytes[HEAD - 1] = 0x80;
            bytes
        };
        let in_sparse = |value: &u8| *value <= SPARSE_VALUE_MAX;
        if !self.is_dense && self.values.iter().all(in_sparse) {
            let mut bytes = head(1);
            for run in self.values.chunk_by(|one, other| one == other) {
                push_run(&mut bytes, run[0], run.len());
            }
            if bytes.len() <= HEAD + SPARSE_MAX {
                return bytes;
            }
        }
        let mut bytes = head(0);
        bytes.resize(DENSE, 0);
        for (register, value) in self.values.iter().enumerate() {
            set_dense_register(&mut bytes, register, *value);
        }
        bytes
    }

    /// Raises a register to `value`. True when it was lower.
    fn raise(&mut self, register: usize, value: u8) -> bool {
        let held = &mut self.values[register];
        let rises = *held < value;
        *held = value.max(*held);
        rises
    }

    fn join(&mut self, other: &Self) {
        self.is_dense |= other.is_dense;
        for (held, value) in self.values.iter_mut().zip(other.values.iter()) {
            *held = value.max(held).to_owned();
        }
    }

    /// About how many elements there were, by Ertl's improved raw estimator
    /// (arXiv:1702.01284), as in Redis.
    fn estimate(&self) -> i64 {
        const ALPHA: f64 = 0.721_347_520_444_481_7;
        let mut counts = [0.0; 64];
        for value in self.values.iter() {
            counts[usize::from(value & 63)] += 1.0;
        }
        let registers = REGISTERS as f64;
        let highest = COUNTED_BITS as usize;
        let mut sum = registers * tau((registers - counts[highest + 1]) / registers);
        for count in counts[1..=highest].iter().rev() {
            sum = (sum + count) * 0.5;
        }
        sum += registers * sigma(counts[0] / registers);
        (ALPHA * registers * registers / sum).round() as i64
    }
}

fn push_run(bytes: &mut Vec<u8>, value: u8, mut count: usize) {
    while count > 0 {
        let taken = match value {
            0 if count <= 64 => {
                bytes.push(count as u8 - 1);
                count
            }
            0 => {
                let [high, low] = (count as u16 - 1).to_be_bytes();
                bytes.extend([0x40 | high, low]);
                count
            }
            value => {
                let taken = count.min(4);
                bytes.push(0x80 | ((value - 1) << 2) | (taken as u8 - 1));
                taken
            }
        };
        count -= taken;
    }
}

/// The part of the sum that registers at their highest value add.
fn tau(mut part: f64) -> f64 {
    if part == 0.0 || part == 1.0 {
        return 0.0;
    }
    let (mut weight, mut sum) = (1.0, 1.0 - part);
    loop {
        part = part.sqrt();
        weight *= 0.5;
        let before = sum;
        sum -= (1.0 - part) * (1.0 - part) * weight;
        if sum == before {
            return sum / 3.0;
        }
    }
}

/// The part of the sum that empty registers add.
fn sigma(mut part: f64) -> f64 {
    if part == 1.0 {
        return f64::INFINITY;
    }
    let (mut weight, mut sum) = (1.0, part);
    loop {
        part *= part;
        let before = sum;
        sum += part * weight;
        weight += weight;
        if sum == before {
            return sum;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn with(elements: usize) -> Registers {
        let mut registers = Registers::default();
        for element in 0..elements {
            let (register, value) = register_of(format!("element {element}").as_bytes());
            registers.raise(register, value);
        }
        registers
    }

    #[test]
    fn estimate_is_near_the_number_of_elements() {
        for elements in [0, 1, 10, 1000, 30_000, 300_000] {
            let estimate = with(elements).estimate() as f64;
            // Three times the standard error of 0.81 %.
            let most = (elements as f64 * 0.0243).max(1.0);
            assert!(
                (estimate - elements as f64).abs() <= most,
                "{elements}: {estimate}"
            );
        }
    }

    #[test]
    fn registers_are_those_that_were_encoded() {
        for elements in [0, 1, 100, 1500, 2500, 100_000] {
            let registers = with(elements);
            let decoded = Registers::decode(&registers.encode()).expect("its own encoding");
            assert_eq!(decoded.values, registers.values, "{elements}");
        }
    }

    proptest! {
        #[test]
        fn corrupted_strings_are_refused(
            head in 0..2u8, mut body in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut bytes = with(0).encode();
            bytes[4] = head;
            bytes.truncate(HEAD);
            bytes.append(&mut body);
            let _ = Registers::decode(&bytes);
        }

        #[test]
        fn dense_registers_do_not_touch_others(register in 0..REGISTERS, value in 0..64u8) {
            let mut bytes = vec![0xff; DENSE];
            set_dense_register(&mut bytes, register, value);
            prop_assert_eq!(dense_register(&bytes, register), value);
            for other in (0..REGISTERS).filter(|other| *other != register) {
                prop_assert_eq!(dense_register(&bytes, other), 63);
            }
        }
    }
}
