//! One sampled axis of an operand: the elements and weights that a position is interpolated from.

use tensorc_ir::scalar::Ex;
use tensorc_ir::{DType, Extent};

/// How a position between elements is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interpolation {
    Nearest,
    Linear,
    Cubic,
}

/// What lies outside the operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outside {
    Zeros,
    Border,
    Reflection,
}

/// One axis that is sampled.
#[derive(Clone, Copy)]
pub struct SampledAxis {
    pub extent: Extent,
    pub interpolation: Interpolation,
    pub outside: Outside,
    /// Whether the borders are the centres of the outermost elements, or their edges.
    pub align_corners: bool,
}

impl SampledAxis {
    /// Interpolated between neighbours, with zeros around the operand.
    pub fn linear(extent: impl Into<Extent>) -> SampledAxis {
        let (interpolation, outside) = (Interpolation::Linear, Outside::Zeros);
        SampledAxis { extent: extent.into(), interpolation, outside, align_corners: true }
    }

    /// How many elements a sample is interpolated from.
    pub fn tap_count(&self) -> usize {
        match self.interpolation {
            Interpolation::Nearest => 1,
            Interpolation::Linear => 2,
            Interpolation::Cubic => 4,
        }
    }

    /// The extent less a number, of the type of `x`: a constant, or computed from `size`, the extent.
    fn less(&self, x: &Ex, size: Option<&Ex>, by: f64) -> Ex {
        let known = || x.lit(self.extent.fixed() as f64 - by);
        size.map_or_else(known, |size| size - x.lit(by))
    }

    /// Where the axis begins and ends.
    fn borders(&self, x: &Ex, size: Option<&Ex>) -> [Ex; 2] {
        let (low, by) = if self.align_corners { (0.0, 1.0) } else { (-0.5, 0.5) };
        [x.lit(low), self.less(x, size, by)]
    }

    /// A position in [-1, 1] in elements of the axis. `size` as in [`SampledAxis::taps`].
    pub fn unnormalized(&self, g: &Ex, size: Option<&Ex>) -> Ex {
        let (shifted, two) = (g + g.lit(1.0), g.lit(2.0));
        match self.align_corners {
            true => shifted / two * self.less(g, size, 1.0),
            false => (shifted * self.less(g, size, 0.0) - g.lit(1.0)) / two,
        }
    }

    /// Mirrors at the borders until inside.
    fn reflect(&self, x: &Ex, size: Option<&Ex>) -> Ex {
        let [low, high] = self.borders(x, size);
        if self.align_corners && self.extent.is_surely_below(2) {
            return low;
        }
        let range = high - &low;
        let twice = &range * x.lit(2.0);
        let phase = (x - &low).abs() % &twice;
        let mirrored = twice - &phase;
        phase.gt(&range).select(&mirrored, &phase) + low
    }

    /// Position, validity and weight of every element that takes part, for a position `x` on the axis. `size` is the extent, of
    /// the same type, where it depends on symbols.
    pub fn taps(&self, x: &Ex, size: Option<&Ex>) -> Vec<[Ex; 3]> {
        let [low, high] = self.borders(x, size);
        let last = self.less(x, size, 1.0);
        let x = if self.interpolation == Interpolation::Nearest { x.round() } else { x.clone() };
        let beyond = x.lt(&low) | x.gt(&high);
        let x = match self.outside {
            Outside::Zeros => x,
            Outside::Border => beyond.select(&x.max(&x.lit(0.0)).min(&last), &x),
            Outside::Reflection => beyond.select(&self.reflect(&x, size), &x),
        };
        let base = x.floor();
        let t = &x - &base;
        let weights = match self.interpolation {
            Interpolation::Nearest => vec![(0.0, x.lit(1.0))],
            Interpolation::Linear => vec![(0.0, t.lit(1.0) - &t), (1.0, t)],
            Interpolation::Cubic => {
                [-1.0, 0.0, 1.0, 2.0].iter().map(|&i| (i, cubic(&(&t - t.lit(i)).abs(), i))).collect()
            }
        };
        let tap = |(offset, weight): (f64, Ex)| {
            let at = &base + base.lit(offset);
            let inside = at.ge(&at.lit(0.0)) & at.le(&last);
            let at = if self.outside == Outside::Reflection { self.reflect(&at, size).trunc() } else { at };
            [at.max(&at.lit(0.0)).min(&last).cast(DType::I64), inside, weight]
        };
        weights.into_iter().map(tap).collect()
    }
}

/// The cubic convolution kernel of Keys (1981) with coefficient -3/4 at distance `d` of a tap
/// `offset` elements from the base: the inner two lie within 1, the outer two within 2.
fn cubic(d: &Ex, offset: f64) -> Ex {
    const A: f64 = -0.75;
    let lit = |v: f64| d.lit(v);
    if offset == 0.0 || offset == 1.0 {
        return (lit(A + 2.0) * d - lit(A + 3.0)) * d * d + lit(1.0);
    }
    ((lit(A) * d - lit(5.0 * A)) * d + lit(8.0 * A)) * d - lit(4.0 * A)
}
