//! Plots as SVG: lines with their spread, shaded times, published points.
//!
//! ```text
//!   y ┤   ┬──●──┐        ● median, bars from the smallest to the largest
//!     │  ┬●     │ ◇      ◇ published
//!     └──┴──────┴── x    shaded: while something was broken
//! ```

use crate::figures::Spread;
use std::fmt::Write as _;

/// A point with its spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Where it is on the first axis.
    pub x: f64,
    /// Where on the second.
    pub y: Spread,
}

/// A line of a plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// Its points, in the order in which they are joined.
    pub points: Vec<Point>,
    /// Whether another source published it.
    pub is_published: bool,
}

/// A plot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chart {
    /// The horizontal axis.
    pub x: String,
    /// The vertical axis.
    pub y: String,
    /// Its lines.
    pub series: Vec<Series>,
    /// Times that are shaded: from, until, why.
    pub shades: Vec<(f64, f64, String)>,
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 50.0;
/// Told apart by people who see colours differently, too.
const COLOURS: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#999933",
];

/// Text as XML has it.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// A step that people can count in: 1, 2 or 5 times a power of ten.
fn step(range: f64) -> f64 {
    let raw = (range / 5.0).max(f64::MIN_POSITIVE);
    let power = 10f64.powf(raw.log10().floor());
    let scaled = raw / power;
    let nice = match scaled {
        s if s <= 1.0 => 1.0,
        s if s <= 2.0 => 2.0,
        s if s <= 5.0 => 5.0,
        _ => 10.0,
    };
    nice * power
}

/// A number as short as it can be told.
fn label(value: f64) -> String {
    let magnitude = value.abs();
    let shown = if magnitude >= 1e6 {
        format!("{:.2}M", value / 1e6)
    } else if magnitude >= 1e4 {
        format!("{:.1}k", value / 1e3)
    } else {
        format!("{value:.3}")
    };
    let suffix = shown.trim_start_matches(|c: char| c.is_ascii_digit() || ".-".contains(c));
    let digits = &shown[..shown.len() - suffix.len()];
    let digits = if digits.contains('.') {
        digits.trim_end_matches('0').trim_end_matches('.')
    } else {
        digits
    };
    format!("{digits}{suffix}")
}

struct Frame {
    x_max: f64,
    y_max: f64,
}

impl Frame {
    fn x(&self, value: f64) -> f64 {
        LEFT + value / self.x_max * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - value / self.y_max * (HEIGHT - TOP - BOTTOM)
    }
}

/// Draws a plot. Both axes begin at zero.
pub fn chart(chart: &Chart) -> String {
    let points = || chart.series.iter().flat_map(|series| &series.points);
    let x_most = points().map(|point| point.x).fold(0.0, f64::max);
    let y_most = points().map(|point| point.y.max).fold(0.0, f64::max);
    let (x_step, y_step) = (step(x_most), step(y_most));
    let frame = Frame {
        x_max: (x_most / x_step).ceil().max(1.0) * x_step,
        y_max: (y_most / y_step).ceil().max(1.0) * y_step,
    };
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{} by {}\">\n",
        escaped(&chart.y),
        escaped(&chart.x)
    );
    // Writing to a string does not fail, here and below.
    for (from, until, why) in &chart.shades {
        let (left, right) = (
            frame.x(from.min(frame.x_max)),
            frame.x(until.min(frame.x_max)),
        );
        let _ = writeln!(
            out,
            "<rect class=\"shade\" x=\"{left:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{:.1}\">\
             <title>{}</title></rect>\
             <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            right - left,
            HEIGHT - TOP - BOTTOM,
            escaped(why),
            left + 4.0,
            TOP + 12.0,
            escaped(why),
        );
    }
    let mut value = 0.0;
    while value <= frame.y_max * 1.001 {
        let y = frame.y(value);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text class=\"tick\" text-anchor=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            y + 4.0,
            label(value),
        );
        value += y_step;
    }
    value = 0.0;
    while value <= frame.x_max * 1.001 {
        let x = frame.x(value);
        let _ = writeln!(
            out,
            "<text class=\"tick\" text-anchor=\"middle\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
            HEIGHT - BOTTOM + 18.0,
            label(value),
        );
        value += x_step;
    }
    let _ = writeln!(
        out,
        "<text class=\"axis\" text-anchor=\"middle\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\
         <text class=\"axis\" text-anchor=\"middle\" transform=\"translate(16 {:.1}) rotate(-90)\">\
         {}</text>",
        f64::midpoint(LEFT, WIDTH - RIGHT),
        HEIGHT - 10.0,
        escaped(&chart.x),
        f64::midpoint(TOP, HEIGHT - BOTTOM),
        escaped(&chart.y),
    );
    for (index, series) in chart.series.iter().enumerate() {
        draw(&mut out, &frame, series, COLOURS[index % COLOURS.len()]);
    }
    out.push_str("</svg>\n<p class=\"legend\">");
    for (index, series) in chart.series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let mark = if series.is_published { "◇" } else { "●" };
        let _ = write!(
            out,
            "<span><b style=\"color:{colour}\">{mark}</b> {}</span> ",
            escaped(&series.name)
        );
    }
    out.push_str("</p>\n");
    out
}

