//! Products of few rows with weights of a few bits ([`BlockedWeights`]), which are unpacked in registers, and the
//! unpacking of columns for products of many rows.
//!
//! A sum has 16 lanes: lane l adds the terms 16·i + l. In each run of 32 terms, or of 16 where blocks have no more, a
//! lane is a chain of fused multiply-adds from zero over ascending terms; the lane of the whole sum adds it times the
//! scale of the block, fused. At the end lanes are added in halves: l and l + 8, l and l + 4, l and l + 2, l and l + 1.
//!
//! The bodies are inlined into functions that an ISA level compiles for its instructions.

use tensorc_abi::BlockedWeights;

use super::vector::Lanes;

/// Columns of a panel.
const COLUMNS: usize = BlockedWeights::ROWS;
/// Lanes of a sum.
const LANES: usize = BlockedWeights::LANES;
/// Bytes of the codes of a chunk of one column.
const CHUNK: usize = BlockedWeights::CHUNK_BYTES;
/// Most multiply-adds of a lane before the scale is applied: longer chains leave multipliers idle.
const CHAIN: usize = 2;
/// Bytes of codes from what is read to what is fetched into the cache.
const AHEAD: usize = 4096;
/// Most rows of a [`CodedRows`].
pub(crate) const CODED_ROWS: usize = 4;

/// A panel of columns of weights.
#[derive(Clone, Copy)]
pub(crate) struct CodedPanel {
    pub form: BlockedWeights,
    /// Chunks of a column.
    pub chunks: usize,
    pub codes: *const u8,
    pub scales: *const f32,
    /// Zero points, if the form has them.
    pub zeros: *const u8,
}

/// Sums of a few rows with the columns of a panel: `c[i·4 + j] = Σ_t x[i·row + t]·weight(t, j)`.
pub(crate) struct CodedRows {
    pub panel: CodedPanel,
    /// At most [`CODED_ROWS`].
    pub rows: usize,
    /// Readable for whole chunks.
    pub x: *const f32,
    pub row: isize,
    pub c: *mut [[f32; COLUMNS]; CODED_ROWS],
}

/// Weights of chunks of a panel's columns as f32: term t of column j, counted from the first chunk, at `to[j·stride + t]`.
pub(crate) struct Decoded {
    pub panel: CodedPanel,
    /// The chunks that are unpacked.
    pub first: usize,
    pub count: usize,
    pub to: *mut f32,
    pub stride: usize,
}

/// A vector of lanes whose numbers are unpacked.
///
/// # Safety
/// As for [`Lanes`].
pub(super) trait Codes: Lanes {
    /// As many dwords as a vector has lanes.
    type Dwords: Copy;
    /// What unpacking needs.
    type Table: Copy;
    /// A table that subtracts a zero point from codes of so many bits.
    unsafe fn table(bits: usize, zero: f32) -> Self::Table;
    /// The table that subtracts a zero point, in all lanes, in place of the zero point 0 of another.
    unsafe fn less(table: Self::Table, point: Self) -> Self::Table;
    unsafe fn dwords(p: *const u8) -> Self::Dwords;
    /// The code at a bit of each dword, less the table's zero point.
    unsafe fn values(bits: usize, dwords: Self::Dwords, bit: usize, table: Self::Table) -> Self;
    unsafe fn times(self, b: Self) -> Self;
}

/// Rows and columns whose sums are in registers, and the form of the weights.
#[derive(Clone, Copy)]
struct Shape {
    bits: usize,
    groups: usize,
}

