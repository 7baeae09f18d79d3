//! Places on the earth as numbers of 52 bits, such that what is near is mostly near in number.
//!
//! ```text
//!   longitude −180 … 180 ──► 26 bits  l25 … l1 l0 ─┐
//!                                                  ├─► l25 a25 … l1 a1 l0 a0   a score, exact in f64
//!   latitude −85.05 … 85.05 ► 26 bits a25 … a1 a0 ─┘
//!
//!   the first 2n bits name a cell of 2^n × 2^n ──► one range of scores
//! ```
//!
//! Every replica must find the same, so sines and their like come from a library in Rust and not
//! from the platform's.

use super::sorted_set::ScoreRange;

/// Longitude and latitude, in degrees.
pub type Point = (f64, f64);

/// Bits of a coordinate.
const STEPS: u8 = 26;
const LONGITUDE_MAX: f64 = 180.0;
/// The Mercator projection ends here (EPSG:900913).
const LATITUDE_MAX: f64 = 85.051_128_78;
/// Redis's mean radius of the earth, in metres.
const EARTH: f64 = 6_372_797.560_856;
/// Half of the equator, in metres, in the Mercator projection.
const MERCATOR_MAX: f64 = 20_037_726.37;
const LONGITUDE_BITS: u64 = 0xaaaa_aaaa_aaaa_aaaa;
const LATITUDE_BITS: u64 = 0x5555_5555_5555_5555;
const ALPHABET: &[u8; 32] = b"0123456789bcdefghjkmnpqrstuvwxyz";

/// Whether a place has a score.
#[must_use]
pub fn is_place((longitude, latitude): Point) -> bool {
    longitude.abs() <= LONGITUDE_MAX && latitude.abs() <= LATITUDE_MAX
}

/// A cell of the grid of 2^`step` × 2^`step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    bits: u64,
    step: u8,
}

/// The borders of a cell or of a shape.
#[derive(Clone, Copy, Debug)]
struct Borders {
    west: f64,
    east: f64,
    south: f64,
    north: f64,
}

fn spread(bits: u32) -> u64 {
    let mut spread = u64::from(bits);
    for (shift, mask) in [
        (16, 0x0000_ffff_0000_ffff),
        (8, 0x00ff_00ff_00ff_00ff),
        (4, 0x0f0f_0f0f_0f0f_0f0f),
        (2, 0x3333_3333_3333_3333),
        (1, LATITUDE_BITS),
    ] {
        spread = (spread | (spread << shift)) & mask;
    }
    spread
}

fn gather(bits: u64) -> u32 {
    let mut gathered = bits & LATITUDE_BITS;
    for (shift, mask) in [
        (1, 0x3333_3333_3333_3333),
        (2, 0x0f0f_0f0f_0f0f_0f0f),
        (4, 0x00ff_00ff_00ff_00ff),
        (8, 0x0000_ffff_0000_ffff),
        (16, 0x0000_0000_ffff_ffff),
    ] {
        gathered = (gathered | (gathered >> shift)) & mask;
    }
    gathered as u32
}

impl Cell {
    /// The cell of a place.
    fn of((longitude, latitude): Point, latitude_max: f64, step: u8) -> Self {
        let part = |at: f64, max: f64| (at + max) / (max + max) * (1u64 << step) as f64;
        let bits = spread(part(latitude, latitude_max) as u32)
            | (spread(part(longitude, LONGITUDE_MAX) as u32) << 1);
        Self { bits, step }
    }

    fn borders(self) -> Borders {
        let at = |place: u32, max: f64| {
            -max + f64::from(place) / (1u64 << self.step) as f64 * (max + max)
        };
        let (latitude, longitude) = (gather(self.bits), gather(self.bits >> 1));
        Borders {
            west: at(longitude, LONGITUDE_MAX),
            east: at(longitude.saturating_add(1), LONGITUDE_MAX),
            south: at(latitude, LATITUDE_MAX),
            north: at(latitude.saturating_add(1), LATITUDE_MAX),
        }
    }

