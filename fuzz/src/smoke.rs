//! Every target over its corpus, then over mutations of it, on stable Rust.
//!
//! ```text
//!   smoke [SECONDS [SEED [TARGET]]]     per target; an input of each place that panicked is left
//!                                       in fuzz/artifacts
//!   smoke --write-corpus       writes the targets' own samples into fuzz/corpus
//! ```

use quintet_fuzz::TARGETS;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Mutex,
    time::{Duration, Instant},
};

/// Where the last panic was, and what it said.
static LAST: Mutex<String> = Mutex::new(String::new());

/// Enough for choosing what to break: xorshift.
struct Random(u64);

impl Random {
    fn draw(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below.max(1) as u64) as usize
    }

    fn mutate(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = corpus[self.draw(corpus.len())].clone();
        for _ in 0..=self.draw(4) {
            let at = self.draw(bytes.len());
            match self.draw(7) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, self.draw(256) as u8),
                2 if !bytes.is_empty() => bytes[at] ^= 1 << self.draw(8),
                3 if !bytes.is_empty() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][self.draw(5)],
                4 => {
                    let other = &corpus[self.draw(corpus.len())];
                    let from = self.draw(other.len());
                    let length = self.draw(other.len() - from.min(other.len())).min(300);
                    bytes.splice(at..at, other[from..from + length].iter().copied());
                }
                5 if bytes.len() > at + 8 => {
                    let word =
                        [0, 1, u64::MAX, 1 << 31, 1 << 63, u64::from(u32::MAX)][self.draw(6)];
                    bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
                }
                _ => {
                    let end = (at + self.draw(40)).min(bytes.len());
                    bytes.drain(at..end);
                }
            }
        }
        bytes
    }
}

fn corpus(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(name)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments
        .first()
        .is_some_and(|word| word == "--write-corpus")
    {
        for target in TARGETS {
            fs::create_dir_all(corpus(target.name)).expect("can be made");
            for (index, sample) in (target.samples)().into_iter().enumerate() {
                let path = corpus(target.name).join(format!("sample-{index:02}"));
                fs::write(path, sample).expect("can be written");
            }
        }
        return ExitCode::SUCCESS;
    }
    let number = |at: usize| arguments.get(at).and_then(|text| text.parse::<u64>().ok());
    let (seconds, seed) = (number(0).unwrap_or(3), number(1).unwrap_or(1));
    let only = arguments.get(2);
    std::panic::set_hook(Box::new(|panic| {
        if let Ok(mut last) = LAST.lock() {
            *last = panic.to_string();
        }
    }));
    let mut failed = false;
    for target in TARGETS {
        if only.is_some_and(|name| name != target.name) {
            continue;
        }
        let mut places = BTreeSet::new();
        let mut inputs = (target.samples)();
        let mut paths: Vec<PathBuf> = fs::read_dir(corpus(target.name))
            .map(|entries| {
                entries
                    .filter_map(|entry| Some(entry.ok()?.path()))
                    .collect()
            })
            .unwrap_or_default();
        paths.sort();
        inputs.extend(paths.iter().filter_map(|path| fs::read(path).ok()));
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let until = Instant::now() + Duration::from_secs(seconds);
        let (whole, mut count) = (inputs.clone(), 0u64);
        while !inputs.is_empty() || Instant::now() < until {
            let input = inputs.pop().unwrap_or_else(|| random.mutate(&whole));
            count += 1;
            if std::panic::catch_unwind(|| (target.run)(&input)).is_err() {
                failed = true;
                let what = LAST.lock().map(|last| last.clone()).unwrap_or_default();
                let place = what.lines().next().unwrap_or_default().to_owned();
                if !places.insert(place) {
                    continue;
                }
                let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("artifacts");
                let path = directory.join(format!("{}-{count}", target.name));
                let kept = fs::create_dir_all(&directory).and_then(|()| fs::write(&path, &input));
                println!(
                    "{}: PANICKED on {} ({kept:?}): {}",
                    target.name,
                    path.display(),
                    what.replace('\n', " ")
                );
            }
        }
        println!(
            "{}: {count} inputs, {} of them from the corpus",
            target.name,
            whole.len()
        );
    }
    if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}
