//! The work on samples with AVX2, sixteen values at a time. The results are those of the portable code, bit by bit.

use std::arch::x86_64::*;

use super::block::PAIR;
use super::error::JpegError;
use super::idct::*;
use super::kernels::{Kernels, STEP};
use super::{colour, scan};

/// Evidence that the machine has the instructions, which makes its methods safe to call.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

impl Avx2 {
    pub fn detect() -> Option<Avx2> {
        let found = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("movbe");
        found.then_some(Avx2(()))
    }
}

impl Kernels for Avx2 {
    #[inline(always)]
    fn full(self, pair: &[i16; PAIR], table: &PairTable, out: &mut [u8], stride: usize) {
        // SAFETY: `self` is evidence of the features.
        unsafe { full(pair, table, out, stride) }
    }

    #[inline(always)]
    fn half(self, pair: &[i16; PAIR], table: &PairTable, out: &mut [u8], stride: usize) {
        // SAFETY: `self` is evidence of the features.
        unsafe { half(pair, table, out, stride) }
    }

    #[inline(always)]
    fn quarter(self, pair: &[i16; PAIR], table: &PairTable, out: &mut [u8], stride: usize) {
        // SAFETY: `self` is evidence of the features.
        unsafe { quarter(pair, table, out, stride) }
    }

    #[inline(always)]
    fn blend(self, near: &[u8], far: &[u8], bias: i16, out: &mut [i16]) {
        // SAFETY: `self` is evidence of the features.
        unsafe { blend(near, far, bias, out) }
    }

    #[inline(always)]
    fn rgb(self, luma: &[u8], cb: &[i16], cr: &[i16], out: &mut [u8]) {
        // SAFETY: `self` is evidence of the features.
        unsafe { rgb(luma, cb, cr, out) }
    }

    #[inline(always)]
    fn rgb_wide(self, luma: &[u8], cb: &[i16], cr: &[i16], odd: i16, out: &mut [u8]) {
        // SAFETY: `self` is evidence of the features.
        unsafe { rgb_wide(luma, cb, cr, odd, out) }
    }
}

/// Decodes the region of a job.
pub(super) fn decode(kernels: Avx2, job: scan::ScanJob<'_>) -> Result<(), JpegError> {
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,movbe")]
    fn run(kernels: Avx2, job: scan::ScanJob<'_>) -> Result<(), JpegError> {
        scan::run(kernels, job)
    }
    // SAFETY: `kernels` is evidence of the features.
    unsafe { run(kernels, job) }
}

/// Integers, all of whose bytes are values.
trait VectorInteger: Copy {}

impl VectorInteger for u8 {}
impl VectorInteger for i16 {}

#[inline]
#[target_feature(enable = "avx2")]
fn load<T: VectorInteger, const N: usize>(from: &[T; N]) -> __m256i {
    const { assert!(size_of::<T>() * N == 32) };
    // SAFETY: the array has 32 bytes, of integers; the load needs no alignment.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store<T: VectorInteger, const N: usize>(to: &mut [T; N], value: __m256i) {
    const { assert!(size_of::<T>() * N == 32) };
    // SAFETY: the array has 32 bytes, of integers that may be any; the store needs no alignment.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), value) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store_half(to: &mut [u8; 16], value: __m128i) {
    // SAFETY: the array has 16 bytes; the store needs no alignment.
    unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), value) }
}

/// Two constants by turns, for products of two interleaved rows.
#[inline]
#[target_feature(enable = "avx2")]
fn factors(first: i32, second: i32) -> __m256i {
    _mm256_set1_epi32((first & 0xffff) | second << 16)
}

/// Sums of products of two rows, in 32 bits: of the lower and of the upper half of each lane.
#[derive(Clone, Copy)]
struct Wide(__m256i, __m256i);

#[inline]
#[target_feature(enable = "avx2")]
fn interleave(a: __m256i, b: __m256i) -> Wide {
    Wide(_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b))
}

#[inline]
#[target_feature(enable = "avx2")]
fn dot(rows: Wide, first: i32, second: i32) -> Wide {
    let by = factors(first, second);
    Wide(_mm256_madd_epi16(rows.0, by), _mm256_madd_epi16(rows.1, by))
}

#[inline]
#[target_feature(enable = "avx2")]
fn add(a: Wide, b: Wide) -> Wide {
    Wide(_mm256_add_epi32(a.0, b.0), _mm256_add_epi32(a.1, b.1))
}

