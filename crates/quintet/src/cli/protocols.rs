//! `quintet protocols`: what there is to choose from.

use clap::Args;
use quintet_cli::{
    Outcome,
    output::{self, Format},
    protocols,
};
use quintet_replica::Entry;
use serde::Serialize;
use std::{fmt::Write, io::IsTerminal};

/// The width of the list where there is no terminal that has one.
const PIPED_WIDTH: u16 = 100;

/// List the replication protocols, what each is best at, and its options
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet protocols                 all protocols, what each is best at
  quintet protocols multipaxos      one protocol with all its options
  quintet protocols -o json         for programs")]
pub struct Protocols {
    /// Only this one, with its options explained
    name: Option<String>,

    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

#[derive(Serialize)]
struct Report {
    name: &'static str,
    paper: &'static str,
    best_at: &'static str,
    faults_tolerated: &'static str,
    status: &'static str,
    replicas_min: usize,
    options: Vec<OptionReport>,
}

#[derive(Serialize)]
struct OptionReport {
    name: &'static str,
    default: &'static str,
    help: &'static str,
}

impl Report {
    fn of(entry: &Entry) -> Self {
        let options = entry.options.iter();
        Self {
            name: entry.info.name,
            paper: entry.info.paper,
            best_at: entry.info.best_at,
            faults_tolerated: entry.info.tolerates,
            status: if entry.info.stable {
                "stable"
            } else {
                "experimental"
            },
            replicas_min: entry.info.replicas_min,
            options: options
                .map(|spec| OptionReport {
                    name: spec.name,
                    default: spec.default,
                    help: spec.help,
                })
                .collect(),
        }
    }

    fn explained(&self) -> String {
        let mut text = format!(
            "{}: {}\n\n  best at           {}\n  faults tolerated  {}\n  status            {}\n  \
             replicas          {} or more\n",
            self.name,
            self.paper,
            self.best_at,
            self.faults_tolerated,
            self.status,
            self.replicas_min
        );
        if !self.options.is_empty() {
            text.push_str("\nOptions (--set OPTION=VALUE):\n");
        }
        for option in &self.options {
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "  {}\n      {} [default: {}]",
                option.name, option.help, option.default
            );
        }
        text
    }
}

impl Protocols {
    /// Prints them.
    pub fn run(self) -> Outcome {
        if let Some(name) = &self.name {
            let report = Report::of(protocols::find(name)?);
            return match self.output {
                Format::Json => output::print_json(&report),
                Format::Table => output::print(&report.explained()),
            };
        }
        let reports: Vec<_> = quintet_protocols::PROTOCOLS
            .iter()
            .map(Report::of)
            .collect();
        if self.output == Format::Json {
            return output::print_json(&reports);
        }
        let mut table = output::table(&["name", "status", "replicas", "best at"]);
        if !std::io::stdout().is_terminal() {
            table.set_width(PIPED_WIDTH);
        }
        for report in &reports {
            table.add_row([
                report.name.to_owned(),
                report.status.to_owned(),
                format!("{} or more", report.replicas_min),
                report.best_at.to_owned(),
            ]);
        }
        output::print_table(table)?;
        output::print_line("\n'quintet protocols NAME' shows one with its paper and options.")
    }
}
