//! The adversary: what it does to links, again and again, for as long as an attack lasts.
//!
//! ```text
//!   [attack] kind = "minority", at = "5s", until = "15s"
//!      │ every half second: others, drawn        ┌─► Links::changes, known beforehand: both backends
//!      └──────────────────────────────────────►──┤
//!        "hunt": the present leader               └─► performance::Hunt, decided as it goes: simulated only
//! ```

use crate::load::Random;
use quintet_cli::links::Span;
use quintet_replica::links::Change;
use quintet_simulator::performance::Hunt;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The attack of an adversary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttackKind {
    /// Nothing: to compare with.
    None,
    /// Up to a minority, drawn again every half second, sends half a second late.
    Minority,
    /// The first leader sends half a second late, also when another one leads.
    Leader,
    /// The present leader sends half a second late, looked up every half second.
    Hunt,
    /// Of everything that is sent, 30 % is lost.
    Loss,
    /// Nothing of what the first leader sends arrives; it hears all others.
    OneWay,
    /// Two halves that hear each other through one replica only.
    Bridge,
    /// Each replica hears its two neighbours only.
    Ring,
}

impl AttackKind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::None,
        Self::Minority,
        Self::Leader,
        Self::Hunt,
        Self::Loss,
        Self::OneWay,
        Self::Bridge,
        Self::Ring,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Minority => "minority",
            Self::Leader => "leader",
            Self::Hunt => "hunt",
            Self::Loss => "loss",
            Self::OneWay => "one-way",
            Self::Bridge => "bridge",
            Self::Ring => "ring",
        }
    }

    /// A short description.
    pub const fn about(self) -> &'static str {
        match self {
            Self::None => "nothing, to compare with",
            Self::Minority => {
                "every half second up to a minority, drawn again, sends half a second late"
            }
            Self::Leader => "the first leader sends half a second late",
            Self::Hunt => {
                "the present leader sends half a second late, looked up every half second (simulated)"
            }
            Self::Loss => "30 % of what is sent is lost",
            Self::OneWay => "nothing that the first leader sends arrives",
            Self::Bridge => "two halves that hear each other through one replica only",
            Self::Ring => "each replica hears its two neighbours only",
        }
    }
}

/// An attack as a scenario describes it. Times count from the beginning of the measuring.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AttackText {
    kind: AttackKind,
    #[serde(default)]
    at: Span,
    until: Option<Span>,
    every: Option<Span>,
    delay_more: Option<Span>,
    loss: Option<f64>,
}

/// The faults of an attack.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Attack {
    pub changes: Vec<Change>,
    pub hunt: Option<Hunt>,
    /// When, in seconds since the measuring began, and what.
    pub shade: Option<(Duration, Duration, String)>,
}

const EVERY: Duration = Duration::from_millis(500);
const DELAY_MORE: Duration = Duration::from_millis(500);
const LOSS: f64 = 0.3;

