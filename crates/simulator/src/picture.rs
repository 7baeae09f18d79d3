//! A run as a message-sequence picture: one page of HTML that needs nothing else.
//!
//! ```text
//!        r0          r1          r2          c3
//!    1ms │──Accept──►│           │           │      an arrow per frame, ╳ where it got lost
//!        │     ╲─────┼──Accept──►│           │
//!    2ms │           ▒ crashes   │           │      shaded while down, or standing still
//!   ─────┼───────────▒───────────┼───────────┼──    red where a property does not hold
//! ```
//!
//! Time runs downwards, one row per thing that happens, however long nothing happens in between.

use std::fmt::Write as _;

/// More rows than this are not drawn: those before are left out.
const ROWS_MAX: usize = 1500;
const ROW: usize = 18;
const LANE: usize = 190;
const LEFT: usize = 100;
const TOP: usize = 44;
/// Labels of arrows are cut here; the whole text appears under the pointer.
const LABEL_MAX: usize = 22;
const NOTE_MAX: usize = 70;

/// The subject of a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Client,
    Fault,
    Violation,
}

#[derive(Clone, Debug)]
struct Note {
    row: usize,
    lane: Option<usize>,
    text: String,
    tone: Tone,
}

#[derive(Clone, Debug)]
struct Arrow {
    from: usize,
    to: usize,
    sent: usize,
    arrived: Option<usize>,
    lost: bool,
    text: String,
    /// Tells frames apart until they arrive.
    key: (usize, usize),
}

/// A stretch of time on one lane, or on all.
#[derive(Clone, Debug)]
struct Shade {
    lane: Option<usize>,
    from: usize,
    until: Option<usize>,
    text: String,
}

/// The contents of a drawing. Things are told in the order in which they happen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scene {
    lanes: Vec<String>,
    /// The time of each row.
    rows: Vec<u64>,
    last_send: Option<(u64, usize)>,
    notes: Vec<Note>,
    arrows: Vec<Arrow>,
    shades: Vec<Shade>,
}

impl Scene {
    pub fn new(lanes: Vec<String>) -> Self {
        Self {
            lanes,
            ..Self::default()
        }
    }

    fn row(&mut self, now: u64) -> usize {
        self.last_send = None;
        self.rows.push(now);
        self.rows.len() - 1
    }

    /// The lane of this name, which is made when there is none.
    pub fn lane(&mut self, name: &str) -> usize {
        match self.lanes.iter().position(|lane| lane == name) {
            Some(lane) => lane,
            None => {
                self.lanes.push(name.to_string());
                self.lanes.len() - 1
            }
        }
    }

    pub fn note(&mut self, now: u64, lane: Option<usize>, tone: Tone, text: impl Into<String>) {
        let row = self.row(now);
        self.notes.push(Note {
            row,
            lane,
            text: text.into(),
            tone,
        });
    }

    /// A frame leaves; `key` finds it again when it arrives.
    pub fn send(
        &mut self,
        now: u64,
        (from, to): (usize, usize),
        key: (usize, usize),
        text: String,
    ) {
        // One message to several is one row; another message needs room for its name.
        let same = self.arrows.last().is_some_and(|last| last.text == text);
        let sent = match self.last_send {
            Some(last) if same && last == (now, from) => self.rows.len() - 1,
            _ => self.row(now),
        };
        self.last_send = Some((now, from));
        self.arrows.push(Arrow {
            from,
            to,
            sent,
            arrived: None,
            lost: false,
            text,
            key,
        });
    }

    /// A frame comes to its end: arrives, or is lost.
    pub fn arrive(
        &mut self,
        now: u64,
        (from, to): (usize, usize),
        key: (usize, usize),
        lost: bool,
    ) {
        let row = self.row(now);
        let found = (self.arrows.iter_mut()).find(|arrow| {
            arrow.arrived.is_none() && (arrow.from, arrow.to, arrow.key) == (from, to, key)
        });
        match found {
            Some(arrow) => (arrow.arrived, arrow.lost) = (Some(row), lost),
            // A copy of one that came before.
            None => {
                let text = (self.arrows.iter().rev())
                    .find(|arrow| (arrow.from, arrow.to, arrow.key) == (from, to, key))
                    .map_or_else(String::new, |arrow| format!("copy of {}", arrow.text));
                self.arrows.push(Arrow {
                    from,
                    to,
                    sent: row.saturating_sub(1),
                    arrived: Some(row),
                    lost,
                    text,
                    key,
                });
            }
        }
    }

