//! Generates recorded histories and checks them, for comparison with other checkers.
//!
//! ```text
//!   histories generate COUNT SEED     COUNT histories on standard output, half of them corrupted
//!   histories check FILE              a line per history: NAME linearizable|impossible|unknown
//!   histories big OPERATIONS KEYS CLIENTS UNKNOWN TRANSACTIONS SEED      one large history
//! ```
//!
//! `ci/porcupine` compares the verdicts with those of the Go module porcupine.

use quintet_simulator::{
    Random,
    checkers::linearizability::{Limits, Verdict, check},
    generate::{Shape, corrupt, history},
    recording::{Operation, header, read_all},
};
use std::{
    error::Error,
    fs::File,
    io::{BufReader, BufWriter, Write, stdout},
};

fn write(out: &mut impl Write, name: &str, operations: &[Operation]) -> std::io::Result<()> {
    writeln!(out, "{}", header(name))?;
    for operation in operations {
        writeln!(out, "{}", operation.to_line())?;
    }
    Ok(())
}

fn generate(count: u64, seed: u64) -> std::io::Result<()> {
    let mut out = BufWriter::new(stdout().lock());
    for number in 0..count {
        let mut random = Random::new(seed.wrapping_add(number));
        let shape = Shape {
            operations: 10 + random.index(40),
            keys: 1 + random.below(6),
            clients: 2 + random.index(6),
            unknown: [0, 0, 50][random.index(3)],
            transactions: [0, 0, 150, 500][random.index(4)],
        };
        let mut operations = history(shape, &mut random);
        let corrupted = number % 2 == 1;
        if corrupted {
            corrupt(&mut operations, &mut random);
        }
        let kind = if corrupted { "corrupted" } else { "right" };
        write(&mut out, &format!("{kind}-{number}"), &operations)?;
    }
    out.flush()
}

fn verdict(path: &str) -> Result<(), Box<dyn Error>> {
    let limits = Limits::default();
    for recording in read_all(BufReader::new(File::open(path)?))? {
        let verdict = match check(&recording.operations, &limits).verdict {
            Verdict::Linearizable => "linearizable",
            Verdict::Impossible(_) => "impossible",
            Verdict::Unknown(_) => "unknown",
        };
        println!("{} {verdict}", recording.name);
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["generate", count, seed] => generate(count.parse()?, seed.parse()?)?,
        ["check", path] => verdict(path)?,
        [
            "big",
            operations,
            keys,
            clients,
            unknown,
            transactions,
            seed,
        ] => {
            let shape = Shape {
                operations: operations.parse()?,
                keys: keys.parse()?,
                clients: clients.parse()?,
                unknown: unknown.parse()?,
                transactions: transactions.parse()?,
            };
            let operations = history(shape, &mut Random::new(seed.parse()?));
            write(&mut BufWriter::new(stdout().lock()), "big", &operations)?;
        }
        _ => return Err("generate COUNT SEED, check FILE, or big …; see the source".into()),
    }
    Ok(())
}
