//! Positions between elements, sampled from many images: what a sample is made of is computed once for a block of positions, and
//! read for each image.

use crate::prelude::*;
use crate::sampling::Tap;

/// Positions of a block.
pub const BLOCK: i64 = 64;

/// Samples side by side in a vector loop.
const LANES: i64 = 8;

/// What the samples at some positions of an image are made of.
pub struct SampleBlock<'k> {
    k: &'k KernelScope,
    /// Extents of an image.
    dims: Extents,
    /// Taps along each axis.
    taps: Vec<usize>,
    /// For each combination of taps, the last axis innermost, and each position: its element.
    elements: KernelTensor<'k>,
    /// Whether that lies inside, if elements outside are zeros.
    inside: Option<KernelTensor<'k>>,
    /// By axis, for each tap and position.
    weights: Vec<KernelTensor<'k>>,
    count: i64,
}

impl<'k> SampleBlock<'k> {
    /// Working memory for `count` positions in images of some extents, with so many taps along each axis.
    pub fn new(k: &'k KernelScope, dims: Extents, taps: Vec<usize>, wide: DType, zeros: bool, count: i64) -> Self {
        let memory = |name, dtype, n: usize| k.memory(name, dtype, [(n * count as usize) as u64], MemorySpace::Stack);
        let combinations = taps.iter().product();
        SampleBlock {
            k,
            dims,
            elements: memory("elements", DType::I64, combinations),
            inside: zeros.then(|| memory("inside", DType::Bool, combinations)),
            weights: taps.iter().map(|n| memory("weights", wide, *n)).collect(),
            taps,
            count,
        }
    }

    /// The place of a tap, or of a combination, at a position.
    fn place(&self, number: usize, position: &Index) -> Index {
        position.offset(number as i64 * self.count)
    }

    /// Notes a position by its taps along each axis.
    pub fn note(&self, position: &Index, axes: &[Vec<Tap<'k>>]) {
        for (weights, taps) in self.weights.iter().zip(axes) {
            for (t, tap) in taps.iter().enumerate() {
                weights.set_cast(&self.place(t, position), tap.weight);
            }
        }
        self.note_elements(&mut (0, vec![]), None, position, axes);
    }

    fn note_elements(
        &self,
        (number, at): &mut (usize, Vec<Index>),
        inside: Option<KernelValue<'k>>,
        position: &Index,
        axes: &[Vec<Tap<'k>>],
    ) {
        let Some((taps, rest)) = axes.split_first() else {
            let place = self.place(*number, position);
            self.elements.set(&place, &linearize(&*at, &self.dims));
            if let (Some(all), Some(inside)) = (self.inside, inside) {
                all.set(&place, inside);
            }
            *number += 1;
            return;
        };
        let mut state = (*number, std::mem::take(at));
        for tap in taps {
            state.1.push(tap.at.clone());
            let inside = Some(inside.map_or(tap.inside, |all| all & tap.inside));
            self.note_elements(&mut state, inside, position, rest);
            state.1.pop();
        }
        (*number, *at) = state;
    }

    /// Runs `body` for the samples at all positions, of the image that begins at an offset of a tensor.
    pub fn each(&self, image: KernelTensor<'k>, begin: &Index, body: impl Fn(&Index, KernelValue<'k>)) {
        let all = (&Index::default(), &Index::constant(self.count));
        crate::blocks::in_vectors(self.k, all, LANES, |i| body(i, self.sample(image, begin, i)));
    }

    fn sample(&self, image: KernelTensor<'k>, begin: &Index, position: &Index) -> KernelValue<'k> {
        self.weighted(image, begin, position, (0, 0))
    }

    /// The weighted sum of the combinations that follow the `number`th choice of taps along the axes before `axis`.
    fn weighted(
        &self,
        image: KernelTensor<'k>,
        begin: &Index,
        position: &Index,
        (axis, number): (usize, usize),
    ) -> KernelValue<'k> {
        let Some((weights, taps)) = self.weights.get(axis).zip(self.taps.get(axis)) else {
            let place = self.place(number, position);
            let wide = compute_type(image.dtype());
            let value = image.get_as(&begin.add(&self.elements.get(&place).index()), wide);
            let zero = self.k.number(wide, 0.0);
            return self.inside.map_or(value, |inside| inside.get(&place).select(value, zero));
        };
        let term = |tap: usize| {
            let value = self.weighted(image, begin, position, (axis + 1, number * taps + tap));
            value * weights.get(&self.place(tap, position))
        };
        (1..*taps).map(term).fold(term(0), |sum, term| sum + term)
    }
}
