//! How links are written down: in scenarios and in the files that `quintet serve --links` reads.
//!
//! ```text
//!   delay = "1ms"   jitter = { exponential = "200us" }   loss = 0.001   bandwidth = "1Gbit"
//!   sites = ["virginia", "ireland"]   latencies = "aws" ──► one link per pair of replicas
//!   [[link]] from = 0, to = 1 …       [[change]] at = "3s", until = "5s", cut = true …
//! ```

use crate::{Failure, Outcome, suggest, toml_error};
use quintet_replica::links::{Change, Jitter, Links, Model};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::Duration};

/// The tables that come with the program.
const TABLES: [(&str, &str); 2] = [
    ("aws", include_str!("../../../lab/latencies/aws.toml")),
    ("ibm", include_str!("../../../lab/latencies/ibm.toml")),
];

/// Round trips between places, as they were measured.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    /// Where the figures come from, for readers of the file.
    #[serde(rename = "source")]
    _source: String,
    /// Milliseconds there and back: place, place, time.
    round_trips: Vec<(String, String, f64)>,
    /// The same within one place.
    within: f64,
}

/// A length of time in text, such as `1.5ms`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Span(pub Duration);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        span(&text).map(Span).map_err(serde::de::Error::custom)
    }
}

/// Reads a length of time.
fn span(text: &str) -> Result<Duration, String> {
    let refuse = || format!("'{text}' is not a length of time such as 250us, 1.5ms or 10s");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale = match &text[digits.len()..] {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        _ => return Err(refuse()),
    };
    let number: f64 = digits.trim().parse().map_err(|_| refuse())?;
    if !(0.0..=1e6).contains(&(number * scale)) {
        return Err(refuse());
    }
    Ok(Duration::from_nanos((number * scale * 1e9).round() as u64))
}

/// Bits per second in text, such as `1Gbit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bandwidth(pub u64);