/// Lanes of sums of M rows with R columns.
///
/// # Safety
/// As [`super::IsaLevel`], with the columns from `column` on in the panel and a vector from `lane` on.
#[inline(always)]
unsafe fn sums<X: Codes, const M: usize, const R: usize>(
    t: &CodedRows,
    [column, lane]: [usize; 2],
    Shape { bits, groups }: Shape,
    has_zeros: bool,
) -> [[X; R]; M] {
    // SAFETY: the panel and the rows hold all chunks.
    unsafe {
        let table = X::table(bits, if has_zeros { 0.0 } else { f32::from(t.panel.form.zero) });
        let mut sums = [[X::splat(0.0); R]; M];
        let vectors = 32 / bits / groups;
        let mut codes = t.panel.codes.wrapping_add(column * CHUNK + 4 * lane);
        let mut scales = t.panel.scales.wrapping_add(column * groups);
        let mut zeros = t.panel.zeros.wrapping_add(column * groups);
        let mut x = t.x.wrapping_add(lane);
        for _ in 0..t.panel.chunks {
            let dwords: [X::Dwords; R] = core::array::from_fn(|j| X::dwords(codes.wrapping_add(j * CHUNK)));
            for j in 0..R {
                X::fetch(codes.wrapping_add(j * CHUNK + AHEAD).cast());
            }
            X::fetch(scales.wrapping_byte_add(AHEAD / CHUNK * groups * size_of::<f32>()));
            let mut points = [0.0f32; COLUMNS * LANES];
            if has_zeros {
                for (i, point) in points[..R * groups].iter_mut().enumerate() {
                    *point = f32::from(*zeros.add(i));
                }
            }
            for group in 0..groups {
                let tables: [X::Table; R] = core::array::from_fn(|j| match has_zeros {
                    true => X::less(table, X::splat(points[j * groups + group])),
                    false => table,
                });
                for first in (group * vectors..(group + 1) * vectors).step_by(CHAIN) {
                    let mut parts = [[X::splat(0.0); R]; M];
                    for v in first..first + CHAIN.min(vectors) {
                        let left: [X; M] =
                            core::array::from_fn(|i| X::load(x.offset(i as isize * t.row).add(v * LANES)));
                        for j in 0..R {
                            let weight = X::values(bits, dwords[j], v * bits, tables[j]);
                            for i in 0..M {
                                parts[i][j] = weight.mul_add(left[i], parts[i][j]);
                            }
                        }
                    }
                    for j in 0..R {
                        let scale = X::splat(scales.add(j * groups + group).read_unaligned());
                        for i in 0..M {
                            sums[i][j] = parts[i][j].mul_add(scale, sums[i][j]);
                        }
                    }
                }
            }
            codes = codes.wrapping_add(COLUMNS * CHUNK);
            scales = scales.wrapping_add(COLUMNS * groups);
            zeros = zeros.wrapping_add(COLUMNS * groups);
            x = x.wrapping_add(32 / bits * LANES);
        }
        sums
    }
}

/// # Safety
/// As [`super::IsaLevel`].
#[inline(always)]
unsafe fn rows<X: Codes, const M: usize, const R: usize>(t: &CodedRows, shape: Shape, has_zeros: bool) {
    for column in (0..COLUMNS).step_by(R) {
        let mut lanes = [[[0.0f32; LANES]; R]; M];
        for lane in (0..LANES).step_by(X::LANES) {
            // SAFETY: passed on from the caller.
            let sums = unsafe { sums::<X, M, R>(t, [column, lane], shape, has_zeros) };
            for (to, sums) in lanes.as_flattened_mut().iter_mut().zip(sums.as_flattened()) {
                // SAFETY: there is room for the vector.
                unsafe { sums.store(to[lane..].as_mut_ptr()) };
            }
        }
        for (i, row) in lanes.iter().enumerate() {
            for (j, lanes) in row.iter().enumerate() {
                // SAFETY: the result is the caller's.
                unsafe { (*t.c)[i][column + j] = total(*lanes) };
            }
        }
    }
}