    /// The frame that left last between these two is lost.
    pub fn lose_last(&mut self, now: u64, (from, to): (usize, usize)) {
        let row = self.row(now);
        let last = (self.arrows.iter_mut().rev())
            .find(|arrow| arrow.arrived.is_none() && (arrow.from, arrow.to) == (from, to));
        if let Some(arrow) = last {
            (arrow.arrived, arrow.lost) = (Some(row), true);
        }
    }

    /// Shades a lane, or all of them, from now on.
    pub fn shade(&mut self, now: u64, lane: Option<usize>, text: impl Into<String>) {
        let from = self.row(now);
        self.shades.push(Shade {
            lane,
            from,
            until: None,
            text: text.into(),
        });
    }

    /// Ends what was shaded under this text.
    pub fn unshade(&mut self, now: u64, lane: Option<usize>, text: &str) {
        let row = self.row(now);
        let open =
            |shade: &&mut Shade| shade.until.is_none() && shade.lane == lane && shade.text == text;
        if let Some(shade) = self.shades.iter_mut().find(open) {
            shade.until = Some(row);
        }
    }

    /// The page. `facts` are shown above the picture as name and text.
    pub fn page(&self, title: &str, facts: &[(&str, String)], lines: &[String]) -> String {
        let mut out = String::with_capacity(1 << 16);
        put(
            &mut out,
            format_args!(
                "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
             content=\"width=device-width\">\n<title>{title}</title>\n<style>{STYLE}</style>\n\
             <h1>{title}</h1>\n<dl>\n",
                title = escaped(title)
            ),
        );
        for (name, text) in facts {
            put(
                &mut out,
                format_args!("<dt>{}</dt><dd>{}</dd>\n", escaped(name), escaped(text)),
            );
        }
        out.push_str("</dl>\n");
        let hidden = self.rows.len().saturating_sub(ROWS_MAX);
        if hidden > 0 {
            put(
                &mut out,
                format_args!(
                    "<p>The first {hidden} of {} rows are left out.</p>\n",
                    self.rows.len()
                ),
            );
        }
        out.push_str(LEGEND);
        self.draw(&mut out, hidden);
        if !lines.is_empty() {
            put(
                &mut out,
                format_args!(
                    "<details><summary>Everything that happened ({} lines)</summary>\n<pre>",
                    lines.len()
                ),
            );
            for line in lines {
                out.push_str(&escaped(line));
                out.push('\n');
            }
            out.push_str("</pre></details>\n");
        }
        out.push_str("</html>\n");
        out
    }

    /// Lanes on which anything happens in the rows shown, in their order; replicas always.
    fn shown(&self, hidden: usize) -> Vec<usize> {
        let mut used: Vec<bool> = (self.lanes.iter())
            .map(|name| name.starts_with('r'))
            .collect();
        for note in self.notes.iter().filter(|note| note.row >= hidden) {
            if let Some(lane) = note.lane {
                used[lane] = true;
            }
        }
        for arrow in &self.arrows {
            if arrow.sent >= hidden {
                (used[arrow.from], used[arrow.to]) = (true, true);
            }
        }
        (0..self.lanes.len()).filter(|lane| used[*lane]).collect()
    }

