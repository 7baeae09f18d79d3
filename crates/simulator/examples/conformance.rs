//! Plays the conformance kit for protocols and prints what each scenario gave.
//!
//! ```text
//!   conformance [PROTOCOL|all] [SCENARIO] [OPTION=VALUE]…     exit 6 when something fails
//!   conformance PROTOCOL replicas=2,7                         with others than the kit's numbers
//! ```
//!
//! `cargo run -p quintet-simulator --example conformance -- multipaxos partition` plays all
//! scenarios with "partition" in their names.

use quintet_simulator::conformance::{Played, SCENARIOS, protocols, verdict};
use std::{error::Error, process::ExitCode, time::Instant};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let (options, words): (Vec<String>, Vec<String>) = std::env::args()
        .skip(1)
        .partition(|word| word.contains('='));
    let mut options: Vec<(String, String)> = (options.iter())
        .filter_map(|option| option.split_once('='))
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .collect();
    let counts = options.extract_if(.., |(name, _)| name == "replicas");
    let counts: String = counts.map(|(_, value)| value).collect();
    let counts = counts.split(',').filter(|count| !count.is_empty());
    let counts: Vec<usize> = counts.map(str::parse).collect::<Result<_, _>>()?;
    let names = match words.first().map(String::as_str) {
        None | Some("all") => protocols(),
        Some(name) => vec![name],
    };
    let filter = words.get(1).map_or("", String::as_str);
    let mut failed = 0;
    for name in names {
        let began = Instant::now();
        let verdict = verdict(name, filter, &options, &counts)?;
        let (mut passed, mut skipped) = (0, 0);
        for (scenario, performances) in &verdict.scenarios {
            let mut line = String::new();
            for performance in performances {
                match &performance.played {
                    Played::Passed => passed += 1,
                    Played::Skipped(why) => {
                        skipped += 1;
                        line.push_str(&format!("\n    {}: skipped: {why}", performance.setting));
                    }
                    Played::Failed(what) => {
                        line.push_str(&format!("\n    {}: FAILS: {what}", performance.setting));
                    }
                }
            }
            let about = SCENARIOS
                .iter()
                .find(|it| it.name == *scenario)
                .map_or("", |it| it.about);
            println!("{name}: {scenario}: {about}{line}");
        }
        let failures = verdict.failures().len();
        failed += failures;
        println!(
            "{name}: {passed} passed, {skipped} skipped, {failures} failed in {:.1} s",
            began.elapsed().as_secs_f64()
        );
    }
    Ok(ExitCode::from(if failed > 0 { 6 } else { 0 }))
}