/// Adds lanes in halves.
#[inline(always)]
fn total(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for l in 0..half {
            lanes[l] += lanes[l + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// # Safety
/// As [`super::IsaLevel`].
#[inline(always)]
unsafe fn decoded<X: Codes>(d: &Decoded, bits: usize) {
    let CodedPanel { form, codes, scales, zeros, .. } = d.panel;
    let (groups, chunk) = (form.groups(), form.chunk());
    let vectors = 32 / bits / groups;
    // SAFETY: the panel holds the chunks, and the result has room for them.
    unsafe {
        let table = X::table(bits, if form.zeros { 0.0 } else { f32::from(form.zero) });
        for (c, j) in (0..d.count).flat_map(|c| (0..COLUMNS).map(move |j| (c, j))) {
            let place = (d.first + c) * COLUMNS + j;
            let (codes, to) = (codes.add(place * CHUNK), d.to.add(j * d.stride + c * chunk));
            for group in 0..groups {
                let scale = X::splat(scales.add(place * groups + group).read_unaligned());
                let point = if form.zeros { f32::from(*zeros.add(place * groups + group)) } else { 0.0 };
                let point = X::splat(point);
                for lane in (0..LANES).step_by(X::LANES) {
                    let dwords = X::dwords(codes.add(4 * lane));
                    for v in group * vectors..(group + 1) * vectors {
                        let weight = X::values(bits, dwords, v * bits, table).sub(point);
                        weight.times(scale).store(to.add(v * LANES + lane));
                    }
                }
            }
        }
    }
}

/// The kernels of an ISA level, with so many columns of a row, or of [`CODED_ROWS`], at a time.
macro_rules! level {
    ($vector:ty, $one:literal $several:literal, $shapes:ident $(, $feature:literal)?) => {
        use super::{CODED_ROWS, CodedRows, Decoded, Shape, decoded, rows};

        /// # Safety
        /// As [`crate::isa_levels::IsaLevel`].
        pub(in crate::isa_levels) unsafe fn coded_rows(t: &CodedRows) {
            let shape = Shape { bits: t.panel.form.bits.into(), groups: t.panel.form.groups() };
            // SAFETY: passed on from the caller.
            unsafe { $shapes!(shape, by_rows(t)) }
        }

        /// As the form says where BITS or GROUPS is 0.
        ///
        /// # Safety
        /// As [`crate::isa_levels::IsaLevel`].
        $(#[target_feature(enable = $feature)])?
        unsafe fn by_rows<const BITS: usize, const GROUPS: usize>(t: &CodedRows, shape: Shape) {
            let known = Shape { bits: BITS, groups: GROUPS };
            let shape = if BITS == 0 { shape } else { known };
            // SAFETY: passed on from the caller.
            unsafe {
                match (t.rows, t.panel.form.zeros) {
                    (1, false) => rows::<$vector, 1, $one>(t, shape, false),
                    (1, true) => rows::<$vector, 1, $one>(t, shape, true),
                    (_, false) => rows::<$vector, CODED_ROWS, $several>(t, shape, false),
                    (_, true) => rows::<$vector, CODED_ROWS, $several>(t, shape, true),
                }
            }
        }

        /// # Safety
        /// As [`crate::isa_levels::IsaLevel`].
        $(#[target_feature(enable = $feature)])?
        pub(in crate::isa_levels) unsafe fn decoded_columns(d: &Decoded) {
            // SAFETY: passed on from the caller.
            unsafe { decoded::<$vector>(d, d.panel.form.bits.into()) }
        }
    };
}

/// Code for each shape of 4 and 8 bits.
#[cfg(target_arch = "x86_64")]
macro_rules! each_shape {
    ($shape:ident, $f:ident($t:ident)) => {
        each_shape!($shape, $f($t): 4 1, 4 2, 4 4, 4 8, 8 1, 8 2, 8 4)
    };
    ($shape:ident, $f:ident($t:ident): $($bits:literal $groups:literal),*) => {
        match ($shape.bits, $shape.groups) {
            $(($bits, $groups) => $f::<$bits, $groups>($t, $shape),)*
            _ => $f::<0, 0>($t, $shape),
        }
    };
}

/// The same code for all shapes.
macro_rules! any_shape {
    ($shape:ident, $f:ident($t:ident)) => {
        $f::<0, 0>($t, $shape)
    };
}

/// What a code of so many bits stands for.
#[inline(always)]
fn code_mask(bits: usize) -> u32 {
    (1 << bits) - 1
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx512 {
    use core::arch::x86_64::*;

    level!(__m512, 4 2, each_shape, "avx512f");

    impl super::Codes for __m512 {
        type Dwords = __m512i;
        /// Values of codes of at most four bits, by the low four bits of a dword; or the zero point.
        type Table = __m512;

        #[inline(always)]
        unsafe fn table(bits: usize, zero: f32) -> __m512 {
            let mut values = [-zero; super::LANES];
            if bits < 8 {
                for (i, value) in values.iter_mut().enumerate() {
                    *value = (i as u32 & super::code_mask(bits)) as f32 - zero;
                }
            }
            // SAFETY: the vector is as long as the array.
            unsafe { _mm512_loadu_ps(values.as_ptr()) }
        }

        #[inline(always)]
        unsafe fn less(table: __m512, point: __m512) -> __m512 {
            // SAFETY: the processor has AVX-512.
            unsafe { _mm512_sub_ps(table, point) }
        }

        #[inline(always)]
        unsafe fn dwords(p: *const u8) -> __m512i {
            // SAFETY: by the caller's contract.
            unsafe { _mm512_loadu_si512(p.cast()) }
        }

        #[inline(always)]
        unsafe fn values(bits: usize, dwords: __m512i, bit: usize, table: __m512) -> __m512 {
            // SAFETY: the processor has AVX-512.
            unsafe {
                let moved = _mm512_srlv_epi32(dwords, _mm512_set1_epi32(bit as i32));
                match bits {
                    8 => {
                        let code = _mm512_and_si512(moved, _mm512_set1_epi32(super::code_mask(bits) as i32));
                        _mm512_add_ps(_mm512_cvtepi32_ps(code), table)
                    }
                    _ => _mm512_permutexvar_ps(moved, table),
                }
            }
        }

        #[inline(always)]
        unsafe fn times(self, b: __m512) -> __m512 {
            // SAFETY: the processor has AVX-512.
            unsafe { _mm512_mul_ps(self, b) }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2 {
    use core::arch::x86_64::*;

    level!(__m256, 2 1, each_shape, "avx2,fma");

    impl super::Codes for __m256 {
        type Dwords = __m256i;
        type Table = __m256;

        #[inline(always)]
        unsafe fn table(_: usize, zero: f32) -> __m256 {
            // SAFETY: the processor has AVX2.
            unsafe { _mm256_set1_ps(zero) }
        }

        #[inline(always)]
        unsafe fn less(table: __m256, point: __m256) -> __m256 {
            // SAFETY: the processor has AVX2.
            unsafe { _mm256_add_ps(table, point) }
        }

        #[inline(always)]
        unsafe fn dwords(p: *const u8) -> __m256i {
            // SAFETY: by the caller's contract.
            unsafe { _mm256_loadu_si256(p.cast()) }
        }

        #[inline(always)]
        unsafe fn values(bits: usize, dwords: __m256i, bit: usize, zero: __m256) -> __m256 {
            // SAFETY: the processor has AVX2.
            unsafe {
                let moved = _mm256_srlv_epi32(dwords, _mm256_set1_epi32(bit as i32));
                let code = _mm256_and_si256(moved, _mm256_set1_epi32(super::code_mask(bits) as i32));
                _mm256_sub_ps(_mm256_cvtepi32_ps(code), zero)
            }
        }

        #[inline(always)]
        unsafe fn times(self, b: __m256) -> __m256 {
            // SAFETY: the processor has AVX2.
            unsafe { _mm256_mul_ps(self, b) }
        }
    }
}

#[cfg(target_arch = "aarch64")]
pub(super) mod neon {
    use core::arch::aarch64::*;

    level!(float32x4_t, 2 1, any_shape);

    impl super::Codes for float32x4_t {
        type Dwords = uint32x4_t;
        type Table = float32x4_t;

        #[inline(always)]
        unsafe fn table(_: usize, zero: f32) -> float32x4_t {
            // SAFETY: the processor has NEON.
            unsafe { vdupq_n_f32(zero) }
        }

        #[inline(always)]
        unsafe fn less(table: float32x4_t, point: float32x4_t) -> float32x4_t {
            // SAFETY: the processor has NEON.
            unsafe { vaddq_f32(table, point) }
        }

        #[inline(always)]
        unsafe fn dwords(p: *const u8) -> uint32x4_t {
            // SAFETY: by the caller's contract.
            unsafe { vreinterpretq_u32_u8(vld1q_u8(p)) }
        }

        #[inline(always)]
        unsafe fn values(bits: usize, dwords: uint32x4_t, bit: usize, zero: float32x4_t) -> float32x4_t {
            // SAFETY: the processor has NEON.
            unsafe {
                let moved = vshlq_u32(dwords, vdupq_n_s32(-(bit as i32)));
                let code = vandq_u32(moved, vdupq_n_u32(super::code_mask(bits)));
                vsubq_f32(vcvtq_f32_u32(code), zero)
            }
        }

        #[inline(always)]
        unsafe fn times(self, b: float32x4_t) -> float32x4_t {
            // SAFETY: the processor has NEON.
            unsafe { vmulq_f32(self, b) }
        }
    }
}

pub(super) mod portable {
    level!(f32, 2 1, any_shape);

    impl super::Codes for f32 {
        type Dwords = u32;
        type Table = f32;

        #[inline(always)]
        unsafe fn table(_: usize, zero: f32) -> f32 {
            zero
        }

        #[inline(always)]
        unsafe fn less(table: f32, point: f32) -> f32 {
            table + point
        }

        #[inline(always)]
        unsafe fn dwords(p: *const u8) -> u32 {
            // SAFETY: by the caller's contract.
            u32::from_le_bytes(unsafe { p.cast::<[u8; 4]>().read() })
        }

        #[inline(always)]
        unsafe fn values(bits: usize, dwords: u32, bit: usize, zero: f32) -> f32 {
            (dwords >> bit & super::code_mask(bits)) as f32 - zero
        }

        #[inline(always)]
        unsafe fn times(self, b: f32) -> f32 {
            self * b
        }
    }
}
