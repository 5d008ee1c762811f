//! Inverse DCTs of two blocks at a time, in integers, in portable code.
//!
//! The full transform is that of Loeffler, Ligtenberg and Moschytz (ICASSP 1989) with constants of 13 bits: columns
//! first, to two more bits than samples have, then rows, as in libjpeg's accurate integer method. The reduced ones
//! give the mean of 2x2 or 4x4 samples of the full one in one step. All sums wrap in 32 bits and what is kept between
//! the steps saturates in 16, so that vector code gives the same bits for any coefficients.

use super::block::PAIR;

/// A constant of the transforms with 13 bits behind the point.
const fn fix(value: f64) -> i32 {
    (value * 8192.0 + 0.5) as i32
}

pub(super) const F0_298: i32 = fix(0.298631336);
pub(super) const F0_390: i32 = fix(0.390180644);
pub(super) const F0_541: i32 = fix(0.541196100);
pub(super) const F0_765: i32 = fix(0.765366865);
pub(super) const F0_899: i32 = fix(0.899976223);
pub(super) const F1_175: i32 = fix(1.175875602);
pub(super) const F1_501: i32 = fix(1.501321110);
pub(super) const F1_847: i32 = fix(1.847759065);
pub(super) const F1_961: i32 = fix(1.961570560);
pub(super) const F2_053: i32 = fix(2.053119869);
pub(super) const F2_562: i32 = fix(2.562915447);
pub(super) const F3_072: i32 = fix(3.072711026);
pub(super) const F0_211: i32 = fix(0.211164243);
pub(super) const F0_509: i32 = fix(0.509795579);
pub(super) const F0_601: i32 = fix(0.601344887);
pub(super) const F0_720: i32 = fix(0.720959822);
pub(super) const F0_850: i32 = fix(0.850430095);
pub(super) const F1_061: i32 = fix(1.061594337);
pub(super) const F1_272: i32 = fix(1.272758580);
pub(super) const F1_451: i32 = fix(1.451774981);
pub(super) const F2_172: i32 = fix(2.172734803);
pub(super) const F3_624: i32 = fix(3.624509785);

/// Bits by which the sums of the column step and of the row step are too large.
pub(super) const COLUMN_SHIFT: i32 = 11;
pub(super) const ROW_SHIFT: i32 = 18;

/// A quantisation table for a pair of blocks.
pub(super) type PairTable = [i16; 128];

fn saturate(value: i32) -> i16 {
    value.clamp(-32768, 32767) as i16
}

fn sum<const N: usize>(values: [i16; N], factors: [i32; N]) -> i32 {
    values.iter().zip(factors).fold(0i32, |sum, (&v, f)| sum.wrapping_add(i32::from(v).wrapping_mul(f)))
}

/// Eight values from eight coefficients, divided by two to the power of `shift` and rounded.
#[inline(always)]
fn eight(c: [i16; 8], shift: i32) -> [i16; 8] {
    let half = 1 << (shift - 1);
    let even = sum([c[0], c[4]], [8192, 8192]).wrapping_add(half);
    let even_minus = sum([c[0], c[4]], [8192, -8192]).wrapping_add(half);
    let two = sum([c[2], c[6]], [F0_541 + F0_765, F0_541]);
    let six = sum([c[2], c[6]], [F0_541, F0_541 - F1_847]);
    let (p, q) = (c[7].wrapping_add(c[3]), c[5].wrapping_add(c[1]));
    let z3 = sum([p, q], [F1_175 - F1_961, F1_175]);
    let z4 = sum([p, q], [F1_175, F1_175 - F0_390]);
    let odd = [
        sum([c[7], c[1]], [-F0_899, F1_501 - F0_899]).wrapping_add(z4),
        sum([c[5], c[3]], [-F2_562, F3_072 - F2_562]).wrapping_add(z3),
        sum([c[5], c[3]], [F2_053 - F2_562, -F2_562]).wrapping_add(z4),
        sum([c[7], c[1]], [F0_298 - F0_899, -F0_899]).wrapping_add(z3),
    ];
    let halves = [
        (even.wrapping_add(two), odd[0]),
        (even_minus.wrapping_add(six), odd[1]),
        (even_minus.wrapping_sub(six), odd[2]),
        (even.wrapping_sub(two), odd[3]),
    ];
    let mut out = [0; 8];
    for (i, (e, o)) in halves.into_iter().enumerate() {
        out[i] = saturate(e.wrapping_add(o) >> shift);
        out[7 - i] = saturate(e.wrapping_sub(o) >> shift);
    }
    out
}