fn draw(out: &mut String, frame: &Frame, series: &Series, colour: &str) {
    let place = |point: &Point| (frame.x(point.x), frame.y(point.y.median));
    let joined: Vec<String> = series
        .points
        .iter()
        .map(|point| {
            let (x, y) = place(point);
            format!("{x:.1},{y:.1}")
        })
        .collect();
    let dashes = if series.is_published {
        " stroke-dasharray=\"5 4\""
    } else {
        ""
    };
    let _ = writeln!(
        out,
        "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\"{dashes} points=\"{}\"/>",
        joined.join(" ")
    );
    // A timeline has too many points for marks.
    if series.points.len() > 40 {
        return;
    }
    for point in &series.points {
        let (x, y) = place(point);
        let (low, high) = (frame.y(point.y.min), frame.y(point.y.max));
        let title = format!(
            "{}: {} ({}..{}) at {}",
            escaped(&series.name),
            label(point.y.median),
            label(point.y.min),
            label(point.y.max),
            label(point.x)
        );
        let fill = if series.is_published { "#fff" } else { colour };
        let _ = writeln!(
            out,
            "<line stroke=\"{colour}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{low:.1}\" y2=\"{high:.1}\"/>\
             <circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.6\" fill=\"{fill}\" stroke=\"{colour}\">\
             <title>{title}</title></circle>"
        );
    }
}

/// Horizontal bars with their spread, one for each name.
pub fn bars(title: &str, values: &[(String, Spread)]) -> String {
    const ROW: f64 = 26.0;
    const NAMES: f64 = 190.0;
    const NUMBERS: f64 = 64.0;
    let most = values.iter().map(|value| value.1.max).fold(0.0, f64::max);
    let scale = (WIDTH - NAMES - NUMBERS) / most.max(f64::MIN_POSITIVE);
    let height = 24.0 + ROW * values.len() as f64;
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{0}\">\n\
         <text class=\"axis\" x=\"0\" y=\"14\">{0}</text>\n",
        escaped(title)
    );
    for (index, (name, spread)) in values.iter().enumerate() {
        let top = 24.0 + ROW * index as f64;
        let middle = top + 9.0;
        let end = |value: f64| NAMES + value * scale;
        let colour = if name.starts_with("quintet") {
            COLOURS[0]
        } else {
            COLOURS[4]
        };
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "<text class=\"tick\" text-anchor=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\
             <rect fill=\"{colour}\" x=\"{NAMES}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"18\"/>\
             <line stroke=\"#333\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\"/>\
             <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            NAMES - 8.0,
            middle + 4.0,
            escaped(name),
            spread.median * scale,
            end(spread.min),
            end(spread.max),
            end(spread.max) + 6.0,
            middle + 4.0,
            label(spread.median),
        );
    }
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_labels_are_short() {
        assert_eq!(
            [step(10.0), step(37.0), step(0.3), step(90_000.0)],
            [2.0, 10.0, 0.1, 20_000.0]
        );
        let labels = [0.0, 12.5, 300.0, 20_000.0, 1_500_000.0].map(label);
        assert_eq!(labels, ["0", "12.5", "300", "20k", "1.5M"]);
    }

    #[test]
    fn plot_has_its_lines_its_shades_and_no_markup_of_others() {
        let point = |x, y| Point {
            x,
            y: Spread::of([y, y * 1.1]),
        };
        let drawn = chart(&Chart {
            x: "a<b".to_owned(),
            y: "y".to_owned(),
            series: vec![Series {
                name: "one & two".to_owned(),
                points: vec![point(1.0, 2.0), point(2.0, 5.0)],
                is_published: false,
            }],
            shades: vec![(0.5, 1.5, "cut".to_owned())],
        });
        assert!(drawn.contains("a&lt;b") && drawn.contains("one &amp; two"));
        assert!(drawn.contains("class=\"shade\""));
        assert_eq!(drawn.matches("<circle").count(), 2);
        assert!(!drawn.contains("NaN") && !drawn.contains("inf"));
        let empty = chart(&Chart::default());
        assert!(!empty.contains("NaN") && !empty.contains("inf"));
    }
}
