//! The output at the end of a run: for people, for spreadsheets, for programs.
//!
//! ```text
//!   Results ──► results.json (all), results.csv (a line per repetition), report.html (one page)
//! ```

mod html;
mod svg;

pub use html::{Section, page};
pub use svg::{Chart, Point, Series, bars, chart};

use crate::{
    figures::{Spread, stolen_note},
    results::{Line, Results, Row},
    scenario::{Axis, Backend, Parameter},
};
use quintet_cli::{Failure, Outcome};
use std::{collections::BTreeMap, fs, path::Path};

/// Writes everything about a run into a directory.
///
/// # Errors
/// When the directory cannot be written.
pub fn write(results: &Results, directory: &Path) -> Outcome<()> {
    let json = serde_json::to_string_pretty(results).map_err(Failure::failed)?;
    let files = [
        ("results.json", json + "\n"),
        ("results.csv", csv(&results.rows)),
        ("report.html", report(results)),
    ];
    for (name, text) in files {
        let path = directory.join(name);
        fs::write(&path, text)
            .map_err(|error| Failure::failed(format!("{}: {error}", path.display())))?;
    }
    Ok(())
}

/// Reads the results that an earlier run wrote.
///
/// # Errors
/// When there are none, or of another format.
pub fn read(directory: &Path) -> Outcome<Results> {
    let path = directory.join("results.json");
    let text = fs::read_to_string(&path)
        .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
    serde_json::from_str(&text)
        .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

/// A line per repetition. Nothing here depends on when or where it was written.
fn csv(rows: &[Row]) -> String {
    let mut text = "backend,protocol,value,repetition,replicas,clients,rate,value_size,throughput,\
                    mean_us,p50_us,p90_us,p99_us,p999_us,max_us,failed,unanswered,\
                    cpu_s_per_million,bytes_per_operation,syncs_per_thousand,resident,\
                    generator_cores,generator_bound,paths,busiest_s_per_million,\
                    frontends_s_per_million,stolen\n"
        .to_owned();
    let maybe = |figure: Option<f64>| figure.map_or_else(String::new, |one| format!("{one:.3}"));
    for row in rows {
        let latency = &row.latency;
        text.push_str(&format!(
            "{},{},{},{},{},{},{},{},{:.3},{:.3},{:.3},{:.3},{:.3},{:.3},{:.3},{},{},{},{},{},{},\
             {},{},{},{},{},{}\n",
            row.backend.name(),
            row.protocol,
            row.value,
            row.repetition,
            row.replicas,
            row.clients,
            row.rate,
            row.value_size,
            row.throughput,
            latency.mean,
            latency.p50,
            latency.p90,
            latency.p99,
            latency.p999,
            latency.max,
            row.failed,
            row.unanswered,
            maybe(row.cpu_per_million),
            maybe(row.bytes_per_operation),
            maybe(row.syncs_per_thousand),
            row.resident
                .map_or_else(String::new, |bytes| bytes.to_string()),
            maybe(row.generator_cores),
            row.generator_bound,
            (row.paths.iter())
                .map(|(path, count)| format!("{path}={count}"))
                .collect::<Vec<_>>()
                .join(";"),
            maybe(row.busiest_per_million),
            maybe(row.frontends_per_million),
            maybe(row.stolen),
        ));
    }
    text
}

fn axis_name(axis: Axis, swept: Option<Parameter>) -> &'static str {
    match (axis, swept) {
        (Axis::Swept, Some(parameter)) => parameter.name(),
        (Axis::Swept, None) => "cell",
        (Axis::Throughput, _) => "operations per second",
        (Axis::P50, _) => "median latency, ms",
        (Axis::P99, _) => "99th percentile of latency, ms",
        (Axis::Overtaken, _) => "overtaken, per cent",
        (Axis::Time, _) => "seconds",
    }
}

fn spread_of(axis: Axis, line: &Line) -> Spread {
    let thousandth = |spread: Spread| spread.times(1e-3);
    match axis {
        Axis::Swept | Axis::Time => Spread::of([line.value as f64]),
        Axis::Throughput => line.throughput,
        Axis::P50 => thousandth(line.p50),
        Axis::P99 => thousandth(line.p99),
        Axis::Overtaken => line.overtaken,
    }
}

fn series_name(results: &Results, backend: Backend, protocol: &str) -> String {
    let backends = results.lines.iter().any(|line| line.backend != backend);
    if backends {
        format!("{protocol}, {}", backend.name())
    } else {
        protocol.to_owned()
    }
}

