//! Where an operand is read in an iteration: affine index maps as one position in memory, which is stepped rather than
//! computed anew for every element.

use crate::index::{Index, linearize};

/// A sum of coordinates, with what each counts.
struct Line {
    constant: i64,
    steps: Vec<i64>,
}

impl Line {
    fn of(index: &Index, axes: usize) -> Option<Line> {
        let steps =
            (0..axes as u32).map(|axis| Some(index.coefficient(axis)?.fixed())).collect::<Option<Vec<i64>>>()?;
        index.is_affine().then_some(Line { constant: index.constant.fixed(), steps })
    }

    fn at(&self, coords: &[i64]) -> i64 {
        self.constant + self.steps.iter().zip(coords).map(|(step, c)| step * c).sum::<i64>()
    }

    fn split(self, axis: usize) -> (Line, Line) {
        let (outer, inner) = self.steps.split_at(axis);
        (Line { constant: self.constant, steps: outer.to_vec() }, Line { constant: 0, steps: inner.to_vec() })
    }
}

/// The position of an element, and the coordinates that may leave the operand, with its extents.
pub struct Reads {
    position: Line,
    bounds: Vec<(Line, i64)>,
}

impl Reads {
    /// If every index is affine in the axes of an iteration.
    pub fn of(map: &[Index], dims: &[u64], extents: &[u64]) -> Option<Reads> {
        let mut bounds = vec![];
        for (index, &n) in map.iter().zip(dims) {
            let (lo, hi) = index.interval(extents);
            if lo < 0 || hi >= n as i64 {
                bounds.push((Line::of(index, extents.len())?, n as i64));
            }
        }
        Some(Reads { position: Line::of(&linearize(map, dims), extents.len())?, bounds })
    }

    /// The position at the coordinates; none outside of the operand.
    pub fn at(&self, coords: &[i64]) -> Option<usize> {
        let inside = self.bounds.iter().all(|(line, n)| (0..*n).contains(&line.at(coords)));
        inside.then(|| self.position.at(coords) as usize)
    }

    /// The same as two parts: what the axes before `axis` add, and the others.
    pub fn split(self, axis: usize) -> (Outer, InnerAxes) {
        let (position, inner) = self.position.split(axis);
        let (mut outer_bounds, mut inner_bounds) = (vec![], vec![]);
        for (line, n) in self.bounds {
            let (outer, inner) = line.split(axis);
            outer_bounds.push((outer, n));
            inner_bounds.push(inner);
        }
        (Outer { position, bounds: outer_bounds }, InnerAxes { position: inner, bounds: inner_bounds })
    }
}

pub struct Outer {
    position: Line,
    bounds: Vec<(Line, i64)>,
}

pub struct InnerAxes {
    position: Line,
    bounds: Vec<Line>,
}

/// What some axes add to a position and to the coordinates that may leave.
pub struct Offset {
    position: i64,
    bounds: Vec<i64>,
}

impl InnerAxes {
    pub fn at(&self, coords: &[i64]) -> Offset {
        Offset { position: self.position.at(coords), bounds: self.bounds.iter().map(|line| line.at(coords)).collect() }
    }
}

/// An operand at some outer coordinates.
pub struct OperandRow {
    position: i64,
    /// Coordinates, and their extents.
    bounds: Vec<(i64, i64)>,
}

impl Outer {
    pub fn at(&self, coords: &[i64]) -> OperandRow {
        let bounds = self.bounds.iter().map(|(line, n)| (line.at(coords), *n)).collect();
        OperandRow { position: self.position.at(coords), bounds }
    }
}

impl OperandRow {
    /// The position at an inner offset; none outside of the operand.
    pub fn at(&self, offset: &Offset) -> Option<usize> {
        let inside = self.bounds.iter().zip(&offset.bounds).all(|((at, n), by)| (0..*n).contains(&(at + by)));
        inside.then_some((self.position + offset.position) as usize)
    }
}
