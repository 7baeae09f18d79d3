//! The page of a comparison.
//!
//! ```text
//!   Comparison ──► per load: bars with their spread ──► the table ──► what each system is
//! ```

use super::{Comparison, Line};
use crate::{
    figures::{Spread, stolen_note},
    report::{Section, bars, page},
};

/// The table's columns, on the page and on the terminal.
pub const HEADER: [&str; 13] = [
    "load",
    "system",
    "per second",
    "min..max",
    "p50 ms",
    "p99 ms",
    "p99.9 ms",
    "cpu s/M",
    "MiB",
    "wire B/op",
    "syncs/k",
    "own cpu",
    "",
];

/// The whole page; `command` is what was typed.
pub fn html(found: &Comparison, command: &str, commit: &str) -> String {
    let machine = &found.machine;
    let mut facts = vec![
        ("command".to_owned(), command.to_owned()),
        (
            "machine".to_owned(),
            format!(
                "{}, {} cores, {} GiB, Linux {}",
                machine.processor,
                machine.cores,
                machine.memory >> 30,
                machine.kernel
            ),
        ),
        (
            "load".to_owned(),
            format!(
                "{} B values, {} keys, a closed loop, one request per client, clients at {}; \
                 generator with {} thread(s) on the same machine",
                found.value_size,
                found.keys,
                if found.at_all {
                    "all members"
                } else {
                    "the leader"
                },
                found.threads
            ),
        ),
        (
            "measured".to_owned(),
            format!(
                "{} interleaved rounds of {} s after {} s of warm-up{}{}",
                found.rounds,
                found.seconds,
                found.warmup_seconds,
                if found.quick { "; a quick look" } else { "" },
                if found.is_complete {
                    ""
                } else {
                    "; STOPPED before all was measured"
                },
            ),
        ),
        ("seed".to_owned(), found.seed.to_string()),
        ("commit".to_owned(), commit.to_owned()),
    ];
    for one in &found.systems {
        facts.push((one.system.clone(), one.description.clone()));
    }
    let mut cells: Vec<&str> = Vec::new();
    for line in &found.lines {
        if !cells.contains(&line.cell.as_str()) {
            cells.push(&line.cell);
        }
    }
    let of = |cell: &str| -> Vec<&Line> {
        let lines = found.lines.iter();
        lines.filter(|line| line.cell == cell).collect()
    };
    let mut figures = Vec::new();
    for cell in &cells {
        let throughput: Vec<_> = of(cell)
            .iter()
            .map(|line| (line.system.clone(), line.throughput))
            .collect();
        figures.push(bars(&format!("{cell}: operations per second"), &throughput));
        let p99: Vec<_> = of(cell)
            .iter()
            .map(|line| (line.system.clone(), line.p99.times(1e-3)))
            .collect();
        figures.push(bars(
            &format!("{cell}: 99th percentile of latency, ms"),
            &p99,
        ));
    }
    page(
        "Comparison",
        "The same load on several systems, one at a time, in one run. Ratios mean something within \
         this run only.",
        &facts,
        &[Section {
            title: "Figures",
            figures,
            header: HEADER.map(str::to_owned).to_vec(),
            rows: found.lines.iter().map(|line| row(found, line)).collect(),
        }],
    )
}

/// A line for each repetition.
pub fn csv(found: &Comparison) -> String {
    let mut text = "system,cell,round,throughput,answered,unanswered,errors,mean_us,p50_us,p90_us,\
                    p99_us,p999_us,max_us,cpu_seconds,resident,loopback_bytes,syncs,\
                    generator_cores,generator_bound,stolen\n"
        .to_owned();
    let whole = |figure: Option<u64>| figure.map_or_else(String::new, |one| one.to_string());
    let part = |figure: Option<f64>| figure.map_or_else(String::new, |one| format!("{one:.3}"));
    for sample in &found.samples {
        let (seen, latency) = (&sample.seen, &sample.seen.latency);
        text.push_str(&format!(
            "{},{},{},{:.3},{},{},{},{:.3},{:.3},{:.3},{:.3},{:.3},{:.3},{},{},{},{},{},{},{}\n",
            sample.system,
            sample.cell,
            sample.round,
            seen.throughput,
            seen.answered,
            seen.unanswered,
            seen.errors.values().sum::<u64>(),
            latency.mean,
            latency.p50,
            latency.p90,
            latency.p99,
            latency.p999,
            latency.max,
            part(sample.cpu_seconds),
            whole(sample.resident),
            whole(sample.loopback_bytes),
            whole(sample.syncs),
            part(seen.generator_cores),
            seen.generator_bound,
            part(seen.stolen),
        ));
    }
    text
}

/// A line of the table, see [`HEADER`].
pub fn row(found: &Comparison, line: &Line) -> Vec<String> {
    let milliseconds = |spread: &Spread| format!("{:.2}", spread.median / 1e3);
    let mut notes = Vec::new();
    match line.generator_bound {
        0 => {}
        bound if bound * 2 > found.rounds => notes.push("at least: generator-bound".to_owned()),
        bound => notes.push(format!("generator-bound in {bound}")),
    }
    notes.extend(stolen_note(line.stolen.median));
    if line.failed > 0 {
        notes.push(format!("{} failed", line.failed));
    }
    vec![
        line.cell.clone(),
        line.system.clone(),
        grouped(line.throughput.median),
        format!(
            "{}..{}",
            grouped(line.throughput.min),
            grouped(line.throughput.max)
        ),
        milliseconds(&line.p50),
        milliseconds(&line.p99),
        milliseconds(&line.p999),
        format!("{:.1}", line.cpu_per_million.median),
        grouped(line.resident.median / f64::from(1 << 20)),
        grouped(line.bytes_per_operation.median),
        line.syncs_per_thousand
            .as_ref()
            .map_or_else(|| "-".to_owned(), |syncs| format!("{:.1}", syncs.median)),
        format!("{:.2}", line.generator_cores.median),
        notes.join(", "),
    ]
}

/// `1234567.8` as `1,234,568`.
fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.max(0.0));
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