/// The plots of a run, in the order of the scenario.
fn charts(results: &Results) -> Vec<Chart> {
    let mut charts = Vec::new();
    for (x, y) in &results.plots {
        let mut series: BTreeMap<(Backend, String), Series> = BTreeMap::new();
        if *x == Axis::Time {
            for row in results.rows.iter().filter(|row| row.repetition == 0) {
                let name = series_name(results, row.backend, &row.protocol);
                let heights: Vec<f64> = match y {
                    Axis::P50 => row.delays.iter().map(|delays| delays[0] / 1e3).collect(),
                    Axis::P99 => row.delays.iter().map(|delays| delays[1] / 1e3).collect(),
                    _ => (row.timeline.iter().map(|count| *count as f64 * 10.0)).collect(),
                };
                let points = heights.into_iter().enumerate().map(|(step, height)| Point {
                    x: (step as f64 + 0.5) / 10.0,
                    y: Spread::of([height]),
                });
                let key = (row.backend, format!("{}{}", row.protocol, row.value));
                series.entry(key).or_insert(Series {
                    name,
                    points: points.collect(),
                    is_published: false,
                });
            }
        } else {
            for line in &results.lines {
                let key = (line.backend, line.protocol.clone());
                let name = series_name(results, line.backend, &line.protocol);
                let one = series.entry(key).or_insert(Series {
                    name,
                    points: Vec::new(),
                    is_published: false,
                });
                one.points.push(Point {
                    x: spread_of(*x, line).median,
                    y: spread_of(*y, line),
                });
            }
        }
        let mut series: Vec<Series> = series.into_values().collect();
        if charts.is_empty() {
            let mut published: BTreeMap<&str, Vec<Point>> = BTreeMap::new();
            for point in &results.published {
                published.entry(&point.label).or_default().push(Point {
                    x: point.x,
                    y: Spread::of([point.y]),
                });
            }
            series.extend(published.into_iter().map(|(label, points)| Series {
                name: label.to_owned(),
                points,
                is_published: true,
            }));
        }
        let shades = results.shades.iter();
        let shades = shades.map(|shade| (shade.from, shade.until, shade.what.clone()));
        charts.push(Chart {
            x: axis_name(*x, results.swept).to_owned(),
            y: axis_name(*y, results.swept).to_owned(),
            series,
            shades: if *x == Axis::Time {
                shades.collect()
            } else {
                Vec::new()
            },
        });
    }
    charts
}

fn report(results: &Results) -> String {
    let machine = &results.machine;
    let mut facts = vec![
        ("command".to_owned(), results.command.clone()),
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
        ("durability".to_owned(), results.durability.clone()),
        (
            "measured".to_owned(),
            format!(
                "{} repetitions of {} s after {} s of warm-up{}{}",
                results.repetitions,
                results.seconds,
                results.warmup_seconds,
                if results.quick { "; a quick run" } else { "" },
                if results.is_complete {
                    ""
                } else {
                    "; STOPPED before all was measured"
                },
            ),
        ),
        ("seed".to_owned(), results.seed.to_string()),
        ("commit".to_owned(), results.commit.clone()),
    ];
    if results
        .lines
        .iter()
        .any(|line| line.backend == Backend::Simulated)
    {
        facts.push(("simulated machine".to_owned(), results.profile.clone()));
    }
    if !results.paper.is_empty() {
        facts.push(("paper".to_owned(), results.paper.clone()));
    }
    let rows = results.lines.iter().map(|line| cells(results, line));
    page(
        &results.name,
        &results.about,
        &facts,
        &[Section {
            title: "Figures",
            figures: charts(results).iter().map(chart).collect(),
            header: header(results).map(str::to_owned).to_vec(),
            rows: rows.collect(),
        }],
    )
}

/// A line whose longest time without an answer is shorter, in microseconds, does not show it.
const SILENCE_SHOWN: f64 = 200_000.0;