#[inline]
#[target_feature(enable = "avx2")]
fn sub(a: Wide, b: Wide) -> Wide {
    Wide(_mm256_sub_epi32(a.0, b.0), _mm256_sub_epi32(a.1, b.1))
}

#[inline]
#[target_feature(enable = "avx2")]
fn narrow<const SHIFT: i32>(a: Wide) -> __m256i {
    _mm256_packs_epi32(_mm256_srai_epi32::<SHIFT>(a.0), _mm256_srai_epi32::<SHIFT>(a.1))
}

/// One step of the full transform for sixteen columns: see the portable code.
#[inline]
#[target_feature(enable = "avx2")]
fn eight<const SHIFT: i32>(c: [__m256i; 8]) -> [__m256i; 8] {
    let half = _mm256_set1_epi32(1 << (SHIFT - 1));
    let outer = interleave(c[0], c[4]);
    let even = add(dot(outer, 8192, 8192), Wide(half, half));
    let even_minus = add(dot(outer, 8192, -8192), Wide(half, half));
    let inner = interleave(c[2], c[6]);
    let two = dot(inner, F0_541 + F0_765, F0_541);
    let six = dot(inner, F0_541, F0_541 - F1_847);
    let sums = interleave(_mm256_add_epi16(c[7], c[3]), _mm256_add_epi16(c[5], c[1]));
    let z3 = dot(sums, F1_175 - F1_961, F1_175);
    let z4 = dot(sums, F1_175, F1_175 - F0_390);
    let (p, q) = (interleave(c[7], c[1]), interleave(c[5], c[3]));
    let halves = [
        (add(even, two), add(dot(p, -F0_899, F1_501 - F0_899), z4)),
        (add(even_minus, six), add(dot(q, -F2_562, F3_072 - F2_562), z3)),
        (sub(even_minus, six), add(dot(q, F2_053 - F2_562, -F2_562), z4)),
        (sub(even, two), add(dot(p, F0_298 - F0_899, -F0_899), z3)),
    ];
    let [a, b, c, d] = halves;
    [
        narrow::<SHIFT>(add(a.0, a.1)),
        narrow::<SHIFT>(add(b.0, b.1)),
        narrow::<SHIFT>(add(c.0, c.1)),
        narrow::<SHIFT>(add(d.0, d.1)),
        narrow::<SHIFT>(sub(d.0, d.1)),
        narrow::<SHIFT>(sub(c.0, c.1)),
        narrow::<SHIFT>(sub(b.0, b.1)),
        narrow::<SHIFT>(sub(a.0, a.1)),
    ]
}

/// Rows become columns, in each lane by itself.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose(r: [__m256i; 8]) -> [__m256i; 8] {
    let low16 = |a, b| _mm256_unpacklo_epi16(r[a], r[b]);
    let high16 = |a, b| _mm256_unpackhi_epi16(r[a], r[b]);
    let (a, b, c, d) = (low16(0, 1), low16(2, 3), low16(4, 5), low16(6, 7));
    let (e, f, g, h) = (high16(0, 1), high16(2, 3), high16(4, 5), high16(6, 7));
    let four = |a, b, c, d| {
        let (p, q) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
        let (r, s) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
        [
            _mm256_unpacklo_epi64(p, q),
            _mm256_unpackhi_epi64(p, q),
            _mm256_unpacklo_epi64(r, s),
            _mm256_unpackhi_epi64(r, s),
        ]
    };
    let ([a, b, c, d], [e, f, g, h]) = (four(a, b, c, d), four(e, f, g, h));
    [a, b, c, d, e, f, g, h]
}

/// The rows of coefficients of a pair.
#[inline]
#[target_feature(enable = "avx2")]
fn dequantise(pair: &[i16; PAIR], table: &PairTable) -> [__m256i; 8] {
    let (rows, tables) = (pair.as_chunks::<16>().0, table.as_chunks::<16>().0);
    let row = |i: usize| _mm256_mullo_epi16(load(&rows[i]), load(&tables[i]));
    [row(0), row(1), row(2), row(3), row(4), row(5), row(6), row(7)]
}

