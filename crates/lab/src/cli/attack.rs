//! `quintet lab attack`: an adversary against any protocol, in virtual time or on real processes.
//!
//! ```text
//!   KIND, --protocol, --set ──► a scenario's text ──► scenario::parse ──► run ──► report.html
//!                                                                         └─► calm, attacked, ratio
//! ```

use super::{
    measuring::{Ground, complete, measure},
    scenarios::BackendName,
};
use clap::Args;
use quintet_cli::{
    Exit, Failure, Outcome,
    output::{self, Format},
    signals,
};
use quintet_lab::{
    results::{Results, Row},
    run::Ran,
    scenario::{self, AttackKind, Backend},
};
use serde::Serialize;
use std::{fmt::Write as _, path::PathBuf};

/// Attack protocols and show what is left
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet lab attack                                    the random minority, paper's settings
  quintet lab attack hunt --protocol racs --protocol multipaxos
  quintet lab attack loss --replicas 3 --rate 2000 --out results
  quintet lab attack minority --protocol racs/slow --set racs/slow:view_timeout_ms=1000
  quintet lab attack --backend processes --replicas 3 --rate 1000

Attacks:
  minority   every half second up to a minority, drawn again, sends half a second late
  leader     the first leader sends half a second late
  hunt       the present leader sends half a second late, looked up every half second (simulated)
  loss       30 % of what is sent is lost
  one-way    nothing that the first leader sends arrives
  bridge     two halves that hear each other through one replica only
  ring       each replica hears its two neighbours only
  none       nothing, to compare with

A third of the time is calm, a third attacked, a third calm again; the page
shows throughput and latency over time with the attack shaded. A protocol may be named several
times, each with a word of your own behind a slash and options of its own.")]
pub struct Attack {
    /// The adversary's attack
    #[arg(value_name = "KIND", default_value = "minority", value_parser = kind)]
    kind: AttackKind,

    /// A protocol, or a protocol with a word of your own behind a slash [default: multipaxos/fixed,
    /// multipaxos, racs/fixed, racs, racs/sadl]
    #[arg(short, long = "protocol", value_name = "NAME")]
    protocols: Vec<String>,

    /// An option of one of them
    #[arg(long, value_name = "NAME:OPTION=VALUE")]
    set: Vec<String>,

    /// How many replicas, over the sites of --sites
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=99))]
    replicas: u16,

    /// Regions of Amazon's cloud, in which replicas take turns
    #[arg(
        long,
        value_name = "SITES",
        value_delimiter = ',',
        default_value = "tokyo,seoul,osaka,singapore,sydney"
    )]
    sites: Vec<String>,

    /// Clients, at all replicas
    #[arg(long, value_name = "N", default_value_t = 500)]
    clients: u32,

    /// Requests per second at random moments, instead of clients that wait for each answer
    #[arg(long, value_name = "RATE")]
    rate: Option<u32>,

    /// Bytes per value
    #[arg(long, value_name = "BYTES", default_value_t = 17)]
    value_size: u32,

    /// In virtual time, or on real processes of this machine, whose transports emulate the links
    #[arg(
        long,
        alias = "bed",
        value_enum,
        value_name = "BACKEND",
        default_value = "simulated"
    )]
    backend: BackendName,

    /// Seconds measured
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(3..=3600))]
    seconds: u32,

    /// Draws everything
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u32,

    /// The simulated machine
    #[arg(long, value_name = "PROFILE", default_value = "own-cores")]
    profile: String,

    /// Where results are written [default: ./quintet-lab/attack-KIND]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    #[command(flatten)]
    ground: Ground,

    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

fn kind(name: &str) -> Result<AttackKind, String> {
    let known = AttackKind::ALL.into_iter().find(|kind| kind.name() == name);
    known.ok_or_else(|| {
        let names = AttackKind::ALL.map(AttackKind::name);
        format!("accepted are {}", names.join(", "))
    })
}

/// The default targets: with settings as in the paper's evaluation, timeouts of 300 ms and for
/// Multi-Paxos one proposal at a time, and as it is.
const USUAL: [(&str, &[(&str, &str)]); 5] = [
    (
        "multipaxos/fixed",
        &[
            ("election_timeout_ms", "300"),
            ("heartbeat_ms", "60"),
            ("window", "1"),
        ],
    ),
    ("multipaxos", &[]),
    (
        "racs/fixed",
        &[("view_timeout_ms", "300"), ("heartbeat_ms", "60")],
    ),
    ("racs", &[]),
    ("racs/sadl", &[("dissemination", "sadl")]),
];