/// How long after the first thing that happened all was as before, in tenths of seconds.
fn regained(results: &Results, line: &Line) -> Option<String> {
    let is_calm = results.swept == Some(Parameter::Load) && line.value == 0;
    let shade = results.shades.first().filter(|_| !is_calm)?;
    let from = (shade.from * 10.0) as usize;
    let own = |row: &&Row| {
        (row.backend, &row.protocol, row.value) == (line.backend, &line.protocol, line.value)
            && (1..row.timeline.len()).contains(&from)
    };
    let rows: Vec<&Row> = results.rows.iter().filter(own).collect();
    if rows.is_empty() {
        // It was never as before.
        return None;
    }
    // In the same tenth and the next one, so that no burst of what waited is taken for it.
    let after = |as_before: &dyn Fn(&Row, usize) -> bool| {
        let of_row = |row: &&Row| {
            let last = row.timeline.len() - 1;
            let first = (from..last).find(|at| as_before(row, *at) && as_before(row, at + 1));
            first.map_or(f64::INFINITY, |at| (at - from) as f64 / 10.0)
        };
        Spread::of(rows.iter().map(of_row)).median
    };
    let answers = after(&|row, at| {
        let before: u64 = row.timeline[..from].iter().sum();
        row.timeline[at] as f64 >= 0.9 * before as f64 / from as f64
    });
    let delays = after(&|row, at| {
        let mut before: Vec<f64> = row.delays.iter().take(from).map(|one| one[0]).collect();
        before.sort_unstable_by(f64::total_cmp);
        let usual = before.get(before.len() / 2).copied().unwrap_or(0.0);
        (row.delays.get(at)).is_some_and(|one| one[0] > 0.0 && one[0] <= 2.0 * usual)
    });
    let longest = Spread::of(rows.iter().map(|row| row.latency.max / 1e6)).median;
    let shown = |after: f64| match after.is_finite() {
        true => format!("after {after:.1} s"),
        false => "not any more".to_owned(),
    };
    Some(format!(
        "longest answer {longest:.2} s, 90 % of the rate {}, median at most doubled {}",
        shown(answers),
        shown(delays)
    ))
}

/// The table's columns, on the page and on the terminal.
pub fn header(results: &Results) -> [&'static str; 14] {
    [
        "backend",
        "protocol",
        results.swept.map_or("", Parameter::name),
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
    ]
}

/// A line of the table, see [`header`].
pub fn cells(results: &Results, line: &Line) -> Vec<String> {
    let milliseconds = |spread: Spread| format!("{:.3}", spread.median / 1e3);
    let maybe = |spread: Option<Spread>, digits: usize| {
        spread.map_or_else(String::new, |one| format!("{:.digits$}", one.median))
    };
    let mut notes = Vec::new();
    match line.generator_bound {
        0 => {}
        bound if bound * 2 > line.repetitions => notes.push("at least: generator-bound".to_owned()),
        bound => notes.push(format!("generator-bound in {bound}")),
    }
    notes.extend(line.stolen.and_then(|part| stolen_note(part.median)));
    if line.failed > 0 {
        notes.push(format!("{} failed", line.failed));
    }
    let all: u64 = line.paths.values().sum();
    if all > 0 && line.paths.len() > 1 {
        let share = |(path, count): (&String, &u64)| {
            let percent = *count as f64 * 100.0 / all as f64;
            (*count > 0).then(|| format!("{path} {percent:.1} %"))
        };
        notes.extend(line.paths.iter().filter_map(share));
    }
    if let Some(busiest) = line.busiest_per_million {
        notes.push(format!("busiest {:.1} s/M", busiest.median));
    }
    if let Some(frontends) = line.frontends_per_million {
        notes.push(format!("frontends {:.1} s/M", frontends.median));
    }
    if let Some((p99, longest)) = (line.silence_p99.zip(line.silence_max))
        .filter(|(_, longest)| longest.median >= SILENCE_SHOWN)
    {
        let (p99, longest) = (p99.median / 1e3, longest.median / 1e6);
        notes.push(format!("silent p99 {p99:.0} ms, longest {longest:.2} s"));
    }
    notes.extend(regained(results, line));
    if results.plots.iter().any(|(_, y)| *y == Axis::Overtaken) {
        notes.push(format!("overtaken {:.2} %", line.overtaken.median));
    }
    if line.repetitions < results.repetitions {
        notes.push(format!(
            "{} of {} repetitions",
            line.repetitions, results.repetitions
        ));
    }
    vec![
        line.backend.name().to_owned(),
        line.protocol.clone(),
        results
            .swept
            .map_or_else(String::new, |_| line.value.to_string()),
        format!("{:.0}", line.throughput.median),
        format!("{:.0}..{:.0}", line.throughput.min, line.throughput.max),
        milliseconds(line.p50),
        milliseconds(line.p99),
        milliseconds(line.p999),
        maybe(line.cpu_per_million, 1),
        maybe(
            line.resident
                .map(|bytes| bytes.times(1.0 / f64::from(1 << 20))),
            0,
        ),
        maybe(line.bytes_per_operation, 0),
        maybe(line.syncs_per_thousand, 1),
        maybe(line.generator_cores, 2),
        notes.join(", "),
    ]
}
