//! Calls of library kernels as words of 64 bits, as images of compiled models hold them ([`crate::image`]).

use crate::blocked::BlockedWeights;
use crate::conv::ConvPass;
use crate::library::{Attention, BatchedGemm, Conv2d, GemmElements, ImageLayout, MatrixLayout};
use crate::number::Number;

/// Takes words one after the other; after the last, zeros.
struct Take<'w>(core::slice::Iter<'w, u64>);

impl Take<'_> {
    fn word(&mut self) -> u64 {
        self.0.next().copied().unwrap_or(0)
    }

    fn words<const N: usize>(&mut self) -> [u64; N] {
        let mut words = [0; N];
        words.iter_mut().for_each(|word| *word = self.word());
        words
    }

    fn layout(&mut self) -> MatrixLayout {
        let [offset, b0, b1, b2, row, col] = self.words();
        let batch_strides = [b0 as i64, b1 as i64, b2 as i64];
        MatrixLayout { offset: offset as i64, batch_strides, row_stride: row as i64, col_stride: col as i64 }
    }
}

/// Puts words one after the other.
struct Put<N: Number, const LEN: usize> {
    words: [N; LEN],
    at: usize,
}

impl<N: Number, const LEN: usize> Put<N, LEN> {
    fn new() -> Put<N, LEN> {
        Put { words: [N::default(); LEN], at: 0 }
    }

    fn words<const M: usize>(mut self, words: [N; M]) -> Put<N, LEN> {
        self.words[self.at..self.at + M].copy_from_slice(&words);
        self.at += M;
        self
    }

    fn known<const M: usize>(self, words: [u64; M]) -> Put<N, LEN> {
        self.words(words.map(N::from))
    }

    fn layout(self, l: &MatrixLayout<N>) -> Put<N, LEN> {
        let [b0, b1, b2] = l.batch_strides;
        self.words([l.offset, b0, b1, b2, l.row_stride, l.col_stride].map(N::of_signed))
    }
}

impl MatrixLayout {
    fn set_number(&mut self, at: usize, value: i64) {
        let MatrixLayout { offset, batch_strides: [b0, b1, b2], row_stride, col_stride } = self;
        *[offset, b0, b1, b2, row_stride, col_stride][at] = value;
    }
}

/// Words of a layout.
const LAYOUT_WORDS: usize = 6;

/// Sets a number of consecutive layouts.
fn set_layout_number<const N: usize>(layouts: [&mut MatrixLayout; N], at: usize, value: i64) {
    layouts[at / LAYOUT_WORDS].set_number(at % LAYOUT_WORDS, value);
}

/// A size: one that would be negative is that of an empty tensor.
fn extent_of(value: i64) -> u64 {
    value.max(0) as u64
}

/// The kind, and above it the form of blocked weights.
fn elements_word(elements: GemmElements) -> u64 {
    let kinds = GemmElements::PLAIN;
    match elements {
        GemmElements::Blocked(weights) => kinds.len() as u64 | u64::from(weights.to_word()) << KIND_BITS,
        plain => kinds.iter().take_while(|kind| **kind != plain).count() as u64,
    }
}

/// The inverse of [`elements_word`].
fn elements_of_word(word: u64) -> GemmElements {
    match GemmElements::PLAIN.get((word & ((1 << KIND_BITS) - 1)) as usize) {
        Some(plain) => *plain,
        None => GemmElements::Blocked(BlockedWeights::from_word((word >> KIND_BITS) as u32)),
    }
}

/// Bits of the number of a kind of elements.
const KIND_BITS: u32 = 7;

impl<N: Number> BatchedGemm<N> {
    /// The call as words.
    pub fn to_words(&self) -> [N; BatchedGemm::WORDS] {
        let put = Put::new().words(self.batch).words([self.m, self.n, self.k]);
        put.layout(&self.a)
            .layout(&self.b)
            .layout(&self.c)
            .known([u64::from(self.b_packed) | elements_word(self.elements) << 1])
            .words
    }
}

impl BatchedGemm {
    /// Words of a call.
    pub const WORDS: usize = 25;