/// Four values from eight coefficients: the means of two of the eight each. The fifth coefficient is in none.
#[inline(always)]
fn four(c: [i16; 8], shift: i32) -> [i16; 4] {
    let even = i32::from(c[0]).wrapping_mul(8192 * 2).wrapping_add(1 << (shift - 1));
    let two = sum([c[2], c[6]], [F1_847, -F0_765]);
    let coefficients = [c[7], c[5], c[3], c[1]];
    let inner = sum(coefficients, [-F0_211, F1_451, -F2_172, F1_061]);
    let outer = sum(coefficients, [-F0_509, -F0_601, F0_899, F2_562]);
    let (a, b) = (even.wrapping_add(two), even.wrapping_sub(two));
    [a.wrapping_add(outer), b.wrapping_add(inner), b.wrapping_sub(inner), a.wrapping_sub(outer)]
        .map(|v| saturate(v >> shift))
}

/// Two values from eight coefficients: the means of four of the eight each.
#[inline(always)]
fn two(c: [i16; 8], shift: i32) -> [i16; 2] {
    let even = i32::from(c[0]).wrapping_mul(8192 * 4).wrapping_add(1 << (shift - 1));
    let odd = sum([c[7], c[5], c[3], c[1]], [-F0_720, F0_850, -F1_272, F3_624]);
    [even.wrapping_add(odd), even.wrapping_sub(odd)].map(|v| saturate(v >> shift))
}

fn sample(value: i16) -> u8 {
    (value.clamp(-128, 127) + 128) as u8
}

/// Both steps of a transform to N values. The blocks' rows go side by side to `out`, `stride` bytes from row to row.
#[inline(always)]
fn transform<const N: usize>(
    pair: &[i16; PAIR],
    table: &PairTable,
    out: &mut [u8],
    stride: usize,
    columns: impl Fn([i16; 8]) -> [i16; N],
    rows: impl Fn([i16; 8]) -> [i16; N],
) {
    let mut between = [[0i16; 16]; N];
    for lane in 0..16 {
        let column = columns(std::array::from_fn(|r| pair[r * 16 + lane].wrapping_mul(table[r * 16 + lane])));
        for (row, value) in between.iter_mut().zip(column) {
            row[lane] = value;
        }
    }
    for (y, row) in between.iter().enumerate() {
        for (block, coefficients) in row.as_chunks::<8>().0.iter().enumerate() {
            let samples = rows(*coefficients).map(sample);
            let at = y * stride + block * N;
            out[at..at + N].copy_from_slice(&samples);
        }
    }
}

/// The full transform: 8x8 samples for each block of the pair.
pub(super) fn full(pair: &[i16; PAIR], table: &PairTable, out: &mut [u8], stride: usize) {
    transform(pair, table, out, stride, |c| eight(c, COLUMN_SHIFT), |c| eight(c, ROW_SHIFT));
}

/// 4x4 samples for each block.
pub(super) fn half(pair: &[i16; PAIR], table: &PairTable, out: &mut [u8], stride: usize) {
    transform(pair, table, out, stride, |c| four(c, COLUMN_SHIFT + 1), |c| four(c, ROW_SHIFT + 1));
}

/// 2x2 samples for each block.
pub(super) fn quarter(pair: &[i16; PAIR], table: &PairTable, out: &mut [u8], stride: usize) {
    transform(pair, table, out, stride, |c| two(c, COLUMN_SHIFT + 2), |c| two(c, ROW_SHIFT + 2));
}

/// The samples, all equal, of blocks of which only the DC coefficient is not zero.
#[inline(always)]
pub(super) fn constant(pair: &[i16; PAIR], table: &PairTable) -> [u8; 2] {
    [0, 8].map(|i| {
        let dc = i32::from(pair[i].wrapping_mul(table[i]));
        (((dc + 4) >> 3) + 128).clamp(0, 255) as u8
    })
}
