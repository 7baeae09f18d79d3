//! Runs a campaign from the library, without the `quintet` binary.
//!
//! ```text
//!   simulate PROTOCOL REPLICAS A..B FAULTS [WORD]…      checks the seeds, prints the report
//!   simulate PROTOCOL REPLICAS A..trace FAULTS [WORD]…  shows all that happens in seed A
//!
//!   WORD = disk | memory | datagram | plant=NAME | machine=NAME | OPTION=VALUE
//! ```
//!
//! For example `cargo run --release -p quintet-simulator --example simulate -- multipaxos 3 0..500
//! all memory`.

use quintet_simulator::{Campaign, Transport, run, trace};
use std::{error::Error, time::Instant};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let word = |index: usize, default: &str| -> String {
        words
            .get(index)
            .cloned()
            .unwrap_or_else(|| default.to_string())
    };
    let seeds = word(2, "0..100");
    let (first, last) = seeds.split_once("..").ok_or("seeds are given as A..B")?;
    let first: u64 = first.parse()?;
    let shows = last == "trace";
    let mut campaign = Campaign {
        protocol: word(0, "multipaxos"),
        replicas: word(1, "3").parse()?,
        seeds: first..if shows { first + 1 } else { last.parse()? },
        faults: word(3, "all").parse()?,
        ..Campaign::default()
    };
    for extra in words.iter().skip(4) {
        match extra.split_once('=') {
            Some(("machine", name)) => campaign.machine = Some(name.parse()?),
            Some(("plant", name)) => campaign.plant = Some(name.to_string()),
            Some((name, value)) => campaign.options.push((name.to_string(), value.to_string())),
            None if extra == "datagram" => campaign.transport = Some(Transport::Datagram),
            None => campaign.durability = Some(extra.parse()?),
        }
    }
    if shows {
        let report = trace(&campaign, first)?;
        for line in &report.lines {
            println!("{line}");
        }
        println!(
            "{:?} {:?} {:?}",
            report.violation, report.stall, report.rejection
        );
        return Ok(());
    }
    let began = Instant::now();
    let report = run(&campaign, |_| ())?;
    let seconds = began.elapsed().as_secs_f64();
    eprintln!(
        "{:.1} counted seeds a second",
        report.counted as f64 / seconds
    );
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}
