//! Copies between a dense tensor and a strided rectangular part of another.

use super::view::Extents;
use crate::gpu::Rows;

/// Positions `start`, `start + step`, … of an axis, `len` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first position.
    pub start: u64,
    /// Distance of positions; negative runs backwards.
    pub step: i64,
    /// Number of positions.
    pub len: u64,
}

/// Rows of a part of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceRows {
    /// The first byte in the tensor, and in a dense tensor of the part.
    pub at: usize,
    /// The first byte in a dense tensor of the part.
    pub dense: usize,
    /// Bytes from one row to the next in the tensor.
    pub stride: usize,
    /// Bytes of a row.
    pub width: usize,
    /// Number of rows.
    pub count: usize,
}

/// A span of every axis of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArraySlice {
    spans: Vec<Span>,
    /// Bytes from one element to the next of each span.
    strides: Vec<i64>,
    /// Byte of the first element.
    base: i64,
    element: usize,
}

impl ArraySlice {
    /// A part of a row-major tensor with elements of `element` bytes; `None` if a span leaves its
    /// axis or the ranks differ.
    pub fn new(dims: &[u64], element: usize, spans: &[Span]) -> Option<ArraySlice> {
        if dims.len() != spans.len() {
            return None;
        }
        let mut region = ArraySlice { spans: spans.to_vec(), strides: vec![0; dims.len()], base: 0, element };
        if spans.iter().any(|span| span.len == 0) {
            return Some(region);
        }
        let mut stride = element as i64;
        for axis in (0..dims.len()).rev() {
            let Span { start, step, len } = spans[axis];
            let last = i128::from(start) + i128::from(step) * (i128::from(len) - 1);
            let inside = |at: i128| (0..i128::from(dims[axis])).contains(&at);
            if !(inside(i128::from(start)) && inside(last)) {
                return None;
            }
            region.strides[axis] = if len == 1 { 0 } else { step * stride };
            region.base += start as i64 * stride;
            stride *= dims[axis] as i64;
        }
        Some(region)
    }

    /// Extents of the part.
    pub fn dims(&self) -> Extents {
        self.spans.iter().map(|span| span.len).collect()
    }

    /// The part as rows at equal distances, each contiguous in the tensor and in a dense tensor of the part's extents; none
    /// if there would be more than `limit` pieces.
    pub fn pieces(&self, limit: u64) -> Option<Vec<SliceRows>> {
        if self.spans.iter().any(|span| span.len == 0) {
            return Some(vec![]);
        }
        // Extents and strides from the inside out, without axes of one position.
        let mut axes: Vec<(u64, i64)> = self.spans.iter().map(|s| s.len).zip(self.strides.iter().copied()).collect();
        axes.retain(|(len, _)| *len > 1);
        let mut width = self.element as u64;
        while let Some((len, _)) = axes.pop_if(|(_, stride)| *stride == width as i64) {
            width *= len;
        }
        let (mut count, mut stride) = (1, width as i64);
        let takes = |stride: i64| (width as i64..=Rows::MAX_STRIDE as i64).contains(&stride);
        if let Some((len, by)) = axes.pop_if(|(_, stride)| takes(*stride)) {
            (count, stride) = (len, by);
            while let Some((len, _)) = axes.pop_if(|(_, outer)| *outer == by * count as i64) {
                count *= len;
            }
        }
        let number = axes.iter().try_fold(1u64, |n, (len, _)| n.checked_mul(*len)).filter(|n| *n <= limit)?;
        let piece = |index: u64| {
            let (mut rest, mut at) = (index, self.base);
            for (len, by) in axes.iter().rev() {
                at += (rest % len) as i64 * by;
                rest /= len;
            }
            let (at, dense) = (at as usize, (index * width * count) as usize);
            SliceRows { at, dense, stride: stride as usize, width: width as usize, count: count as usize }
        };
        Some((0..number).map(piece).collect())
    }

    /// Writes a dense tensor of the part's extents, or one element for all, into the part of `into`.
    ///
    /// `into` is the whole tensor's bytes; a `from` of another size leaves the rest as it is.
    pub fn store(&self, into: &mut [u8], from: &[u8]) {
        let single = from.len() == self.element;
        let mut position = 0;
        self.rows(|start, stride, count| {
            for i in 0..count {
                let at = (start + stride * i as i64) as usize;
                let source = if single { 0 } else { position };
                let (Some(to), Some(value)) =
                    (into.get_mut(at..at + self.element), from.get(source..source + self.element))
                else {
                    return;
                };
                to.copy_from_slice(value);
                position += self.element;
            }
        });
    }

    /// Reads the part of `from`, the whole tensor's bytes, into a dense tensor of the part's extents.
    pub fn load(&self, from: &[u8], into: &mut [u8]) {
        let mut elements = into.chunks_exact_mut(self.element);
        self.rows(|start, stride, count| {
            for i in 0..count {
                let at = (start + stride * i as i64) as usize;
                let (Some(value), Some(to)) = (from.get(at..at + self.element), elements.next()) else { return };
                to.copy_from_slice(value);
            }
        });
    }

