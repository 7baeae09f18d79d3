//! `quintet lab list`, `run` and `report`: scenarios.
//!
//! ```text
//!   names or files ──► scenario::load ──► run, with a bar ──► DIR/NAME/report.html …
//! ```

use super::measuring::{Ground, complete, measure};
use crate::cli::torture::sandboxed;
use clap::{Args, ValueEnum};
use quintet_cli::{
    Failure, Outcome,
    output::{self, Format},
    signals,
};
use quintet_lab::{
    report,
    results::Results,
    run::{Options, Ran},
    scenario::{self, Backend},
    torture::{NetworkKind, sandbox},
};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// List the scenarios
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet lab list
  quintet lab list -o json")]
pub struct List {
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

#[derive(Serialize)]
struct Listed {
    name: String,
    backends: Vec<Backend>,
    protocols: Vec<String>,
    paper: String,
    about: String,
}

impl List {
    /// Prints them.
    pub fn run(self) -> Outcome {
        let mut listed = Vec::new();
        for (name, _) in scenario::BUILT_IN {
            let scenario = scenario::load(name)?;
            listed.push(Listed {
                name: scenario.name,
                backends: scenario.backends,
                protocols: scenario.protocols,
                paper: scenario.paper,
                about: scenario.about,
            });
        }
        if self.output == Format::Json {
            return output::print_json(&listed);
        }
        let mut table = output::table(&["name", "backends", "protocols", "about"]);
        for one in listed {
            let backends: Vec<_> = one.backends.iter().map(|backend| backend.name()).collect();
            table.add_row([
                one.name,
                backends.join(", "),
                one.protocols.join(", "),
                one.about,
            ]);
        }
        output::print_table(table)
    }
}

/// Where a scenario runs.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum BackendName {
    /// In virtual time, on a machine that a profile describes.
    Simulated,
    /// On real processes on this machine.
    Processes,
}

impl From<BackendName> for Backend {
    fn from(name: BackendName) -> Self {
        match name {
            BackendName::Simulated => Self::Simulated,
            BackendName::Processes => Self::Processes,
        }
    }
}

/// Run scenarios
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet lab run batch-growth --quick
  quintet lab run wan-five-sites --backend simulated --out results
  quintet lab run mine.toml --repetitions 7

Each scenario writes report.html, results.json and results.csv into --out, into a directory of its
name there when several are run. Ctrl-C keeps what is done, and the same command continues from there;
what was done by another build of this program is measured again. Two simulated runs of a scenario
give the same results.csv to the last byte.")]
pub struct Run {
    /// Scenarios: names from 'quintet lab list', or files
    #[arg(value_name = "SCENARIO", required = true)]
    scenarios: Vec<String>,

    /// Fewer and shorter repetitions
    #[arg(long, conflicts_with = "full")]
    quick: bool,

    /// All repetitions, the default
    #[arg(long)]
    full: bool,

    /// One backend only [default: all of the scenario]
    #[arg(long, alias = "bed", value_enum, value_name = "BACKEND")]
    backend: Option<BackendName>,

    /// Repetitions [default: the scenario's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    repetitions: Option<u32>,

    /// The simulated machine: 'two-cores', 'own-cores', one of a paper, or a file [default: the
    /// scenario's]
    #[arg(long, value_name = "PROFILE")]
    profile: Option<String>,

    /// Where results are written [default: ./quintet-lab/SCENARIO]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    #[command(flatten)]
    ground: Ground,

    /// Where real replicas live: 'loopback', or 'namespaces', a network namespace for each, whose
    /// bandwidth the kernel limits (tbf) to the scenario's 'egress'; needs root
    #[arg(long, value_name = "NETWORK", default_value = "loopback")]
    network: NetworkKind,

    /// Run within the sandbox that this program has made
    #[arg(long, hide = true)]
    inside: bool,

    /// Threads of the real load generator
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,

    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

impl Run {
    /// Runs to the end.
    pub fn run(self) -> Outcome {
        let mut scenarios = Vec::new();
        for name in &self.scenarios {
            let scenario = scenario::load(name)?;
            if scenarios
                .iter()
                .any(|one: &scenario::Scenario| one.name == scenario.name)
            {
                let name = scenario.name;
                return Err(Failure::usage(format!("there are two scenarios '{name}'")));
            }
            scenarios.push(scenario);
        }
        let namespaces = self.network == NetworkKind::Namespaces;
        if namespaces && !self.inside {
            return Err(sandboxed());
        }
        if self.inside {
            sandbox::prepare()?;
        }
        let (_sender, stops) = signals::channel_of_stops(signals::Hangup::Stops)?;
        let several = scenarios.len() > 1;
        for scenario in &scenarios {
            let out = match &self.out {
                Some(out) if !several => out.clone(),
                out => {
                    let parent = out.as_deref().unwrap_or(Path::new("./quintet-lab"));
                    parent.join(&scenario.name)
                }
            };
            let options = Options {
                quick: self.quick,
                repetitions: self.repetitions.map(|count| count as usize),
                backend: self.backend.map(Backend::from),
                profile: self.profile.clone(),
                namespaces,
                threads: self.threads as usize,
                ..self.ground.options(out)?
            };
            let named = format!("{}: ", scenario.name);
            let Ran {
                results: found,
                earlier,
                replaced,
            } = measure(scenario, &options, &named, &stops)?;
            let place = options.out.display();
            match earlier {
                _ if replaced => eprintln!(
                    "what was in {place} was measured by another run or another build: begun again"
                ),
                0 => {}
                all if all == found.rows.len() => eprintln!(
                    "all of it was measured by an earlier run of the same; --fresh measures again"
                ),
                some => eprintln!("{some} repetitions were measured by an earlier run of the same"),
            }
            match self.output {
                Format::Json => output::print_json(&found)?,
                Format::Table => show(&found)?,
            }
            let page = options.out.join("report.html");
            eprintln!("{}", page.display());
            complete(&found)?;
        }
        Ok(())
    }
}

fn show(found: &Results) -> Outcome {
    output::print_line(&format!(
        "{}: {}\n{} repetitions of {} s after {} s{}\n",
        found.name,
        found.about,
        found.repetitions,
        found.seconds,
        found.warmup_seconds,
        if found.quick { " (a quick run)" } else { "" },
    ))?;
    let mut table = output::table(&report::header(found));
    for line in &found.lines {
        let cells = report::cells(found, line).into_iter().enumerate();
        table.add_row(cells.map(|(column, text)| match column {
            0 | 1 | 13 => output::Cell::new(text),
            _ => output::number(text),
        }));
    }
    output::print_table(table)
}

/// Write the page of an earlier run again
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet lab report results")]
pub struct Report {
    /// Where the run wrote its results
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

impl Report {
    /// Writes it.
    pub fn run(self) -> Outcome {
        let found = report::read(&self.directory)?;
        report::write(&found, &self.directory)?;
        show(&found)?;
        eprintln!("{}", self.directory.join("report.html").display());
        Ok(())
    }
}