/// A protocol, and its options with their values.
type OptionsOf = (String, Vec<(String, String)>);

/// One protocol, before and under the attack.
#[derive(Debug, Serialize)]
struct Told {
    protocol: String,
    /// Answers per second before the attack.
    calm: f64,
    /// The same while it lasts.
    attacked: f64,
    /// Medians of the medians of each tenth of a second, in milliseconds.
    calm_p50_ms: f64,
    attacked_p50_ms: f64,
    /// The longest time without any answer while it lasts, in seconds.
    silent_s: f64,
    /// Seconds from the end of the attack until half of the calm throughput is back.
    back_s: Option<f64>,
}

impl Attack {
    /// Runs to the end.
    pub fn run(self) -> Outcome {
        let text = self.scenario()?;
        let scenario = scenario::parse(&text, "attack")?;
        let (_sender, stops) = signals::channel_of_stops(signals::Hangup::Stops)?;
        let out = (self.out.clone())
            .unwrap_or_else(|| PathBuf::from(format!("./quintet-lab/{}", scenario.name)));
        let options = self.ground.options(out.clone())?;
        let Ran { results: found, .. } = measure(&scenario, &options, "", &stops)?;
        let told = self.told(&found);
        match self.output {
            Format::Json => output::print_json(&told)?,
            Format::Table => self.show(&told)?,
        }
        eprintln!("{}", out.join("report.html").display());
        complete(&found)
    }

    fn thirds(&self) -> (f64, f64) {
        let third = f64::from(self.seconds) / 3.0;
        (third, 2.0 * third)
    }

    /// The scenario in the words of its files: whatever is wrong is refused there.
    fn scenario(&self) -> Result<String, Failure> {
        let usual = self.protocols.is_empty();
        let protocols: Vec<String> = if usual {
            USUAL.iter().map(|(name, _)| (*name).to_owned()).collect()
        } else {
            self.protocols.clone()
        };
        let (from, until) = self.thirds();
        let quoted = |names: &[String]| -> String {
            let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
            format!("[{}]", quoted.join(", "))
        };
        let mut text = format!(
            "name = \"attack-{}\"\nabout = \"Calm, then {}, then calm\"\n\
             paper = \"RACS and SADL, Fig. 7\"\nbackends = [{:?}]\nprotocols = {}\n\
             replicas = {}\ndurability = \"memory\"\nprofile = {:?}\nwarmup = \"3s\"\n\
             measured = \"{}s\"\nrepetitions = 1\nseed = {}\n\n[attack]\nkind = \"{}\"\n\
             at = \"{from}s\"\nuntil = \"{until}s\"\n\n[workload]\nclients = {}\nvalue_size = {}\n\
             at = \"all\"\n",
            self.kind.name(),
            self.kind.about(),
            Backend::from(self.backend).name(),
            quoted(&protocols),
            self.replicas,
            self.profile,
            self.seconds,
            self.seed,
            self.kind.name(),
            self.clients,
            self.value_size,
        );
        if let Some(rate) = self.rate {
            let _ = writeln!(text, "rate = {rate}");
        }
        let _ = write!(
            text,
            "\n[network]\nlatencies = \"aws\"\nsites = {}\njitter = {{ exponential = \"500us\" }}\n\
             \n[[plot]]\nx = \"time\"\ny = \"throughput\"\n\n[[plot]]\nx = \"time\"\ny = \"p50\"\n\n\
             [[plot]]\nx = \"time\"\ny = \"p99\"\n",
            quoted(&self.sites)
        );
        for (name, options) in self.options(usual, &protocols)? {
            let _ = writeln!(text, "\n[options.{name:?}]");
            for (option, value) in options {
                let _ = writeln!(text, "{option} = {value:?}");
            }
        }
        Ok(text)
    }