    fn draw(&self, out: &mut String, hidden: usize) {
        let shown = self.shown(hidden);
        let x = |lane: usize| {
            let at = shown.iter().position(|shown| *shown == lane).unwrap_or(0);
            LEFT + LANE / 2 + at * LANE
        };
        let y = |row: usize| TOP + 14 + row.saturating_sub(hidden) * ROW;
        let (width, height) = (LEFT + shown.len() * LANE + 220, y(self.rows.len()) + ROW);
        put(
            out,
            format_args!(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" role=\"img\">\n<defs>{MARKERS}</defs>\n"
            ),
        );
        let end = y(self.rows.len());
        for shade in &self.shades {
            let until = shade.until.map_or(end, y);
            if shade.until.is_some_and(|until| until < hidden) {
                continue;
            }
            let from = y(shade.from.max(hidden));
            let (left, wide, class) = match shade.lane {
                Some(lane) => (x(lane) - 14, 28, "down"),
                None => (LEFT, shown.len() * LANE, "cut"),
            };
            put(
                out,
                format_args!(
                    "<rect class=\"{class}\" x=\"{left}\" y=\"{from}\" width=\"{wide}\" \
                 height=\"{}\"><title>{text}</title></rect>\n",
                    until.saturating_sub(from).max(ROW / 2),
                    text = escaped(&shade.text)
                ),
            );
            if shade.lane.is_none() {
                put(
                    out,
                    format_args!(
                        "<text class=\"fault\" x=\"{}\" y=\"{}\">{}</text>\n",
                        LEFT + shown.len() * LANE + 6,
                        from + 11,
                        escaped(&cut(&shade.text, NOTE_MAX))
                    ),
                );
            }
        }
        for lane in &shown {
            let (x, name) = (x(*lane), escaped(&self.lanes[*lane]));
            put(
                out,
                format_args!(
                    "<line class=\"lane\" x1=\"{x}\" y1=\"{TOP}\" x2=\"{x}\" y2=\"{end}\"/>\n\
                 <text class=\"name\" x=\"{x}\" y=\"{}\">{name}</text>\n",
                    TOP - 12
                ),
            );
        }
        let mut before = u64::MAX;
        for (row, at) in self.rows.iter().enumerate().skip(hidden) {
            if *at != before {
                put(
                    out,
                    format_args!(
                        "<text class=\"time\" x=\"{}\" y=\"{}\">{}</text>\n",
                        LEFT - 8,
                        y(row) + 4,
                        clock(*at)
                    ),
                );
                before = *at;
            }
        }
        for arrow in self.arrows.iter().filter(|arrow| arrow.sent >= hidden) {
            draw_arrow(out, arrow, x(arrow.from), x(arrow.to), &y, end);
        }
        for note in self.notes.iter().filter(|note| note.row >= hidden) {
            let class = match note.tone {
                Tone::Plain => "note",
                Tone::Client => "client",
                Tone::Fault => "fault",
                Tone::Violation => "violation",
            };
            let at = y(note.row);
            let left = note.lane.map_or(LEFT + 4, |lane| x(lane) + 8);
            if note.tone == Tone::Violation {
                put(
                    out,
                    format_args!(
                        "<line class=\"broken\" x1=\"{LEFT}\" y1=\"{under}\" x2=\"{width}\" y2=\"{under}\"/>\n",
                        under = at + 9
                    ),
                );
            }
            if let Some(lane) = note.lane {
                put(
                    out,
                    format_args!(
                        "<circle class=\"{class}\" cx=\"{}\" cy=\"{at}\" r=\"3\"/>\n",
                        x(lane)
                    ),
                );
            }
            put(
                out,
                format_args!(
                    "<text class=\"{class}\" x=\"{left}\" y=\"{}\">{}<title>{}</title></text>\n",
                    at + 4,
                    escaped(&cut(
                        &note.text,
                        if note.tone == Tone::Violation {
                            160
                        } else {
                            NOTE_MAX
                        }
                    )),
                    escaped(&note.text)
                ),
            );
        }
        out.push_str("</svg>\n");
    }
}

fn draw_arrow(
    out: &mut String,
    arrow: &Arrow,
    from: usize,
    to: usize,
    y: &dyn Fn(usize) -> usize,
    end: usize,
) {
    let top = y(arrow.sent);
    let (class, marker) = match (arrow.lost, arrow.arrived) {
        (true, _) => ("arrow lost", "lost"),
        (false, Some(_)) => ("arrow", "head"),
        (false, None) => ("arrow open", "open"),
    };
    // An arrow of a frame that has not arrived when the picture ends points at its destination.
    let (right, bottom) = match arrow.arrived {
        Some(row) => (to, y(row)),
        None if to > from => (from + (to - from) / 3, (top + ROW / 2).min(end)),
        None => (from - (from - to) / 3, (top + ROW / 2).min(end)),
    };
    put(
        out,
        format_args!(
            "<g class=\"{class}\"><title>{}</title><line x1=\"{from}\" y1=\"{top}\" x2=\"{right}\" \
         y2=\"{bottom}\" marker-end=\"url(#{marker})\"/>",
            escaped(&arrow.text)
        ),
    );
    let name = arrow.text.split([' ', '{', '(']).next().unwrap_or_default();
    let (anchor, at) = match to > from {
        true => ("start", from + 10),
        false => ("end", from.saturating_sub(10)),
    };
    put(
        out,
        format_args!(
            "<text x=\"{at}\" y=\"{}\" text-anchor=\"{anchor}\">{}</text></g>\n",
            top.saturating_sub(2),
            escaped(&cut(name, LABEL_MAX))
        ),
    );
}

fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = out.write_fmt(text);
}

/// Nanoseconds as milliseconds.
fn clock(nanos: u64) -> String {
    format!("{}.{:03} ms", nanos / 1_000_000, nanos / 1000 % 1000)
}

fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_string(),
    }
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c2430;--soft:#8a94a3;--paper:#fff;--blue:#1f5fbf;\
--red:#c62828;--amber:#b26a00;--green:#1b7a3d}\
@media(prefers-color-scheme:dark){:root{--ink:#dde3ea;--soft:#7c8794;--paper:#14181d;\
--blue:#7fb0ff;--red:#ff7b72;--amber:#e3b341;--green:#6fcf97}}\
body{font:14px/1.45 system-ui,sans-serif;margin:24px;color:var(--ink);background:var(--paper)}\
h1{font-size:18px;margin:0 0 8px}dl{display:grid;grid-template-columns:max-content 1fr;\
gap:2px 14px;margin:0 0 12px}dt{color:var(--soft)}dd{margin:0;font-family:ui-monospace,monospace;\
overflow-wrap:anywhere}pre{font-size:12px;overflow-x:auto}.legend{color:var(--soft);margin:0 0 6px}\
svg text{font:11px ui-monospace,monospace;fill:var(--ink);paint-order:stroke;\
stroke:var(--paper);stroke-width:3px;stroke-linejoin:round}\
svg .name{font:bold 13px system-ui,sans-serif;text-anchor:middle}\
svg .time{fill:var(--soft);text-anchor:end}.lane{stroke:var(--soft);stroke-width:1}\
.arrow line{stroke:var(--blue);stroke-width:1.3}svg .arrow text{fill:var(--blue)}\
.arrow.lost line{stroke:var(--red);stroke-dasharray:4 3}svg .arrow.lost text{fill:var(--red)}\
.arrow.open line{stroke-dasharray:2 3}.arrow:hover line{stroke-width:3}\
svg text.note{fill:var(--soft)}circle.note{fill:var(--soft)}svg text.client{fill:var(--green)}\
circle.client{fill:var(--green)}svg text.fault{fill:var(--amber);font-weight:bold}\
circle.fault{fill:var(--amber)}svg text.violation{fill:var(--red);font-weight:bold;font-size:13px}\
circle.violation{fill:var(--red)}.broken{stroke:var(--red);stroke-width:2}\
.down{fill:url(#hatch);stroke:var(--amber);stroke-width:.5}.cut{fill:var(--amber);opacity:.09}";

const LEGEND: &str = "<p class=\"legend\">Time runs down, one row per thing that happens. Arrows \
are frames: dashed and crossed when lost, short and dotted when still in progress at the end. \
Hatched: a replica is down or stands still. Tinted: links are cut. Point at anything for its whole \
text.</p>\n";

const MARKERS: &str = "<marker id=\"head\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" \
markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" \
fill=\"var(--blue)\"/></marker><marker id=\"open\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" \
markerWidth=\"6\" markerHeight=\"6\" orient=\"auto\"><path d=\"M0 0L8 4L0 8\" fill=\"none\" \
stroke=\"var(--blue)\"/></marker><marker id=\"lost\" viewBox=\"0 0 8 8\" refX=\"4\" refY=\"4\" \
markerWidth=\"8\" markerHeight=\"8\"><path d=\"M0 0L8 8M8 0L0 8\" stroke=\"var(--red)\" \
stroke-width=\"1.6\"/></marker><pattern id=\"hatch\" width=\"6\" height=\"6\" \
patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><line x1=\"0\" y1=\"0\" x2=\"0\" \
y2=\"6\" stroke=\"var(--amber)\" stroke-width=\"2\"/></pattern>";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_shows_all_marks_and_loads_no_resources() {
        let mut scene = Scene::new(vec!["r0".into(), "r1".into()]);
        let idle = scene.lane("c9");
        let client = scene.lane("c0");
        scene.note(1_000, Some(client), Tone::Client, "invokes <1> & waits");
        scene.send(2_000, (0, 1), (1, 1), "Accept { ballot: 1 }".into());
        scene.send(2_000, (0, 1), (2, 2), "Commit { ballot: 1 }".into());
        scene.arrive(3_000, (0, 1), (1, 1), false);
        scene.arrive(4_000, (0, 1), (2, 2), true);
        scene.shade(5_000, Some(1), "down");
        scene.shade(5_500, None, "r0 ↛ r1");
        scene.unshade(6_000, Some(1), "down");
        scene.note(7_000, None, Tone::Violation, "agreement: two orders");
        let page = scene.page(
            "seed 1",
            &[("replay", "quintet".into())],
            &["a line".into()],
        );
        for part in [
            ">Accept<",
            "url(#lost)",
            "class=\"down\"",
            "class=\"cut\"",
            "class=\"broken\"",
            "invokes &lt;1&gt; &amp; waits",
            ">r1<",
            "a line",
        ] {
            assert!(page.contains(part), "{part} is missing in {page}");
        }
        assert!(!page.contains("c9"), "lane {idle} was never used");
        for outside in ["href=", "src=", "@import"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert_eq!(page.matches("<g ").count(), page.matches("</g>").count());
    }
}