    /// Changes a number, by its position in [`BatchedGemm::to_words`]; a size below 0 becomes 0.
    ///
    /// # Panics
    /// The word there is no number.
    pub fn set_number(&mut self, at: usize, value: i64) {
        let BatchedGemm { batch: [b0, b1, b2], m, n, k, a, b, c, .. } = self;
        let numbers = [b0, b1, b2, m, n, k];
        match at.checked_sub(numbers.len()) {
            None => *numbers[at] = extent_of(value),
            Some(at) => set_layout_number([a, b, c], at, value),
        }
    }

    /// The inverse of [`BatchedGemm::to_words`].
    pub fn from_words(words: &[u64; Self::WORDS]) -> BatchedGemm {
        let mut take = Take(words.iter());
        let (batch, [m, n, k]) = (take.words(), take.words());
        let (a, b, c) = (take.layout(), take.layout(), take.layout());
        let flags = take.word();
        let elements = elements_of_word(flags >> 1);
        BatchedGemm { batch, m, n, k, a, b, c, b_packed: flags & 1 != 0, elements }
    }
}

impl<N: Number> Conv2d<N> {
    /// The call as words.
    pub fn to_words(&self) -> [N; Conv2d::WORDS] {
        let put = Put::new().words([self.batch, self.groups, self.in_channels, self.out_channels]);
        let put = put.words(self.input).words(self.output).words(self.kernel).words(self.strides);
        let put = put.words(self.dilations).words(self.pads).words(self.images);
        put.known([self.pass.word(), layouts_word(self.layouts)]).words
    }
}

impl Conv2d {
    /// Words of a call.
    pub const WORDS: usize = 20;

    /// Changes a number, by its position in [`Conv2d::to_words`]; a size below 0 becomes 0.
    ///
    /// # Panics
    /// The word there is no number.
    pub fn set_number(&mut self, at: usize, value: i64) {
        let Conv2d { batch, groups, in_channels, out_channels, input, output, kernel, .. } = self;
        let Conv2d { strides, dilations, pads, images, .. } = self;
        let counts = [batch, groups, in_channels, out_channels];
        match at.checked_sub(counts.len()) {
            None => *counts[at] = extent_of(value),
            Some(at) => [input, output, kernel, strides, dilations, pads, images][at / 2][at % 2] = extent_of(value),
        }
    }

    /// `None` if the words name no pass or layout.
    pub fn from_words(words: &[u64; Self::WORDS]) -> Option<Conv2d> {
        let mut take = Take(words.iter());
        let [batch, groups, in_channels, out_channels] = take.words();
        Some(Conv2d {
            batch,
            groups,
            in_channels,
            out_channels,
            input: take.words(),
            output: take.words(),
            kernel: take.words(),
            strides: take.words(),
            dilations: take.words(),
            pads: take.words(),
            images: take.words(),
            pass: ConvPass::from_word(take.word())?,
            layouts: layouts_of_word(take.word())?,
        })
    }
}

impl ConvPass {
    fn word(self) -> u64 {
        ConvPass::ALL.into_iter().take_while(|pass| *pass != self).count() as u64
    }

    fn from_word(word: u64) -> Option<ConvPass> {
        ConvPass::ALL.get(usize::try_from(word).ok()?).copied()
    }
}

/// Layouts of x and y. Images of compiled models hold the position: new ones come last.
const LAYOUTS: [[ImageLayout; 2]; 9] = {
    use ImageLayout::{Nchw, Nchw16c, Nhwc};
    [
        [Nchw, Nchw],
        [Nchw, Nchw16c],
        [Nchw16c, Nchw16c],
        [Nchw16c, Nchw],
        [Nchw, Nhwc],
        [Nchw16c, Nhwc],
        [Nhwc, Nchw],
        [Nhwc, Nchw16c],
        [Nhwc, Nhwc],
    ]
};

fn layouts_word(layouts: [ImageLayout; 2]) -> u64 {
    LAYOUTS.iter().take_while(|known| **known != layouts).count() as u64
}

fn layouts_of_word(word: u64) -> Option<[ImageLayout; 2]> {
    LAYOUTS.get(usize::try_from(word).ok()?).copied()
}

