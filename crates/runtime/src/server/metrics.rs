//! Metrics in Prometheus's text format.
//!
//! ```text
//!   # HELP quintet_commands_total Commands received from clients.
//!   # TYPE quintet_commands_total counter
//!   quintet_commands_total 1234
//! ```

use std::fmt::Write as _;

/// The kind of a metric's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It only grows while the process runs.
    Counter,
    /// It goes up and down.
    Gauge,
}

/// One metric with its samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// Its name without the prefix `quintet_`.
    pub name: &'static str,
    /// The counted events, in one line.
    pub help: &'static str,
    /// The kind of its value.
    pub kind: MetricKind,
    /// Labels (already in the form `key="value",…`, or empty) with their values.
    pub samples: Vec<(String, f64)>,
}

/// All metrics of a node at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exposition {
    /// In the order in which they are shown.
    pub families: Vec<Family>,
}

impl Exposition {
    /// Adds a counter.
    pub fn counter(&mut self, name: &'static str, help: &'static str, value: u64) {
        self.add(
            MetricKind::Counter,
            name,
            help,
            vec![(String::new(), value as f64)],
        );
    }

    /// Adds a gauge.
    pub fn gauge(&mut self, name: &'static str, help: &'static str, value: f64) {
        self.add(MetricKind::Gauge, name, help, vec![(String::new(), value)]);
    }

    /// Adds a metric with several samples, each with its labels.
    pub fn add(
        &mut self,
        kind: MetricKind,
        name: &'static str,
        help: &'static str,
        samples: Vec<(String, f64)>,
    ) {
        self.families.push(Family {
            name,
            help,
            kind,
            samples,
        });
    }

    /// The text that a scrape gets.
    #[must_use]
    pub fn render(&self) -> String {
        let mut out = String::with_capacity(128 * self.families.len());
        for Family {
            name,
            help,
            kind,
            samples,
        } in &self.families
        {
            let kind = match kind {
                MetricKind::Counter => "counter",
                MetricKind::Gauge => "gauge",
            };
            // Writing to a string cannot fail.
            let _ = write!(
                out,
                "# HELP quintet_{name} {help}\n# TYPE quintet_{name} {kind}\n"
            );
            for (labels, value) in samples {
                let _ = match labels.is_empty() {
                    true => writeln!(out, "quintet_{name} {value}"),
                    false => writeln!(out, "quintet_{name}{{{labels}}} {value}"),
                };
            }
        }
        out
    }
}

/// The counters of a gateway since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names and the help texts below say it")]
pub struct Counters {
    pub connections_open: u64,
    pub connections_total: u64,
    pub connections_rejected: u64,
    pub connections_dropped: u64,
    pub commands: u64,
    pub commands_local: u64,
    pub commands_read: u64,
    pub commands_write: u64,
    pub batches_ordered: u64,
    pub batches_linearizable: u64,
    pub batches_stale: u64,
    pub batches_in_flight: u64,
    pub bytes_in_flight: u64,
    pub ordered_nanoseconds: u64,
    pub linearizable_nanoseconds: u64,
    pub stale_nanoseconds: u64,
    pub errors: u64,
    pub errors_no_quorum: u64,
    pub errors_uncertain: u64,
    pub errors_busy: u64,
    pub errors_disk_full: u64,
    pub errors_protocol: u64,
    pub auth_failures: u64,
    pub auth_throttled: u64,
    pub sessions_open: u64,
    pub sessions_lost: u64,
    pub input_bytes: u64,
    pub output_bytes: u64,
}