impl<'de> Deserialize<'de> for Bandwidth {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let refuse = || {
            serde::de::Error::custom(format!(
                "'{text}' is not a bandwidth such as 500Mbit or 1Gbit"
            ))
        };
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let scale = match &text[digits.len()..] {
            "kbit" => 1e3,
            "Mbit" => 1e6,
            "Gbit" => 1e9,
            _ => return Err(refuse()),
        };
        let number: f64 = digits.trim().parse().map_err(|_| refuse())?;
        if !(1.0..=1e13).contains(&(number * scale)) {
            return Err(refuse());
        }
        Ok(Self((number * scale) as u64))
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct JitterText {
    uniform: Option<Span>,
    exponential: Option<Span>,
    quantiles: Option<Vec<Span>>,
}

impl JitterText {
    fn jitter(self) -> Result<Jitter, String> {
        match (self.uniform, self.exponential, self.quantiles) {
            (None, None, None) => Ok(Jitter::None),
            (Some(most), None, None) => Ok(Jitter::Uniform(most.0)),
            (None, Some(mean), None) => Ok(Jitter::Exponential(mean.0)),
            (None, None, Some(values)) if values.len() >= 2 && values.is_sorted_by_key(|v| v.0) => {
                Ok(Jitter::Quantiles(
                    values.iter().map(|value| value.0).collect(),
                ))
            }
            (None, None, Some(_)) => Err("quantiles: at least two, ascending".to_owned()),
            _ => Err("one of uniform, exponential and quantiles".to_owned()),
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkText {
    from: u16,
    to: u16,
    /// Whether it holds for the way back too.
    #[serde(default = "yes")]
    both: bool,
    delay: Option<Span>,
    jitter: Option<JitterText>,
    loss: Option<f64>,
    bandwidth: Option<Bandwidth>,
}

const fn yes() -> bool {
    true
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeText {
    at: Span,
    until: Option<Span>,
    #[serde(default)]
    from: Vec<u16>,
    #[serde(default)]
    to: Vec<u16>,
    /// Whether it holds for the way back too.
    #[serde(default)]
    both: bool,
    #[serde(default)]
    cut: bool,
    delay_more: Option<Span>,
    loss: Option<f64>,
    bandwidth: Option<Bandwidth>,
}

/// See the module.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkText {
    delay: Option<Span>,
    jitter: Option<JitterText>,
    loss: Option<f64>,
    reorder: Option<f64>,
    reorder_by: Option<Span>,
    bandwidth: Option<Bandwidth>,
    egress: Option<Bandwidth>,
    latencies: Option<String>,
    #[serde(default)]
    sites: Vec<String>,
    #[serde(default)]
    link: Vec<LinkText>,
    #[serde(default)]
    change: Vec<ChangeText>,
    seed: Option<u64>,
}

fn per_million(part: Option<f64>) -> Result<u32, String> {
    match part.unwrap_or(0.0) {
        part if (0.0..=1.0).contains(&part) => Ok((part * 1e6).round() as u32),
        part => Err(format!("{part} is not a part of 1")),
    }
}

impl NetworkText {
    /// The links that the file describes, for `replicas` replicas; changes count from `begins`.
    pub fn links(self, replicas: usize, begins: Duration, seed: u64) -> Result<Links, String> {
        let other = Model {
            delay: self.delay.unwrap_or_default().0,
            jitter: self
                .jitter
                .unwrap_or_default()
                .jitter()
                .map_err(|why| format!("jitter: {why}"))?,
            loss: per_million(self.loss).map_err(|why| format!("loss: {why}"))?,
            reorder: per_million(self.reorder).map_err(|why| format!("reorder: {why}"))?,
            reorder_by: self.reorder_by.unwrap_or_default().0,
            bandwidth: self.bandwidth.unwrap_or_default().0,
        };
        let mut single: BTreeMap<(u16, u16), Model> = BTreeMap::new();
        match (&self.latencies, self.sites.len()) {
            (None, 0) => {}
            (Some(table), sites) if sites > 0 => {
                for from in 0..replicas {
                    for to in (0..replicas).filter(|to| *to != from) {
                        let [a, b] = [from, to].map(|id| self.sites[id % sites].as_str());
                        let delay = one_way(table, a, b)?;
                        let model = Model {
                            delay,
                            ..other.clone()
                        };
                        single.insert((from as u16, to as u16), model);
                    }
                }
            }
            _ => return Err("latencies and sites belong together".to_owned()),
        }
        for link in self.link {
            for id in [link.from, link.to] {
                if usize::from(id) >= replicas {
                    return Err(format!("link: there is no replica {id}"));
                }
            }
            let mut ways = vec![(link.from, link.to)];
            if link.both {
                ways.push((link.to, link.from));
            }
            for way in ways {
                let model = single.entry(way).or_insert_with(|| other.clone());
                model.delay = link.delay.map_or(model.delay, |delay| delay.0);
                if let Some(jitter) = &link.jitter {
                    let jitter = jitter.clone().jitter();
                    model.jitter = jitter.map_err(|why| format!("link: jitter: {why}"))?;
                }
                if link.loss.is_some() {
                    let loss = per_million(link.loss);
                    model.loss = loss.map_err(|why| format!("link: loss: {why}"))?;
                }
                model.bandwidth = link
                    .bandwidth
                    .map_or(model.bandwidth, |bandwidth| bandwidth.0);
            }
        }
        let mut changes = Vec::new();
        for change in self.change {
            let one = Change {
                at: begins + change.at.0,
                until: change.until.map(|until| begins + until.0),
                from: change.from,
                to: change.to,
                cut: change.cut,
                delay_more: change.delay_more.unwrap_or_default().0,
                loss: match change.loss {
                    None => None,
                    loss => Some(per_million(loss).map_err(|why| format!("change: loss: {why}"))?),
                },
                bandwidth: change.bandwidth.map(|bandwidth| bandwidth.0),
            };
            if one.until.is_some_and(|until| until <= one.at) {
                return Err("change: until is not after at".to_owned());
            }
            if change.both {
                changes.push(Change {
                    from: one.to.clone(),
                    to: one.from.clone(),
                    ..one.clone()
                });
            }
            changes.push(one);
        }
        Ok(Links {
            other,
            single: single
                .into_iter()
                .map(|((from, to), model)| (from, to, model))
                .collect(),
            egress: self.egress.unwrap_or_default().0,
            changes,
            seed: self.seed.unwrap_or(seed),
        })
    }
}

/// Half a round trip between two places.
fn one_way(table: &str, a: &str, b: &str) -> Result<Duration, String> {
    let Some((_, text)) = TABLES.iter().find(|(name, _)| *name == table) else {
        let known: Vec<_> = TABLES.iter().map(|(name, _)| *name).collect();
        let remedy = suggest::remedy(table, &known);
        return Err(format!("latencies: no table '{table}'; {remedy}"));
    };
    let read: Table = toml::from_str(text).map_err(|error| format!("{table}: {error}"))?;
    if a == b {
        return Ok(Duration::from_secs_f64(read.within / 2e3));
    }
    let found = read.round_trips.iter().find(|(from, to, _)| {
        (from.as_str(), to.as_str()) == (a, b) || (from.as_str(), to.as_str()) == (b, a)
    });
    if let Some((_, _, round_trip)) = found {
        return Ok(Duration::from_secs_f64(round_trip / 2e3));
    }
    let mut known: Vec<&str> = Vec::new();
    for (from, to, _) in &read.round_trips {
        known.extend([from.as_str(), to.as_str()]);
    }
    known.sort_unstable();
    known.dedup();
    let unknown = if known.contains(&a) { b } else { a };
    let remedy = suggest::remedy(unknown, &known);
    Err(format!(
        "sites: '{table}' has no way to '{unknown}'; {remedy}"
    ))
}

/// Reads a file that describes links alone.
///
/// # Errors
/// With where the mistake is and what was meant.
pub fn parse_links(text: &str, file: &str, replicas: usize) -> Outcome<Links> {
    let network: NetworkText =
        toml::from_str(text).map_err(|error| toml_error::failure(&error, text, file))?;
    network
        .links(replicas, Duration::ZERO, 1)
        .map_err(|why| Failure::usage(format!("{file}: {why}")))
}

/// Links as [`parse_links`] reads them.
pub fn links_text(links: &Links) -> String {
    let mut text = format!("seed = {}\n", links.seed);
    if links.egress > 0 {
        text.push_str(&format!("egress = '{}kbit'\n", links.egress as f64 / 1e3));
    }
    text.push_str(&model_text(&links.other));
    if links.other.reorder > 0 {
        let part = f64::from(links.other.reorder) / 1e6;
        let by = links.other.reorder_by.as_nanos();
        text.push_str(&format!("reorder = {part:?}\nreorder_by = '{by}ns'\n"));
    }
    for (from, to, model) in &links.single {
        text.push_str(&format!(
            "[[link]]\nfrom = {from}\nto = {to}\nboth = false\n"
        ));
        text.push_str(&model_text(model));
    }
    for change in &links.changes {
        text.push_str(&format!("[[change]]\nat = '{}ns'\n", change.at.as_nanos()));
        if let Some(until) = change.until {
            text.push_str(&format!("until = '{}ns'\n", until.as_nanos()));
        }
        text.push_str(&format!("from = {:?}\nto = {:?}\n", change.from, change.to));
        text.push_str(&format!("cut = {}\n", change.cut));
        text.push_str(&format!(
            "delay_more = '{}ns'\n",
            change.delay_more.as_nanos()
        ));
        if let Some(loss) = change.loss {
            text.push_str(&format!("loss = {:?}\n", f64::from(loss) / 1e6));
        }
        if let Some(bandwidth) = change.bandwidth.filter(|bandwidth| *bandwidth > 0) {
            text.push_str(&format!("bandwidth = '{}kbit'\n", bandwidth as f64 / 1e3));
        }
    }
    text
}

fn model_text(model: &Model) -> String {
    let mut text = format!("delay = '{}ns'\n", model.delay.as_nanos());
    match &model.jitter {
        Jitter::None => {}
        Jitter::Uniform(most) => {
            text.push_str(&format!(
                "jitter = {{ uniform = '{}ns' }}\n",
                most.as_nanos()
            ));
        }
        Jitter::Exponential(mean) => {
            text.push_str(&format!(
                "jitter = {{ exponential = '{}ns' }}\n",
                mean.as_nanos()
            ));
        }
        Jitter::Quantiles(values) => {
            let values: Vec<_> = values
                .iter()
                .map(|value| format!("'{}ns'", value.as_nanos()))
                .collect();
            text.push_str(&format!(
                "jitter = {{ quantiles = [{}] }}\n",
                values.join(", ")
            ));
        }
    }
    if model.loss > 0 {
        text.push_str(&format!("loss = {:?}\n", f64::from(model.loss) / 1e6));
    }
    if model.bandwidth > 0 {
        text.push_str(&format!(
            "bandwidth = '{}kbit'\n",
            model.bandwidth as f64 / 1e3
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_read_with_their_exceptions() {
        let text = "delay = '1ms'\nloss = 0.01\negress = '1Gbit'\n\
                    [[link]]\nfrom = 0\nto = 2\ndelay = '5ms'\n\
                    [[change]]\nat = '2s'\nuntil = '3s'\nfrom = [1]\ncut = true\n";
        let links = parse_links(text, "f", 3).unwrap();
        assert_eq!(links.model(0, 1).delay, Duration::from_millis(1));
        assert_eq!(links.model(2, 0).delay, Duration::from_millis(5));
        assert_eq!(links.model(2, 0).loss, 10_000);
        assert_eq!((links.egress, links.changes.len()), (1_000_000_000, 1));
    }

    #[test]
    fn links_survive_being_written_down() {
        for text in [
            "delay = '1ms'\njitter = { quantiles = ['1us', '3us'] }\nbandwidth = '1Gbit'\n\
             reorder = 0.01\nreorder_by = '2ms'\negress = '10Mbit'\nseed = 7\n",
            "latencies = 'ibm'\nsites = ['dallas', 'london', 'tokyo']\nloss = 0.001\n\
             jitter = { exponential = '250us' }\n\
             [[change]]\nat = '1s'\nuntil = '2s'\nfrom = [0]\ndelay_more = '100ms'\nboth = true\n\
             [[change]]\nat = '3s'\ncut = true\nloss = 0.5\nbandwidth = '1Mbit'\n",
        ] {
            let links = parse_links(text, "f", 3).unwrap();
            assert_eq!(parse_links(&links_text(&links), "g", 3).unwrap(), links);
        }
    }

    #[test]
    fn sites_become_delays() {
        let text = "latencies = 'aws'\nsites = ['virginia', 'ireland', 'tokyo']\n";
        let links = parse_links(text, "f", 3).unwrap();
        let delay = links.model(0, 1).delay;
        assert_eq!(delay, links.model(1, 0).delay);
        assert!((30..50).contains(&delay.as_millis()), "{delay:?}");
    }

    #[test]
    fn mistakes_are_named() {
        for (text, expected) in [
            ("latencies = 'asw'\nsites = ['a']", "did you mean 'aws'"),
            (
                "latencies = 'aws'\nsites = ['virginia', 'irland']",
                "did you mean 'ireland'",
            ),
            ("delay = 5", "f:1"),
            ("\n\ndelay = '5 parsecs'", "f:3"),
            ("loss = 2.0", "not a part of 1"),
            ("delais = '1ms'", "did you mean 'delay'"),
            (
                "jitter = { uniform = '1ms', exponential = '1ms' }",
                "one of uniform",
            ),
            ("[[link]]\nfrom = 0\nto = 7", "no replica 7"),
            (
                "[[change]]\nat = '3s'\nuntil = '2s'",
                "until is not after at",
            ),
        ] {
            let error = parse_links(text, "f", 2).unwrap_err();
            assert!(error.to_string().contains(expected), "{text}: {error}");
        }
    }
}