#[target_feature(enable = "avx2")]
fn full(pair: &[i16; PAIR], table: &PairTable, out: &mut [u8], stride: usize) {
    let columns = eight::<COLUMN_SHIFT>(dequantise(pair, table));
    let x = eight::<ROW_SHIFT>(transpose(columns));

    // Registers are columns of samples now; bytes are interleaved until they are rows.
    let (a, b) = (_mm256_packs_epi16(x[0], x[4]), _mm256_packs_epi16(x[1], x[5]));
    let (c, d) = (_mm256_packs_epi16(x[2], x[6]), _mm256_packs_epi16(x[3], x[7]));
    let (x01, x45) = (_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b));
    let (x23, x67) = (_mm256_unpacklo_epi8(c, d), _mm256_unpackhi_epi8(c, d));
    let (low0, low4) = (_mm256_unpacklo_epi16(x01, x23), _mm256_unpackhi_epi16(x01, x23));
    let (high0, high4) = (_mm256_unpacklo_epi16(x45, x67), _mm256_unpackhi_epi16(x45, x67));
    let rows = [
        _mm256_unpacklo_epi32(low0, high0),
        _mm256_unpackhi_epi32(low0, high0),
        _mm256_unpacklo_epi32(low4, high4),
        _mm256_unpackhi_epi32(low4, high4),
    ];
    if out.len() < 7 * stride + 16 {
        return;
    }
    for (i, row) in rows.into_iter().enumerate() {
        // Bytes hold samples less 128. Two rows of one block and two of the other become two rows of both.
        let row = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_xor_si256(row, _mm256_set1_epi8(-128)));
        let (first, second) = (2 * i * stride, (2 * i + 1) * stride);
        if let Some(to) = out[first..].first_chunk_mut() {
            store_half(to, _mm256_castsi256_si128(row));
        }
        if let Some(to) = out[second..].first_chunk_mut() {
            store_half(to, _mm256_extracti128_si256::<1>(row));
        }
    }
}

/// One step of the transform to four values: see the portable code.
#[inline]
#[target_feature(enable = "avx2")]
fn four<const SHIFT: i32>(c: [__m256i; 8]) -> [__m256i; 4] {
    let half = _mm256_set1_epi32(1 << (SHIFT - 1));
    let even = add(dot(interleave(c[0], c[0]), 8192, 8192), Wide(half, half));
    let two = dot(interleave(c[2], c[6]), F1_847, -F0_765);
    let (p, q) = (interleave(c[7], c[5]), interleave(c[3], c[1]));
    let inner = add(dot(p, -F0_211, F1_451), dot(q, -F2_172, F1_061));
    let outer = add(dot(p, -F0_509, -F0_601), dot(q, F0_899, F2_562));
    let (a, b) = (add(even, two), sub(even, two));
    [
        narrow::<SHIFT>(add(a, outer)),
        narrow::<SHIFT>(add(b, inner)),
        narrow::<SHIFT>(sub(b, inner)),
        narrow::<SHIFT>(sub(a, outer)),
    ]
}

/// One step of the transform to two values: see the portable code.
#[inline]
#[target_feature(enable = "avx2")]
fn two<const SHIFT: i32>(c: [__m256i; 8]) -> [__m256i; 2] {
    let half = _mm256_set1_epi32(1 << (SHIFT - 1));
    let even = add(dot(interleave(c[0], c[0]), 16384, 16384), Wide(half, half));
    let odd = add(dot(interleave(c[7], c[5]), -F0_720, F0_850), dot(interleave(c[3], c[1]), -F1_272, F3_624));
    [narrow::<SHIFT>(add(even, odd)), narrow::<SHIFT>(sub(even, odd))]
}

/// Columns of at most four samples, each the lower half of a lane, as rows of bytes: row after row in each lane.
#[inline]
#[target_feature(enable = "avx2")]
fn rows_of(x: [__m256i; 4]) -> (__m128i, __m128i) {
    let (a, b) = (_mm256_unpacklo_epi16(x[0], x[1]), _mm256_unpacklo_epi16(x[2], x[3]));
    let bytes = _mm256_packs_epi16(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let bytes = _mm256_xor_si256(bytes, _mm256_set1_epi8(-128));
    (_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes))
}

