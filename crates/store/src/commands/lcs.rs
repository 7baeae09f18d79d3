//! LCS: the longest common subsequence of two strings.
//!
//! ```text
//!         b  →
//!      0 0 0 0 0
//!   a  0 1 1 1 1     length of the best so far; walking back from the lower right corner,
//!   ↓  0 1 2 2 2     a step up-left is a common byte, a run of them is a match
//!      0 1 2 2 3
//! ```

use crate::commands::arguments::is;
use crate::context::ReadContext;
use crate::error::{CommandError, CommandResult};
use crate::numbers::parse_integer;
use crate::request::Args;
use crate::value::StringValue;

/// The table takes four bytes a cell: 256 MiB, which a replica can spare for a moment.
const CELLS_MAX: usize = 64 * 1024 * 1024;

/// Where a common run stands in both strings: first and last place.
#[derive(Clone, Copy, Debug)]
struct Match {
    a: (usize, usize),
    b: (usize, usize),
}

impl Match {
    const fn len(&self) -> usize {
        self.a.1 - self.a.0 + 1
    }
}

pub(crate) fn lcs(context: &mut ReadContext<'_>, args: Args<'_>) -> CommandResult {
    let text = |key| match context.read::<StringValue>(key) {
        Ok(value) => Ok(value.map_or(&[][..], |value| value.bytes.as_slice())),
        Err(_) => Err(CommandError::Text(
            "ERR The specified keys must contain string values",
        )),
    };
    let (a, b) = (text(args[0])?, text(args[1])?);
    let (mut only_len, mut places, mut with_len, mut len_min) = (false, false, false, 0);
    let mut options = &args[2..];
    while let [option, rest @ ..] = options {
        options = rest;
        if is(option, "idx") {
            places = true;
        } else if is(option, "len") {
            only_len = true;
        } else if is(option, "withmatchlen") {
            with_len = true;
        } else if is(option, "minmatchlen")
            && let [number, rest @ ..] = options
        {
            len_min = parse_integer(number)?.max(0) as usize;
            options = rest;
        } else {
            return Err(CommandError::Syntax);
        }
    }
    if places && only_len {
        return Err(CommandError::Text(
            "ERR If you want both the length and indexes, please just use IDX.",
        ));
    }
    let width = b.len() + 1;
    if (a.len() + 1).saturating_mul(width) > CELLS_MAX {
        return Err(CommandError::Text(
            "ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len",
        ));
    }
    let table = table(a, b);
    let total = table[a.len() * width + b.len()] as usize;
    if only_len {
        context.reply.count(total);
        return Ok(());
    }
    let (common, matches) = walk_back(&table, a, b, total);
    if !places {
        context.reply.bulk(&common);
        return Ok(());
    }
    context.reply.map(2);
    context.reply.bulk(b"matches");
    let shown = || matches.iter().filter(|found| found.len() >= len_min);
    context.reply.array(shown().count());
    for found in shown() {
        context.reply.array(if with_len { 3 } else { 2 });
        for (first, last) in [found.a, found.b] {
            context.reply.array(2);
            context.reply.count(first);
            context.reply.count(last);
        }
        if with_len {
            context.reply.count(found.len());
        }
    }
    context.reply.bulk(b"len");
    context.reply.count(total);
    Ok(())
}

fn table(a: &[u8], b: &[u8]) -> Vec<u32> {
    let width = b.len() + 1;
    let mut table = vec![0u32; (a.len() + 1) * width];
    for (row, byte_a) in a.iter().enumerate() {
        let (above, below) = table[row * width..].split_at_mut(width);
        for (column, byte_b) in b.iter().enumerate() {
            below[column + 1] = if byte_a == byte_b {
                above[column] + 1
            } else {
                above[column + 1].max(below[column])
            };
        }
    }
    table
}

fn walk_back(table: &[u32], a: &[u8], b: &[u8], total: usize) -> (Vec<u8>, Vec<Match>) {
    let width = b.len() + 1;
    let (mut row, mut column) = (a.len(), b.len());
    let mut common = Vec::with_capacity(total);
    let mut matches: Vec<Match> = Vec::new();
    while row > 0 && column > 0 {
        if a[row - 1] == b[column - 1] {
            (row, column) = (row - 1, column - 1);
            common.push(a[row]);
            match matches.last_mut() {
                Some(last) if last.a.0 == row + 1 && last.b.0 == column + 1 => {
                    (last.a.0, last.b.0) = (row, column);
                }
                _ => matches.push(Match {
                    a: (row, row),
                    b: (column, column),
                }),
            }
        } else if table[(row - 1) * width + column] > table[row * width + column - 1] {
            row -= 1;
        } else {
            column -= 1;
        }
    }
    common.reverse();
    (common, matches)
}