    /// The cell beside it; around the world at its border.
    fn moved(self, east: i8, north: i8) -> Self {
        let used = u64::MAX >> (64 - 2 * self.step);
        // Adding carries through the bits of the other coordinate when they are all ones.
        let step = |own: u64, other: u64, by: i8| match by {
            0 => self.bits & own,
            1.. => (self.bits & own).wrapping_add((other & used) + 1) & own & used,
            _ => ((self.bits & own) | (other & used)).wrapping_sub((other & used) + 1) & own & used,
        };
        Self {
            bits: step(LONGITUDE_BITS, LATITUDE_BITS, east)
                | step(LATITUDE_BITS, LONGITUDE_BITS, north),
            step: self.step,
        }
    }

    fn scores(self) -> ScoreRange {
        let rest = 2 * (STEPS - self.step);
        ScoreRange {
            min: (self.bits << rest) as f64,
            min_open: false,
            max: ((self.bits + 1) << rest) as f64,
            max_open: true,
        }
    }
}

/// The score of a place.
#[must_use]
pub fn score_of(point: Point) -> f64 {
    Cell::of(point, LATITUDE_MAX, STEPS).bits as f64
}

/// The middle of the cell that a score names.
#[must_use]
pub fn point_of(score: f64) -> Point {
    // Redis's own conversion of scores that ZADD made.
    let bits = match score < 0.0 {
        true => (score as i64).cast_unsigned(),
        false => score as u64,
    };
    let borders = Cell { bits, step: STEPS }.borders();
    let middle = |from: f64, to: f64, max: f64| ((from + to) / 2.0).clamp(-max, max);
    (
        middle(borders.west, borders.east, LONGITUDE_MAX),
        middle(borders.south, borders.north, LATITUDE_MAX),
    )
}

/// The text of geohash.org: eleven letters of five bits, the last of which are always zero.
#[must_use]
pub fn text_of(score: f64) -> [u8; 11] {
    let bits = Cell::of(point_of(score), 90.0, STEPS).bits;
    let mut text = [ALPHABET[0]; 11];
    for (at, letter) in text.iter_mut().enumerate().take(10) {
        *letter = ALPHABET[((bits >> (52 - 5 * (at + 1))) & 31) as usize];
    }
    text
}

fn meters_of_latitude(one: f64, other: f64) -> f64 {
    EARTH * (other.to_radians() - one.to_radians()).abs()
}

/// Metres between two places on a sphere.
#[must_use]
pub fn distance(one: Point, other: Point) -> f64 {
    let half_sine = |from: f64, to: f64| libm::sin((to.to_radians() - from.to_radians()) / 2.0);
    let across = half_sine(one.0, other.0);
    if across == 0.0 {
        return meters_of_latitude(one.1, other.1);
    }
    let along = half_sine(one.1, other.1);
    let cosines = libm::cos(one.1.to_radians()) * libm::cos(other.1.to_radians());
    2.0 * EARTH * libm::asin((along * along + cosines * across * across).sqrt())
}

/// An area around a place; lengths in metres.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// At most so far away.
    Circle(f64),
    /// In a box of this width and height, with the place in its middle.
    Box(f64, f64),
}

impl Shape {
    /// Half of its width and height.
    fn halves(self) -> (f64, f64) {
        match self {
            Self::Circle(radius) => (radius, radius),
            Self::Box(width, height) => (width / 2.0, height / 2.0),
        }
    }

    /// The distance of a point in it from its centre.
    #[must_use]
    pub fn distance_in(self, center: Point, point: Point) -> Option<f64> {
        if let Self::Box(width, height) = self
            && (meters_of_latitude(point.1, center.1) > height / 2.0
                || distance(point, (center.0, point.1)) > width / 2.0)
        {
            return None;
        }
        let away = distance(center, point);
        match self {
            Self::Circle(radius) if away > radius => None,
            _ => Some(away),
        }
    }

