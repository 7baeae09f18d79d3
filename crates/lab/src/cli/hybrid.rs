//! `quintet lab hybrid`: the calibration run of RACS's hybrid dissemination.
//!
//! ```text
//!   a scenario with racs and racs/sadl ──► run ──► PerformanceTable ──► DIR/performance-table.toml
//! ```

use super::{
    measuring::{Ground, complete, measure},
    scenarios::BackendName,
};
use clap::Args;
use quintet_cli::{
    Failure, Outcome,
    output::{self, Format},
    signals,
};
use quintet_lab::{
    hybrid::PerformanceTable,
    run::{Options, Ran},
    scenario::{self, Backend},
};
use std::{fs, path::PathBuf};

/// Measure both ways of RACS's batches and find when to change between them
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet lab hybrid                                 5 sites, simulated
  quintet lab hybrid mine.toml --backend processes       a scenario of your own, on real replicas

The scenario sweeps the rate for the protocols racs and racs/sadl. The table says at which median
latency of its clients the leader is to leave the direct way, and below which throughput to return:
  quintet demo --protocol racs --set dissemination=hybrid --set hybrid_latency_ms=…")]
pub struct Hybrid {
    /// The scenario: a name from 'quintet lab list', or a file
    #[arg(value_name = "SCENARIO", default_value = "racs-wan-5")]
    scenario: String,

    /// Where it runs
    #[arg(
        long,
        alias = "bed",
        value_enum,
        value_name = "BACKEND",
        default_value = "simulated"
    )]
    backend: BackendName,

    /// Where results are written [default: ./quintet-lab/hybrid-SCENARIO]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    #[command(flatten)]
    ground: Ground,

    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

const DIRECT: &str = "racs";
const SADL: &str = "racs/sadl";

impl Hybrid {
    /// Runs to the end.
    pub fn run(self) -> Outcome {
        let mut scenario = scenario::load(&self.scenario)?;
        scenario
            .protocols
            .retain(|protocol| [DIRECT, SADL].contains(&protocol.as_str()));
        if scenario.protocols.len() < 2 {
            let name = &scenario.name;
            return Err(
                Failure::usage(format!("{name}: it lacks {DIRECT} or {SADL}"))
                    .help("protocols = [\"racs\", \"racs/sadl\"]"),
            );
        }
        let (_sender, stops) = signals::channel_of_stops(signals::Hangup::Stops)?;
        let out = self
            .out
            .clone()
            .unwrap_or_else(|| PathBuf::from(format!("./quintet-lab/hybrid-{}", scenario.name)));
        let options = Options {
            backend: Some(Backend::from(self.backend)),
            ..self.ground.options(out.clone())?
        };
        let Ran { results, .. } = measure(&scenario, &options, "", &stops)?;
        complete(&results)?;
        let table = PerformanceTable::of(&results, DIRECT, SADL)?;
        let path = out.join("performance-table.toml");
        fs::write(&path, table.text())?;
        match self.output {
            Format::Json => output::print_json(&table)?,
            Format::Table => show(&table)?,
        }
        eprintln!("{}", path.display());
        Ok(())
    }
}

fn show(found: &PerformanceTable) -> Outcome {
    let mut table = output::table(&["rate", "direct /s", "p50 ms", "sadl /s", "p50 ms"]);
    for one in &found.rates {
        let cells = [
            one.rate.to_string(),
            format!("{:.0}", one.direct.throughput),
            format!("{:.1}", one.direct.median_ms),
            format!("{:.0}", one.sadl.throughput),
            format!("{:.1}", one.sadl.median_ms),
        ];
        table.add_row(cells.into_iter().map(output::number));
    }
    output::print_table(table)?;
    output::print_line(&format!(
        "\n--set dissemination=hybrid --set hybrid_latency_ms={} --set hybrid_throughput={}",
        found.hybrid_latency_ms, found.hybrid_throughput
    ))
}