    /// Each protocol's options, those that were given last.
    fn options(&self, usual: bool, protocols: &[String]) -> Result<Vec<OptionsOf>, Failure> {
        let mut all: Vec<OptionsOf> = Vec::new();
        for name in protocols {
            let known = USUAL.iter().find(|(known, _)| usual && known == name);
            let own = known.map_or(&[][..], |(_, options)| options);
            let own = own
                .iter()
                .map(|(name, value)| ((*name).into(), (*value).into()));
            all.push((name.clone(), own.collect()));
        }
        for given in &self.set {
            let parts = given
                .split_once(':')
                .and_then(|(name, rest)| Some((name, rest.split_once('=')?)));
            let Some((name, (option, value))) = parts else {
                return Err(Failure::new(
                    Exit::Usage,
                    format!("--set: '{given}' is not understood"),
                )
                .help("expected NAME:OPTION=VALUE, as in racs/sadl:dissemination=sadl"));
            };
            let Some((_, options)) = all.iter_mut().find(|(known, _)| known == name) else {
                return Err(Failure::new(
                    Exit::Usage,
                    format!("--set: '{name}' is not among the protocols that are attacked"),
                )
                .help(format!("they are {}", protocols.join(", "))));
            };
            options.retain(|(known, _)| known != option);
            options.push((option.to_owned(), value.to_owned()));
        }
        all.retain(|(_, options)| !options.is_empty());
        Ok(all)
    }

    fn told(&self, found: &Results) -> Vec<Told> {
        found.rows.iter().map(|row| self.told_of(row)).collect()
    }

    fn told_of(&self, row: &Row) -> Told {
        let (from, until) = self.thirds();
        let step = |seconds: f64| ((seconds * STEPS) as usize).min(row.timeline.len());
        let (from, until) = (step(from), step(until));
        let rate =
            |steps: &[u64]| steps.iter().sum::<u64>() as f64 * STEPS / steps.len().max(1) as f64;
        let median = |steps: &[[f64; 2]]| {
            let mut all: Vec<f64> = steps
                .iter()
                .map(|one| one[0])
                .filter(|p50| *p50 > 0.0)
                .collect();
            all.sort_unstable_by(f64::total_cmp);
            all.get(all.len() / 2).copied().unwrap_or(0.0) / 1e3
        };
        let (mut silent, mut longest) = (0, 0);
        for count in &row.timeline[from..until] {
            silent = if *count == 0 { silent + 1 } else { 0 };
            longest = longest.max(silent);
        }
        let calm = rate(&row.timeline[..from]);
        let back = row.timeline[until..]
            .iter()
            .position(|count| *count as f64 * STEPS >= calm / 2.0);
        Told {
            protocol: row.protocol.clone(),
            calm,
            attacked: rate(&row.timeline[from..until]),
            calm_p50_ms: median(row.delays.get(..from).unwrap_or(&[])),
            attacked_p50_ms: median(row.delays.get(from..until).unwrap_or(&[])),
            silent_s: f64::from(longest) / STEPS,
            back_s: back.map(|steps| steps as f64 / STEPS),
        }
    }

    fn show(&self, told: &[Told]) -> Outcome {
        output::print_line(&format!(
            "{}: {}, {} replicas, {} bytes, seed {}\n",
            self.kind.name(),
            self.kind.about(),
            self.replicas,
            self.value_size,
            self.seed
        ))?;
        let mut table = output::table(&[
            "protocol",
            "calm /s",
            "attacked /s",
            "kept",
            "of the first",
            "calm p50 ms",
            "attacked p50 ms",
            "longest silence s",
            "half back after s",
        ]);
        let first = told.first().map_or(0.0, |one| one.attacked);
        let part = |part: f64, of: f64| {
            if of > 0.0 {
                format!("{:.2}", part / of)
            } else {
                "-".to_owned()
            }
        };
        for one in told {
            let cells = [
                format!("{:.0}", one.calm),
                format!("{:.0}", one.attacked),
                part(one.attacked, one.calm),
                part(one.attacked, first),
                format!("{:.1}", one.calm_p50_ms),
                format!("{:.1}", one.attacked_p50_ms),
                format!("{:.1}", one.silent_s),
                one.back_s
                    .map_or_else(|| "-".to_owned(), |back| format!("{back:.1}")),
            ];
            let mut row = vec![output::Cell::new(&one.protocol)];
            row.extend(cells.into_iter().map(output::number));
            table.add_row(row);
        }
        output::print_table(table)
    }
}

/// Steps of a timeline in a second.
const STEPS: f64 = 10.0;
