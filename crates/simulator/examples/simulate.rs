//! Runs a campaign from the library, without the `quintet` binary.
//!
//! ```text
//!   simulate PROTOCOL REPLICAS A..B FAULTS [WORD]…      checks the seeds, prints the report
//!   simulate PROTOCOL REPLICAS A..trace FAULTS [WORD]…  shows all that happens in seed A
//!
//!   simulate groups A..B [BUG]                          worlds with several groups in each process
//!   simulate shards A..B [BUG]                          worlds whose groups follow one view
//!   simulate groups A..trace [BUG]
//!
//!   WORD = disk | memory | datagram | bug=NAME | machine=NAME | OPTION=VALUE
//! ```
//!
//! For example `cargo run --release -p quintet-simulator --example simulate -- multipaxos 3 0..500
//! all memory`.

use quintet_simulator::{
    Campaign, Transport,
    groups::{self, GroupsSetup, Worlds},
    run, trace,
};
use std::{error::Error, time::Instant};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let word = |index: usize, default: &str| -> String {
        words
            .get(index)
            .cloned()
            .unwrap_or_else(|| default.to_string())
    };
    let worlds = match word(0, "").as_str() {
        "groups" => Some(Worlds::Pinned),
        "shards" => Some(Worlds::Shards),
        "services" => Some(Worlds::Services),
        _ => None,
    };
    if let Some(worlds) = worlds {
        let bug = words.get(2).map(String::as_str);
        return run_groups(worlds, &word(1, "0..100"), bug);
    }
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
            Some(("bug", name)) => campaign.bug = Some(name.to_string()),
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

fn run_groups(worlds: Worlds, seeds: &str, bug: Option<&str>) -> Result<(), Box<dyn Error>> {
    let (first, last) = seeds.split_once("..").ok_or("seeds are given as A..B")?;
    let first: u64 = first.parse()?;
    let setup = GroupsSetup {
        bug,
        tells: last == "trace",
        ..GroupsSetup::of(worlds)
    };
    if setup.tells {
        let found = groups::run_seed(&setup, first);
        found.lines.iter().for_each(|line| println!("{line}"));
        println!("{:?} {:?}", found.violation, found.stall);
        return Ok(());
    }
    let began = Instant::now();
    let report = groups::run(&setup, first..last.parse()?, bug.is_some());
    for (seed, violation) in &report.violations {
        println!("seed {seed}: {violation}");
    }
    for (seed, stall) in &report.stalls {
        println!("seed {seed} stalls: {stall}");
    }
    println!(
        "{} seeds, {} violations, {} stalls, {} operations acknowledged, {:.1} seeds a second",
        report.seeds,
        report.violations.len(),
        report.stalls.len(),
        report.acknowledged,
        report.seeds as f64 / began.elapsed().as_secs_f64()
    );
    println!("{:?}", report.counts);
    if report.violations.is_empty() && report.stalls.is_empty() {
        return Ok(());
    }
    Err("not all seeds pass".into())
}