impl AttackText {
    /// The faults of the attack, for `replicas` replicas in a run that begins `begins` before the
    /// measuring, which takes `measured`.
    pub fn attack(
        &self,
        replicas: usize,
        begins: Duration,
        measured: Duration,
        seed: u64,
    ) -> Result<Attack, String> {
        let (at, until) = (self.at.0, self.until.map_or(measured, |until| until.0));
        if until <= at {
            return Err("until is not after at".to_owned());
        }
        let every = self.every.map_or(EVERY, |every| every.0);
        if every < Duration::from_millis(1) {
            return Err("every: at least 1ms".to_owned());
        }
        let loss = self.loss.unwrap_or(LOSS);
        if !(0.0..1.0).contains(&loss) {
            return Err(format!("loss: {loss} is not a part of 1"));
        }
        let delay_more = self.delay_more.map_or(DELAY_MORE, |more| more.0);
        let whole = Change {
            at: begins + at,
            until: Some(begins + until),
            ..Change::default()
        };
        let cut = |from: Vec<u16>, to: Vec<u16>| Change {
            from,
            to,
            cut: true,
            ..whole.clone()
        };
        let count = replicas as u16;
        let mut hunt = None;
        let changes = match self.kind {
            AttackKind::None => return Ok(Attack::default()),
            AttackKind::Minority => {
                let mut random = Random::from_state(seed);
                let mut changes = Vec::new();
                let mut begin = at;
                let most = (replicas as u64).saturating_sub(1) / 2;
                while begin < until && most > 0 {
                    let end = (begin + every).min(until);
                    let mut all: Vec<u16> = (0..count).collect();
                    let victims = 1 + random.below(most);
                    let from = (0..victims)
                        .map(|_| all.swap_remove(random.below(all.len() as u64) as usize))
                        .collect();
                    changes.push(Change {
                        at: begins + begin,
                        until: Some(begins + end),
                        from,
                        delay_more,
                        ..Change::default()
                    });
                    begin = end;
                }
                changes
            }
            AttackKind::Leader => vec![Change {
                from: vec![0],
                delay_more,
                ..whole
            }],
            AttackKind::Hunt => {
                hunt = Some(Hunt {
                    at: begins + at,
                    until: begins + until,
                    every,
                    delay_more,
                });
                Vec::new()
            }
            AttackKind::Loss => vec![Change {
                loss: Some((loss * 1e6).round() as u32),
                ..whole
            }],
            AttackKind::OneWay => vec![cut(vec![0], Vec::new())],
            AttackKind::Bridge => {
                let middle = count / 2;
                let (left, right): (Vec<u16>, Vec<u16>) = (0..count)
                    .filter(|id| *id != middle)
                    .partition(|id| *id < middle);
                if left.is_empty() || right.is_empty() {
                    Vec::new()
                } else {
                    vec![cut(left.clone(), right.clone()), cut(right, left)]
                }
            }
            AttackKind::Ring => {
                let near = |a: u16, b: u16| (a + 1) % count == b || (b + 1) % count == a;
                (0..count)
                    .map(|from| {
                        let far = |to: &u16| *to != from && !near(from, *to);
                        cut(vec![from], (0..count).filter(far).collect())
                    })
                    // An empty list of recipients would mean all of them.
                    .filter(|change| !change.to.is_empty())
                    .collect()
            }
        };
        let shade = Some((at, until, format!("attack: {}", self.kind.name())));
        Ok(Attack {
            changes,
            hunt,
            shade,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attack(kind: AttackKind, replicas: usize) -> Attack {
        let text = AttackText {
            kind,
            at: Span(Duration::from_secs(2)),
            until: Some(Span(Duration::from_secs(5))),
            every: None,
            delay_more: None,
            loss: None,
        };
        let (begins, measured) = (Duration::from_secs(1), Duration::from_secs(9));
        text.attack(replicas, begins, measured, 7)
            .expect("in order")
    }

    #[test]
    fn minority_is_drawn_again_every_half_second_and_is_never_more() {
        for replicas in [3, 5, 11] {
            let found = attack(AttackKind::Minority, replicas);
            assert_eq!(found.changes.len(), 6);
            assert_eq!(found.changes[0].at, Duration::from_secs(3));
            assert_eq!(found.changes[5].until, Some(Duration::from_secs(6)));
            for change in &found.changes {
                let mut victims = change.from.clone();
                victims.sort_unstable();
                victims.dedup();
                assert_eq!(victims.len(), change.from.len(), "each once");
                assert!((1..=(replicas - 1) / 2).contains(&victims.len()));
                assert!(victims.iter().all(|id| usize::from(*id) < replicas));
            }
            let drawn = |found: &Attack| -> Vec<Vec<u16>> {
                found.changes.iter().map(|one| one.from.clone()).collect()
            };
            assert_eq!(found, attack(AttackKind::Minority, replicas), "repeatable");
            assert!(drawn(&found).windows(2).any(|two| two[0] != two[1]));
        }
        assert_eq!(attack(AttackKind::Minority, 1).changes, []);
    }

    /// Whether a frame gets from one replica to another.
    fn passes(found: &Attack, from: u16, to: u16) -> bool {
        let concerns = |ids: &[u16], id| ids.is_empty() || ids.contains(&id);
        !found
            .changes
            .iter()
            .any(|one| one.cut && concerns(&one.from, from) && concerns(&one.to, to))
    }

    #[test]
    fn cuts_leave_the_shape_that_they_are_named_for() {
        let ring = attack(AttackKind::Ring, 5);
        let bridge = attack(AttackKind::Bridge, 5);
        let one_way = attack(AttackKind::OneWay, 5);
        for from in 0..5u16 {
            for to in (0..5).filter(|to| *to != from) {
                let apart = (from + 5 - to) % 5;
                assert_eq!(passes(&ring, from, to), apart == 1 || apart == 4);
                let same = (from < 2) == (to < 2);
                assert_eq!(passes(&bridge, from, to), same || from == 2 || to == 2);
                assert_eq!(passes(&one_way, from, to), from != 0);
            }
        }
        assert_eq!(
            attack(AttackKind::Ring, 3).changes,
            [],
            "all are neighbours"
        );
    }

    #[test]
    fn every_kind_is_called_as_it_is_read() {
        for kind in AttackKind::ALL {
            let text = format!("kind = \"{}\"", kind.name());
            let read: AttackText = toml::from_str(&text).expect("as it is called");
            assert_eq!(read.kind, kind);
        }
    }
}