impl<N: Number> Attention<N> {
    /// The call as words.
    pub fn to_words(&self) -> [N; Attention::WORDS] {
        let put = Put::new().words(self.batch).words([self.queries, self.keys, self.depth, self.size]);
        let put = put.layout(&self.q).layout(&self.k).layout(&self.v).layout(&self.out);
        let flags = u64::from(self.empty_is_zero) | u64::from(self.rounded) << 1;
        put.known([self.scale.into(), self.shifted.into(), flags]).words
    }
}

impl Attention {
    /// Words of a call.
    pub const WORDS: usize = 34;

    /// Changes a number, by its position in [`Attention::to_words`]; a size below 0 becomes 0.
    ///
    /// # Panics
    /// The word there is no number.
    pub fn set_number(&mut self, at: usize, value: i64) {
        let Attention { batch: [b0, b1, b2], queries, keys, depth, size, q, k, v, out, .. } = self;
        let numbers = [b0, b1, b2, queries, keys, depth, size];
        match at.checked_sub(numbers.len()) {
            None => *numbers[at] = extent_of(value),
            Some(at) => set_layout_number([q, k, v, out], at, value),
        }
    }

    /// The inverse of [`Attention::to_words`].
    pub fn from_words(words: &[u64; Self::WORDS]) -> Attention {
        let mut take = Take(words.iter());
        let batch = take.words();
        let [queries, keys, depth, size] = take.words();
        let (q, k, v, out) = (take.layout(), take.layout(), take.layout(), take.layout());
        let [scale, shifted, flags] = take.words();
        let (scale, shifted) = (scale as u32, shifted != 0);
        let (empty_is_zero, rounded) = (flags & 1 != 0, flags & 2 != 0);
        Attention { batch, queries, keys, depth, size, q, k, v, out, scale, shifted, empty_is_zero, rounded }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_survive_the_way_into_words_and_back() {
        let layout = |n: i64| MatrixLayout {
            offset: n,
            batch_strides: [n + 1, -n - 2, n + 3],
            row_stride: n + 4,
            col_stride: n + 5,
        };
        let gemm = BatchedGemm {
            batch: [2, 3, 4],
            m: 5,
            n: 6,
            k: 7,
            a: layout(10),
            b: layout(20),
            c: layout(-30),
            b_packed: true,
            elements: GemmElements::I8U8,
        };
        assert_eq!(BatchedGemm::from_words(&gemm.to_words()), gemm);
        let mut put = BatchedGemm { b_packed: true, elements: GemmElements::I8U8, ..BatchedGemm::default() };
        gemm.to_words()[..24].iter().enumerate().for_each(|(at, word)| put.set_number(at, *word as i64));
        assert_eq!(put, gemm);
        put.set_number(3, -5);
        assert_eq!(put.m, 0, "a size that would be negative");
        let attention = Attention {
            batch: [2, 3, 4],
            queries: 5,
            keys: 6,
            depth: 7,
            size: 8,
            q: layout(10),
            k: layout(20),
            v: layout(30),
            out: layout(40),
            scale: 0.125f32.to_bits(),
            shifted: true,
            empty_is_zero: false,
            rounded: true,
        };
        assert_eq!(Attention::from_words(&attention.to_words()), attention);
        let mut put = Attention { scale: attention.scale, shifted: true, rounded: true, ..Attention::default() };
        attention.to_words()[..31].iter().enumerate().for_each(|(at, word)| put.set_number(at, *word as i64));
        assert_eq!(put, attention);
        for pass in ConvPass::ALL {
            for layouts in LAYOUTS {
                let conv = Conv2d {
                    batch: 1,
                    groups: 2,
                    in_channels: 3,
                    out_channels: 4,
                    input: [5, 6],
                    output: [7, 8],
                    kernel: [9, 10],
                    strides: [11, 12],
                    dilations: [13, 14],
                    pads: [15, 16],
                    images: [17, 18],
                    pass,
                    layouts,
                };
                let words = conv.to_words();
                assert_eq!(Conv2d::from_words(&words), Some(conv));
                let mut put = Conv2d { pass, layouts, ..Conv2d::default() };
                words[..18].iter().enumerate().for_each(|(at, word)| put.set_number(at, *word as i64));
                assert_eq!(put, conv);
                let mut wrong = words;
                wrong[Conv2d::WORDS - 1] = 99;
                assert_eq!(Conv2d::from_words(&wrong), None);
            }
        }
    }
}