    /// Calls `f` with the first byte, stride and number of elements of every innermost row.
    fn rows(&self, mut f: impl FnMut(i64, i64, u64)) {
        if self.spans.iter().any(|span| span.len == 0) {
            return;
        }
        let (inner, outer) = match self.spans.split_last() {
            Some((last, outer)) => ((self.strides[outer.len()], last.len), outer),
            None => ((0, 1), &self.spans[..]),
        };
        let mut at = vec![0u64; outer.len()];
        loop {
            let offset: i64 = at.iter().zip(&self.strides).map(|(i, stride)| *i as i64 * stride).sum();
            f(self.base + offset, inner.0, inner.1);
            let Some(axis) = (0..outer.len()).rev().find(|&axis| at[axis] + 1 < outer[axis].len) else { return };
            at[axis] += 1;
            at[axis + 1..].fill(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u64, step: i64, len: u64) -> Span {
        Span { start, step, len }
    }

    #[test]
    fn elements_go_where_indices_say() {
        let region = ArraySlice::new(&[3, 4], 1, &[span(2, -2, 2), span(1, 2, 2)]).unwrap();
        let mut into = vec![0u8; 12];
        region.store(&mut into, &[1, 2, 3, 4]);
        assert_eq!(into, [0, 3, 0, 4, 0, 0, 0, 0, 0, 1, 0, 2]);
        let mut back = [0; 4];
        region.load(&into, &mut back);
        assert_eq!(back, [1, 2, 3, 4]);
        region.store(&mut into, &[9]);
        assert_eq!(into.iter().filter(|b| **b == 9).count(), 4);
    }

    /// What pieces cover, in the order of the dense tensor, is what rows are.
    #[test]
    fn pieces_are_the_part() {
        let dims = [3, 4, 6];
        let spans = |n: u64| {
            let steps = [-3i64, -2, -1, 1, 2, 3];
            let all = (0..n).flat_map(move |start| steps.map(|step| (start, step)));
            let most = move |start: u64, step: i64| match step {
                ..0 => start / step.unsigned_abs() + 1,
                _ => (n - 1 - start) / step as u64 + 1,
            };
            all.flat_map(move |(start, step)| (1..=most(start, step)).map(move |len| span(start, step, len)))
        };
        let from: Vec<u8> = (0..144).collect();
        let (mut seen, mut single) = (0, 0);
        for a in spans(dims[0]) {
            for b in spans(dims[1]).step_by(3) {
                for c in spans(dims[2]).step_by(5) {
                    let region = ArraySlice::new(&dims, 2, &[a, b, c]).unwrap();
                    let pieces = region.pieces(u64::MAX).unwrap();
                    let mut expected = vec![0; 2 * (a.len * b.len * c.len) as usize];
                    region.load(&from, &mut expected);
                    let mut found = vec![0xff; expected.len()];
                    for SliceRows { at, dense, stride, width, count } in &pieces {
                        assert!(stride >= width);
                        for row in 0..*count {
                            let (to, start) = (dense + row * width, at + row * stride);
                            found[to..to + width].copy_from_slice(&from[start..start + width]);
                        }
                    }
                    assert_eq!(found, expected, "{a:?} {b:?} {c:?}");
                    assert_eq!(region.pieces(pieces.len() as u64 - 1), None);
                    (seen, single) = (seen + 1, single + usize::from(pieces.len() == 1));
                }
            }
        }
        assert!(single > 1000 && seen > single + 1000, "{single} of {seen}");
        assert_eq!(ArraySlice::new(&[2], 2, &[span(0, 1, 0)]).unwrap().pieces(0), Some(vec![]));
        let far = ArraySlice::new(&[3, 1 << 32], 1, &[span(0, 1, 3), span(0, 1, 2)]).unwrap();
        assert_eq!(far.pieces(64).unwrap().len(), 3, "rows too far apart");
    }

    #[test]
    fn a_scalar_has_one_element_and_an_empty_span_none() {
        let mut into = vec![0u8; 4];
        ArraySlice::new(&[], 4, &[]).unwrap().store(&mut into, &[1, 2, 3, 4]);
        assert_eq!(into, [1, 2, 3, 4]);
        ArraySlice::new(&[2], 2, &[span(0, 1, 0)]).unwrap().store(&mut into, &[]);
        assert!(ArraySlice::new(&[0, 1 << 62], 4, &[span(0, 1, 0), span(0, 1, 1 << 62)]).is_some());
        assert_eq!(into, [1, 2, 3, 4]);
    }

    #[test]
    fn spans_outside_are_refused() {
        for wrong in [span(3, 1, 1), span(1, 1, 3), span(1, -1, 3), span(0, i64::MAX, 3)] {
            assert_eq!(ArraySlice::new(&[3], 1, &[wrong]), None, "{wrong:?}");
        }
        assert_eq!(ArraySlice::new(&[3, 3], 1, &[span(0, 1, 1)]), None);
    }
}
