//! Readings of sensors in six shards, and questions about all of them at one time.
//!
//! With `--serve ADDRESS` it serves clients of Redis until its input ends: `QUINTET.CALL
//! "sensors:sensor 7" report '["sensor 7", 20]'`.

use quintet::groups::{Group, PersistentMap, Service, Shard, Time, service};
use std::time::{Duration, SystemTime};

#[derive(Default, Service)]
struct Sensors {
    readings: PersistentMap<String, i64>,
}

#[service]
impl Sensors {
    #[ordered]
    fn report(&mut self, sensor: String, reading: i64) {
        self.readings.insert(sensor, reading);
    }
    /// The sum of the readings, and of how many sensors.
    #[query]
    fn sum(&self) -> (i64, u64) {
        let sum = self.readings.iter().map(|(_, reading)| reading).sum();
        (sum, self.readings.len() as u64)
    }
}

const LAYOUT: &str = r#"
[[subgroup]]
name = "sensors"
service = "Sensors"
shards = 6
members = { min = 1, max = 2 }
"#;

/// The sum over all shards at one time: all are asked at once, and every answer is as of that time.
fn sum_at(shards: &[Shard<Sensors>], time: Time) -> Result<(i64, u64), Box<dyn std::error::Error>> {
    let asked: Vec<_> = shards.iter().map(|shard| shard.at(time).sum()).collect();
    let mut all = (0, 0);
    for pending in asked {
        let (sum, sensors) = pending.wait()?;
        all = (all.0 + sum, all.1 + sensors);
    }
    Ok(all)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let group = Group::local(12).layout(LAYOUT).serve::<Sensors>().start()?;
    group.wait_ready(Duration::from_secs(30))?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, address] = &arguments[..]
        && flag == "--serve"
    {
        let server = group.serve_calls(address)?;
        println!("serving {}", server.address());
        return Ok(std::io::stdin()
            .lines()
            .try_for_each(|line| line.map(drop))?);
    }
    let shards = group.all::<Sensors>("sensors")?;
    let mut times = Vec::new();
    for round in 1..=5 {
        let mut reports = Vec::new();
        for number in 0..60 {
            let sensor = format!("sensor {number}");
            let shard = group.shard_of::<Sensors>("sensors", &sensor)?;
            reports.push(shard.ordered().report(sensor, round * number));
        }
        for report in reports {
            report.wait()?;
        }
        times.push((group.now(), round));
    }
    let of = |round: i64| (round * (0..60).sum::<i64>(), 60);
    for (time, round) in &times {
        assert_eq!(sum_at(&shards, *time)?, of(*round));
        println!("{time}: sum {} of {} sensors", of(*round).0, of(*round).1);
    }
    // Other members give the same answers, and later times are answered, too.
    group.stop_member(3);
    group.wait_ready(Duration::from_secs(30))?;
    for (time, round) in &times {
        assert_eq!(sum_at(&shards, *time)?, of(*round));
    }
    assert_eq!(sum_at(&shards, Time::from(SystemTime::now()))?, of(5));
    assert_eq!(sum_at(&shards, Time::from(SystemTime::UNIX_EPOCH))?, (0, 0));
    Ok(())
}