#[target_feature(enable = "avx2")]
fn half(pair: &[i16; PAIR], table: &PairTable, out: &mut [u8], stride: usize) {
    let zero = _mm256_setzero_si256();
    let [a, b, c, d] = four::<{ COLUMN_SHIFT + 1 }>(dequantise(pair, table));
    let (first, second) = rows_of(four::<{ ROW_SHIFT + 1 }>(transpose([a, b, c, d, zero, zero, zero, zero])));
    let rows = [_mm_unpacklo_epi32(first, second), _mm_unpackhi_epi32(first, second)];
    for (i, row) in rows.into_iter().enumerate() {
        let both = [_mm_cvtsi128_si64(row), _mm_extract_epi64::<1>(row)];
        for (j, row) in both.into_iter().enumerate() {
            let at = (2 * i + j) * stride;
            out[at..at + 8].copy_from_slice(&row.to_le_bytes());
        }
    }
}

#[target_feature(enable = "avx2")]
fn quarter(pair: &[i16; PAIR], table: &PairTable, out: &mut [u8], stride: usize) {
    let zero = _mm256_setzero_si256();
    let [a, b] = two::<{ COLUMN_SHIFT + 2 }>(dequantise(pair, table));
    let [a, b] = two::<{ ROW_SHIFT + 2 }>(transpose([a, b, zero, zero, zero, zero, zero, zero]));
    let (first, second) = rows_of([a, b, zero, zero]);
    // Four bytes for a row of a block, of which two are samples.
    let (first, second) = (_mm_cvtsi128_si64(first).to_le_bytes(), _mm_cvtsi128_si64(second).to_le_bytes());
    for y in [0, 1] {
        let row = [first[4 * y], first[4 * y + 1], second[4 * y], second[4 * y + 1]];
        out[y * stride..y * stride + 4].copy_from_slice(&row);
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn widen(bytes: &[u8; 16]) -> __m256i {
    // SAFETY: the array has 16 bytes; the load needs no alignment.
    _mm256_cvtepu8_epi16(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
}

#[target_feature(enable = "avx2")]
fn blend(near: &[u8], far: &[u8], bias: i16, out: &mut [i16]) {
    let (near, near_rest) = near.as_chunks::<16>();
    let (far, far_rest) = far.as_chunks::<16>();
    let (out, out_rest) = out.as_chunks_mut::<16>();
    let middle = _mm256_set1_epi16(bias - 512);
    for ((out, near), far) in out.iter_mut().zip(near).zip(far) {
        let (near, far) = (widen(near), widen(far));
        let three = _mm256_add_epi16(near, _mm256_add_epi16(near, near));
        store(out, _mm256_add_epi16(three, _mm256_add_epi16(far, middle)));
    }
    colour::blend(near_rest, far_rest, bias, out_rest);
}

/// Red, green and blue of sixteen pixels, before they are limited to bytes: see the portable code.
#[inline]
#[target_feature(enable = "avx2")]
fn convert(y: __m256i, cb: __m256i, cr: __m256i) -> [__m256i; 3] {
    // 1.402 = 1 + 13173 / 2^15 and 1.772 = 2 - 7471 / 2^15 give the same rounded products as 16 bits for all samples.
    let red = _mm256_add_epi16(cr, _mm256_mulhrs_epi16(cr, _mm256_set1_epi16(13173)));
    let blue = _mm256_add_epi16(_mm256_add_epi16(cb, cb), _mm256_mulhrs_epi16(cb, _mm256_set1_epi16(-7471)));
    // -0.71414 = 18734 / 2^16 - 1.
    let half = _mm256_set1_epi32(32768);
    let sums = add(dot(interleave(cb, cr), -22554, 65536 - 46802), Wide(half, half));
    let green = _mm256_sub_epi16(narrow::<16>(sums), cr);
    [_mm256_add_epi16(y, red), _mm256_add_epi16(y, green), _mm256_add_epi16(y, blue)]
}

/// Where in a lane a colour's bytes come from. A lane makes 48 bytes: byte n, that is colour n % 3 of pixel n / 3, comes
/// from position n % 16 of that colour. The inverse of 3 modulo 16 is 11. With `SPLIT` the lane has the even pixels
/// first.
const fn order<const SPLIT: bool>(colour: usize) -> [u8; 32] {
    let mut order = [0; 32];
    let mut i = 0;
    while i < 32 {
        let pixel = (i % 16 + 16 - colour) * 11 % 16;
        order[i] = (if SPLIT { pixel / 2 + pixel % 2 * 8 } else { pixel }) as u8;
        i += 1;
    }
    order
}

/// Marks the bytes of both lanes whose position modulo 3 is `rest`.
const fn every_third(rest: usize) -> [u8; 32] {
    let mut marks = [0; 32];
    let mut i = 0;
    while i < 32 {
        marks[i] = if i % 16 % 3 == rest { 255 } else { 0 };
        i += 1;
    }
    marks
}

/// The shuffles that [`order`] tells, for red, green and blue.
struct Orders<const SPLIT: bool>;

impl<const SPLIT: bool> Orders<SPLIT> {
    const COLOURS: [[u8; 32]; 3] = [order::<SPLIT>(0), order::<SPLIT>(1), order::<SPLIT>(2)];
}

const SECOND: [u8; 32] = every_third(1);
const THIRD: [u8; 32] = every_third(2);

/// Stores 32 pixels, sixteen for each lane. With `SPLIT` those of `first` are the even ones, those of `second` the odd
/// ones; else a lane's eight first and eight last ones.
#[inline]
#[target_feature(enable = "avx2")]
fn store_pixels<const SPLIT: bool>(first: [__m256i; 3], second: [__m256i; 3], out: &mut [u8; 96]) {
    let place = |i: usize| {
        let bytes = _mm256_packus_epi16(first[i], second[i]);
        _mm256_shuffle_epi8(bytes, load(&Orders::<SPLIT>::COLOURS[i]))
    };
    let (red, green, blue) = (place(0), place(1), place(2));
    let merge = |a, b, c| {
        let two = _mm256_blendv_epi8(a, b, load(&SECOND));
        _mm256_blendv_epi8(two, c, load(&THIRD))
    };
    // The first, second and third sixteen bytes of each lane.
    let (a, b, c) = (merge(red, green, blue), merge(green, blue, red), merge(blue, red, green));
    if let [one, two, three] = out.as_chunks_mut::<32>().0 {
        store(one, _mm256_permute2x128_si256::<0x20>(a, b));
        store(two, _mm256_permute2x128_si256::<0x30>(c, a));
        store(three, _mm256_permute2x128_si256::<0x31>(b, c));
    }
}

#[target_feature(enable = "avx2")]
fn rgb(luma: &[u8], cb: &[i16], cr: &[i16], out: &mut [u8]) {
    let steps = luma.len().min(cb.len()).min(cr.len()).min(out.len() / 3) / STEP;
    let chunks = luma.as_chunks::<STEP>().0.iter().zip(cb.as_chunks::<STEP>().0).zip(cr.as_chunks::<STEP>().0);
    for (((luma, cb), cr), out) in chunks.zip(out.as_chunks_mut::<96>().0) {
        let luma = load(luma);
        let zero = _mm256_setzero_si256();
        let low = convert(_mm256_unpacklo_epi8(luma, zero), lanes::<0x20>(cb), lanes::<0x20>(cr));
        let high = convert(_mm256_unpackhi_epi8(luma, zero), lanes::<0x31>(cb), lanes::<0x31>(cr));
        store_pixels::<false>(low, high, out);
    }
    let done = steps * STEP;
    colour::rgb(&luma[done..], &cb[done..], &cr[done..], &mut out[3 * done..]);
}

/// The lower or the upper lanes of 32 blended samples, as chroma less 128.
#[inline]
#[target_feature(enable = "avx2")]
fn lanes<const WHICH: i32>(samples: &[i16; STEP]) -> __m256i {
    let [a, b] = samples.as_chunks::<16>().0 else { return _mm256_setzero_si256() };
    _mm256_srai_epi16::<2>(_mm256_permute2x128_si256::<WHICH>(load(a), load(b)))
}

#[target_feature(enable = "avx2")]
fn rgb_wide(luma: &[u8], cb: &[i16], cr: &[i16], odd: i16, out: &mut [u8]) {
    let bias = _mm256_set1_epi16(odd);
    let samples = cb.len().min(cr.len()).saturating_sub(2);
    let steps = luma.len().min(2 * samples).min(out.len() / 3) / STEP;
    for (i, (luma, out)) in luma.as_chunks::<STEP>().0.iter().zip(out.as_chunks_mut::<96>().0).take(steps).enumerate() {
        let (at, luma) = (i * STEP / 2, load(luma));
        let (Some(cb), Some(cr)) = (cb[at..].first_chunk(), cr[at..].first_chunk()) else { break };
        let (cb, cr) = (stretch(cb, bias), stretch(cr, bias));
        let even = convert(_mm256_and_si256(luma, _mm256_set1_epi16(255)), cb[0], cr[0]);
        let odd = convert(_mm256_srli_epi16::<8>(luma), cb[1], cr[1]);
        store_pixels::<true>(even, odd, out);
    }
    let done = steps * STEP;
    colour::rgb_wide(&luma[done..], &cb[done / 2..], &cr[done / 2..], odd, &mut out[3 * done..]);
}

/// Chroma less 128 of sixteen even and sixteen odd pixels, from blended samples: the first and last are neighbours.
#[inline]
#[target_feature(enable = "avx2")]
fn stretch(samples: &[i16; 18], odd: __m256i) -> [__m256i; 2] {
    let at = |i: usize| samples[i..].first_chunk::<16>().map_or(_mm256_setzero_si256(), |s| load(s));
    let three = _mm256_add_epi16(at(1), _mm256_add_epi16(at(1), at(1)));
    let even = _mm256_add_epi16(three, at(0));
    let odd = _mm256_add_epi16(_mm256_add_epi16(three, at(2)), odd);
    [_mm256_srai_epi16::<4>(even), _mm256_srai_epi16::<4>(odd)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draws::Draws;
    use crate::image::jpeg::kernels::Portable;

    #[test]
    fn transforms_give_the_bits_of_the_portable_ones() {
        let Some(fast) = Avx2::detect() else { return };
        let mut draws = Draws::new(3, 1, 4);
        for round in 0..4000 {
            // From few and small coefficients, as files have them, to any.
            let (size, share) = (round % 16, round / 16 % 8);
            let mut value =
                |all: bool| if all || draws.below(8) <= share { draws.bits() as i16 >> (15 - size) } else { 0 };
            let pair: [i16; PAIR] = std::array::from_fn(|_| value(false));
            let table: PairTable = std::array::from_fn(|_| value(true));
            let mut found = [[0; 7 * 20 + 16]; 6];
            let [a, b, c, d, e, f] = &mut found;
            fast.full(&pair, &table, a, 20);
            Portable.full(&pair, &table, b, 20);
            fast.half(&pair, &table, c, 20);
            Portable.half(&pair, &table, d, 20);
            fast.quarter(&pair, &table, e, 20);
            Portable.quarter(&pair, &table, f, 20);
            assert!(a == b && c == d && e == f, "round {round}");
        }
    }

    #[test]
    fn blocks_of_one_coefficient_are_constant() {
        for dc in i16::MIN..=i16::MAX {
            let (mut pair, mut out) = ([0; PAIR], [0; 7 * 16 + 16]);
            (pair[0], pair[8]) = (dc, dc.wrapping_mul(5));
            Portable.full(&pair, &[1; 128], &mut out, 16);
            let [a, b] = constant(&pair, &[1; 128]);
            assert!(out.as_chunks::<16>().0.iter().all(|row| row[..8] == [a; 8] && row[8..] == [b; 8]), "{dc}");
        }
    }

    #[test]
    fn pixels_are_those_of_the_portable_code_for_all_chroma() {
        let Some(fast) = Avx2::detect() else { return };
        let mut draws = Draws::new(2, 7, 1);
        // Every length up to a few steps, then rows with all values of one kind of chroma for every one of the other.
        for (cb, length) in (0..100).map(|n| (0, 2 * n)).chain((0..=255).map(|cb| (cb, 256))) {
            let luma: Vec<u8> = (0..length).map(|_| draws.bits() as u8).collect();
            let near: Vec<u8> = (0..length).map(|i| i as u8).collect();
            let [mut blended, mut other] = [(); 2].map(|_| vec![0; length]);
            fast.blend(&near, &luma, 2, &mut blended);
            Portable.blend(&near, &luma, 2, &mut other);
            assert_eq!(blended, other);

            let cr: Vec<i16> = (0..length as i16 + 2).map(|i| 4 * (i & 255) - 512).collect();
            let cb = vec![4 * cb - 512; length + 2];
            let [mut ours, mut theirs] = [(); 2].map(|_| vec![0; 3 * length]);
            fast.rgb(&luma, &cb[..length], &cr[..length], &mut ours);
            Portable.rgb(&luma, &cb[..length], &cr[..length], &mut theirs);
            assert_eq!(ours, theirs);
            for odd in [-1, 4] {
                fast.rgb_wide(&luma, &cb[..length / 2 + 2], &cr[..length / 2 + 2], odd, &mut ours);
                Portable.rgb_wide(&luma, &cb[..length / 2 + 2], &cr[..length / 2 + 2], odd, &mut theirs);
                assert_eq!(ours, theirs);
            }
        }
    }
}
