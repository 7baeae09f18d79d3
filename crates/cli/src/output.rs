//! Tables for people, JSON for programs, progress for terminals.

use crate::Outcome;
use clap::ValueEnum;
pub use comfy_table::{Cell, ContentArrangement};
use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};

/// How results are printed on standard output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// For programs.
    Json,
}

/// A table without lines: columns are told apart by space alone, so that it can be cut with awk.
pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(header.iter().map(|name| Cell::new(name.to_uppercase())));
    table
}

/// A cell aligned to the right.
pub fn number(value: impl ToString) -> Cell {
    Cell::new(value.to_string()).set_alignment(CellAlignment::Right)
}

/// Prints lines on standard output; a reader that went away ends the program quietly.
pub fn print(text: &str) -> Outcome {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}

/// Prints a line.
pub fn print_line(text: &str) -> Outcome {
    print(&format!("{text}\n"))
}

/// Prints one value as indented JSON.
pub fn print_json(value: &impl Serialize) -> Outcome {
    let text = serde_json::to_string_pretty(value).map_err(anyhow::Error::from)?;
    print_line(&text)
}

/// Prints one value as one line of JSON.
pub fn print_json_line(value: &impl Serialize) -> Outcome {
    let text = serde_json::to_string(value).map_err(anyhow::Error::from)?;
    print_line(&text)
}

/// Prints a table, without the spaces that it puts at the ends of lines.
pub fn print_table(mut table: Table) -> Outcome {
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    print(&text)
}

/// A progress bar on standard error: drawn on a terminal, silent elsewhere.
pub fn bar(length: u64, template: &str) -> ProgressBar {
    let target = if io::stderr().is_terminal() {
        ProgressDrawTarget::stderr_with_hz(5)
    } else {
        ProgressDrawTarget::hidden()
    };
    let style = ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ");
    ProgressBar::with_draw_target(Some(length), target).with_style(style)
}

/// `1234567` as `1,234,567`.
pub fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A length of time in seconds, short: `3d4h`, `2h5m`, `1m40s`, `12s`.
pub fn uptime(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{}s", seconds % 60),
        (0, _, _) => format!("{hours}h{minutes}m"),
        _ => format!("{days}d{hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_000), "1,000");
        assert_eq!(grouped(12_345_678), "12,345,678");
    }

    #[test]
    fn uptimes_are_short() {
        assert_eq!(uptime(12), "12s");
        assert_eq!(uptime(100), "1m40s");
        assert_eq!(uptime(7_500), "2h5m");
        assert_eq!(uptime(273_600), "3d4h");
    }
}