    fn borders(self, (longitude, latitude): Point) -> Borders {
        let (width, height) = self.halves();
        let along = (height / EARTH).to_degrees();
        // A degree of longitude is shortest at the side that is nearer to a pole.
        let side = if latitude < 0.0 { -along } else { along };
        let across = (width / EARTH / libm::cos((latitude + side).to_radians())).to_degrees();
        Borders {
            west: longitude - across,
            east: longitude + across,
            south: latitude - along,
            north: latitude + along,
        }
    }

    /// The size of cells of which nine cover the shape.
    fn step(self, latitude: f64) -> u8 {
        let (width, height) = self.halves();
        let mut radius = match self {
            Self::Circle(radius) => radius,
            Self::Box(..) => (width * width + height * height).sqrt(),
        };
        if radius == 0.0 {
            return STEPS;
        }
        let mut step = -1;
        while radius < MERCATOR_MAX {
            radius *= 2.0;
            step += 1;
        }
        // Cells are narrower there.
        step -= i16::from(latitude.abs() > 66.0) + i16::from(latitude.abs() > 80.0);
        step.clamp(1, STEPS.into()) as u8
    }

    /// The ranges of scores that cover the shape around a place, as Redis orders them.
    #[must_use]
    pub fn scores(self, center: Point) -> Vec<ScoreRange> {
        let borders = self.borders(center);
        let mut cell = Cell::of(center, LATITUDE_MAX, self.step(center.1));
        let is_covered = cell.moved(0, 1).borders().north >= borders.north
            && cell.moved(0, -1).borders().south <= borders.south
            && cell.moved(1, 0).borders().east >= borders.east
            && cell.moved(-1, 0).borders().west <= borders.west;
        if cell.step > 1 && !is_covered {
            cell = Cell::of(center, LATITUDE_MAX, cell.step - 1);
        }
        let middle = cell.borders();
        // With larger cells neighbours may be one and the same.
        let all = cell.step < 2;
        let (west, east) = (middle.west >= borders.west, middle.east <= borders.east);
        let (south, north) = (middle.south >= borders.south, middle.north <= borders.north);
        let is_needed = |(x, y): &(i8, i8)| {
            all || ((*x >= 0 || west)
                && (*x <= 0 || east)
                && (*y >= 0 || south)
                && (*y <= 0 || north))
        };
        let around = [
            (0, 0),
            (0, 1),
            (0, -1),
            (1, 0),
            (-1, 0),
            (1, 1),
            (-1, 1),
            (1, -1),
            (-1, -1),
        ];
        let mut cells: Vec<Cell> = (around.iter().filter(|at| is_needed(at)))
            .map(|(x, y)| cell.moved(*x, *y))
            .collect();
        cells.dedup();
        cells.into_iter().map(Cell::scores).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place() -> impl Strategy<Value = Point> {
        (-180.0..180.0, -LATITUDE_MAX..LATITUDE_MAX)
    }

    proptest! {
        #[test]
        fn score_names_cell_around_place(point in place()) {
            let (longitude, latitude) = point_of(score_of(point));
            prop_assert!((longitude - point.0).abs() < 1e-5);
            prop_assert!((latitude - point.1).abs() < 1e-5);
        }

        #[test]
        fn cells_cover_what_is_in_the_shape(
            center in place(), away in (-1.0..1.0, -1.0..1.0), meters in 1.0..2_000_000.0,
            is_box: bool,
        ) {
            let shape = match is_box {
                true => Shape::Box(meters * 2.0, meters),
                false => Shape::Circle(meters),
            };
            let reach = (meters / EARTH).to_degrees() * 2.0;
            let near = (center.0 + away.0 * reach, center.1 + away.1 * reach);
            // Redis itself misses what lies beyond the date line and around the poles.
            prop_assume!(is_place(near) && center.1.abs() < 60.0 && near.1.abs() < 60.0);
            let score = score_of(near);
            if shape.distance_in(center, point_of(score)).is_some() {
                let holds = |range: &ScoreRange| range.min <= score && score < range.max;
                prop_assert!(shape.scores(center).iter().any(holds));
            }
        }

        #[test]
        fn any_score_is_a_place(score: f64) {
            prop_assert!(is_place(point_of(score)));
        }
    }
}
