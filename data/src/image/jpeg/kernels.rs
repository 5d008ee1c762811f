//! The work on samples that is done by vectors where the machine has them, and its portable form.

use super::block::PAIR;
use super::colour;
use super::idct::{self, PairTable};

/// Lengths of rows that code for vectors reads or writes are multiples of this, in samples.
pub(super) const STEP: usize = 32;

/// How samples are made. All implementations give the same bits.
pub(super) trait Kernels: Copy {
    /// 8x8 samples for each of two blocks: rows of sixteen, `stride` bytes from one to the next.
    fn full(self, pair: &[i16; PAIR], table: &PairTable, out: &mut [u8], stride: usize);

    /// 4x4 samples for each block.
    fn half(self, pair: &[i16; PAIR], table: &PairTable, out: &mut [u8], stride: usize);

    /// 2x2 samples for each block.
    fn quarter(self, pair: &[i16; PAIR], table: &PairTable, out: &mut [u8], stride: usize);

    /// See [`colour::blend`].
    fn blend(self, near: &[u8], far: &[u8], bias: i16, out: &mut [i16]);

    /// See [`colour::rgb`].
    fn rgb(self, luma: &[u8], cb: &[i16], cr: &[i16], out: &mut [u8]);

    /// See [`colour::rgb_wide`].
    fn rgb_wide(self, luma: &[u8], cb: &[i16], cr: &[i16], odd: i16, out: &mut [u8]);
}

/// The kernels for any machine.
#[derive(Clone, Copy)]
pub(super) struct Portable;

impl Kernels for Portable {
    fn full(self, pair: &[i16; PAIR], table: &PairTable, out: &mut [u8], stride: usize) {
        idct::full(pair, table, out, stride);
    }

    fn half(self, pair: &[i16; PAIR], table: &PairTable, out: &mut [u8], stride: usize) {
        idct::half(pair, table, out, stride);
    }

    fn quarter(self, pair: &[i16; PAIR], table: &PairTable, out: &mut [u8], stride: usize) {
        idct::quarter(pair, table, out, stride);
    }

    fn blend(self, near: &[u8], far: &[u8], bias: i16, out: &mut [i16]) {
        colour::blend(near, far, bias, out);
    }

    fn rgb(self, luma: &[u8], cb: &[i16], cr: &[i16], out: &mut [u8]) {
        colour::rgb(luma, cb, cr, out);
    }

    fn rgb_wide(self, luma: &[u8], cb: &[i16], cr: &[i16], odd: i16, out: &mut [u8]) {
        colour::rgb_wide(luma, cb, cr, odd, out);
    }
}