impl Counters {
    /// Adds them to the metrics of a node.
    pub fn render_into(&self, metrics: &mut Exposition) {
        let gauges = [
            (
                "connections",
                "Open client connections.",
                self.connections_open,
            ),
            (
                "batches_in_flight",
                "Batches in flight.",
                self.batches_in_flight,
            ),
            (
                "in_flight_bytes",
                "Bytes of batches in flight.",
                self.bytes_in_flight,
            ),
            (
                "client_sessions",
                "Sessions of this server's connections.",
                self.sessions_open,
            ),
        ];
        for (name, help, value) in gauges {
            metrics.gauge(name, help, value as f64);
        }
        let counters = [
            (
                "connections_total",
                "Connections accepted.",
                self.connections_total,
            ),
            (
                "connections_rejected_total",
                "Connections refused because there were too many.",
                self.connections_rejected,
            ),
            (
                "connections_dropped_total",
                "Connections closed for idleness, unread replies or a missing password.",
                self.connections_dropped,
            ),
            (
                "commands_total",
                "Commands received from clients.",
                self.commands,
            ),
            (
                "commands_local_total",
                "Commands answered by the server.",
                self.commands_local,
            ),
            (
                "commands_read_total",
                "Commands that only read.",
                self.commands_read,
            ),
            (
                "commands_write_total",
                "Commands that may write.",
                self.commands_write,
            ),
            (
                "batches_ordered_total",
                "Batches submitted to be ordered.",
                self.batches_ordered,
            ),
            (
                "batches_linearizable_total",
                "Batches submitted as linearizable reads.",
                self.batches_linearizable,
            ),
            (
                "batches_stale_total",
                "Batches submitted as reads of this replica's state, however old.",
                self.batches_stale,
            ),
            (
                "errors_total",
                "Error replies made by the server.",
                self.errors,
            ),
            (
                "errors_no_quorum_total",
                "Commands that found no quorum.",
                self.errors_no_quorum,
            ),
            (
                "errors_uncertain_total",
                "Commands whose outcome is not known.",
                self.errors_uncertain,
            ),
            (
                "errors_busy_total",
                "Commands refused by a full queue.",
                self.errors_busy,
            ),
            (
                "errors_disk_full_total",
                "Writes refused because the disk is full.",
                self.errors_disk_full,
            ),
            (
                "errors_protocol_total",
                "Malformed client input.",
                self.errors_protocol,
            ),
            (
                "auth_failures_total",
                "Wrong passwords.",
                self.auth_failures,
            ),
            (
                "auth_throttled_total",
                "Passwords not looked at: too many wrong ones from that address.",
                self.auth_throttled,
            ),
            (
                "sessions_lost_total",
                "Sessions that the log no longer knew.",
                self.sessions_lost,
            ),
            (
                "client_input_bytes_total",
                "Bytes received from clients.",
                self.input_bytes,
            ),
            (
                "client_output_bytes_total",
                "Bytes of replies to clients.",
                self.output_bytes,
            ),
        ];
        for (name, help, value) in counters {
            metrics.counter(name, help, value);
        }
        let seconds = [
            (
                "ordered_seconds_total",
                "Time that ordered batches took, summed.",
                self.ordered_nanoseconds,
            ),
            (
                "linearizable_seconds_total",
                "Time that batches of linearizable reads took, summed.",
                self.linearizable_nanoseconds,
            ),
            (
                "stale_seconds_total",
                "Time that batches of reads of this replica's state took, summed.",
                self.stale_nanoseconds,
            ),
        ];
        for (name, help, value) in seconds {
            let samples = vec![(String::new(), value as f64 / 1e9)];
            metrics.add(MetricKind::Counter, name, help, samples);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_help_type_and_samples() {
        let mut metrics = Exposition::default();
        metrics.counter("fish_total", "Fish caught.", 3);
        let samples = vec![
            ("peer=\"1\"".to_string(), 1.0),
            ("peer=\"2\"".to_string(), 0.5),
        ];
        metrics.add(MetricKind::Gauge, "up", "Whether it is up.", samples);
        assert_eq!(
            metrics.render(),
            "# HELP quintet_fish_total Fish caught.\n# TYPE quintet_fish_total counter\n\
             quintet_fish_total 3\n# HELP quintet_up Whether it is up.\n# TYPE quintet_up gauge\n\
             quintet_up{peer=\"1\"} 1\nquintet_up{peer=\"2\"} 0.5\n"
        );
    }

    #[test]
    fn every_counter_is_shown_under_its_own_name() {
        let mut metrics = Exposition::default();
        Counters::default().render_into(&mut metrics);
        let mut names: Vec<_> = metrics.families.iter().map(|family| family.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        for family in &metrics.families {
            assert_eq!(
                family.name.ends_with("_total"),
                family.kind == MetricKind::Counter
            );
        }
    }
}
