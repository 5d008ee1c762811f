//! What the tests of the kernels share: random numbers, counting epilogues, prologues that read memory, bit comparisons.

use tensorc_abi::{MatrixLayout, Packing, SUM_COLS, SUM_ROWS};
use tensorc_kernels::{EpilogueCall, Isa, LeftOperand, PrologueCall, pack_part, pack_source, pack_units, packed_len};

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.bits() % limit as u64) as usize
    }

    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    /// Uniform in -1..1.
    pub fn fill(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0).collect()
    }
}

/// Whether an emulator runs the tests, which takes its time.
pub fn emulated() -> bool {
    std::env::var_os("TENSORC_EMULATED").is_some()
}

/// How many of the random cases to try: a few under an emulator.
pub fn rounds(all: usize) -> usize {
    if emulated() { all.div_ceil(6) } else { all }
}

pub fn isa_levels() -> Vec<Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect()
}

/// Cuts `0..tasks` at random places and shuffles the pieces.
pub fn cuts(random: &mut Random, tasks: u64) -> Vec<std::ops::Range<u64>> {
    let mut ranges = Vec::new();
    let mut start = 0;
    while start < tasks {
        let end = start + 1 + random.below((tasks - start).min(4) as usize) as u64;
        ranges.push(start..end);
        start = end;
    }
    for i in (1..ranges.len()).rev() {
        ranges.swap(i, random.below(i + 1));
    }
    ranges
}

/// Counts, for each element of a dense batch × rows × cols output, how often it was handed to the
/// epilogue, and the elements themselves are doubled in place.
pub struct Counter {
    pub counts: Vec<u32>,
    dims: Vec<u64>,
    args: Vec<*mut u8>,
}

impl Counter {
    /// `strides` are those of the three batch dimensions and the rows of the output at `data`.
    pub fn new(batch: [u64; 3], rows: u64, cols: u64, data: *mut f32, strides: [i64; 4]) -> Self {
        let mut dims = vec![batch[0], batch[1], batch[2], rows, cols];
        dims.extend(strides.map(|s| s as u64));
        let counts = vec![0; (batch.iter().product::<u64>() * rows * cols) as usize];
        let mut counter = Counter { counts, dims, args: Vec::new() };
        counter.args = vec![counter.counts.as_mut_ptr().cast(), counter.dims.as_mut_ptr().cast(), data.cast()];
        counter
    }

    pub fn call(&self) -> EpilogueCall {
        EpilogueCall { f: count, args: self.args.as_ptr(), apart: None }
    }

    pub fn assert_once(&self, what: &str) {
        assert!(self.counts.iter().all(|&n| n == 1), "{what}: epilogue not called exactly once per element");
    }
}

/// An epilogue that takes sums apart from the result: it stores each, less 1, in i64.
pub struct Converter {
    dims: [i64; 4],
    args: [*mut u8; 2],
}

impl Converter {
    /// `strides`: elements of the result from one matrix to the next, by batch dimension, and from one row to the next.
    pub fn new(result: *mut i64, strides: [i64; 4]) -> Box<Converter> {
        let mut converter = Box::new(Converter { dims: strides, args: [result.cast(); 2] });
        converter.args[1] = converter.dims.as_mut_ptr().cast();
        converter
    }

    pub fn call(&self) -> EpilogueCall {
        EpilogueCall { f: convert, args: self.args.as_ptr(), apart: Some(self.args.len()) }
    }
}

unsafe extern "C" fn convert(args: *const *mut u8, scalars: *const i64) {
    // SAFETY: `Converter::call` passes the last two buffers, kernels the sums and seven scalars.
    unsafe {
        let (sums, result): (*const i32, *mut i64) = ((*args).cast(), (*args.add(1)).cast());
        let strides = &*(*args.add(2)).cast::<[i64; 4]>();
        let s = &*scalars.cast::<[i64; 7]>();
        assert!(s[4] - s[3] <= SUM_ROWS as i64 && s[6] - s[5] <= SUM_COLS as i64, "a block of {s:?}");
        let base: i64 = s[..3].iter().zip(strides).map(|(at, stride)| at * stride).sum();
        for (i, j) in (s[3]..s[4]).flat_map(|i| (s[5]..s[6]).map(move |j| (i, j))) {
            let sum = *sums.offset(((i - s[3]) * SUM_COLS as i64 + j - s[5]) as isize);
            *result.offset((base + i * strides[3] + j) as isize) = i64::from(sum) - 1;
        }
    }
}

unsafe extern "C" fn count(args: *const *mut u8, scalars: *const i64) {
    // SAFETY: `Counter::call` passes these three buffers, kernels seven scalars.
    unsafe {
        let counts: *mut u32 = (*args).cast();
        let dims = std::slice::from_raw_parts((*args.add(1)).cast::<i64>(), 9);
        let data: *mut f32 = (*args.add(2)).cast();
        let s = std::slice::from_raw_parts(scalars, 7);
        assert!(s[3] < s[4] && s[4] <= dims[3] && s[5] < s[6] && s[6] <= dims[4], "block {s:?} of {dims:?}");
        let batch = (s[0] * dims[1] + s[1]) * dims[2] + s[2];
        let base = s[0] * dims[5] + s[1] * dims[6] + s[2] * dims[7];
        for i in s[3]..s[4] {
            for j in s[5]..s[6] {
                *counts.add(((batch * dims[3] + i) * dims[4] + j) as usize) += 1;
                *data.offset((base + i * dims[8] + j) as isize) *= 2.0;
            }
        }
    }
}

/// A left operand in memory, of which a prologue hands out blocks.
pub struct Supply {
    _layout: Box<[i64; 8]>,
    args: Vec<*mut u8>,
}

impl Supply {
    /// Number of arguments of the prologue.
    pub const ARGS: usize = 2;

    /// Rows are `ld` apart where blocks go.
    pub fn new(data: &[f32], layout: &MatrixLayout, ld: usize) -> Self {
        let [b0, b1, b2] = layout.batch_strides;
        let mut numbers = Box::new([layout.offset, b0, b1, b2, layout.row_stride, layout.col_stride, ld as i64, 0]);
        let args = vec![data.as_ptr().cast_mut().cast(), numbers.as_mut_ptr().cast()];
        Supply { _layout: numbers, args }
    }

    pub fn left(&self) -> LeftOperand {
        LeftOperand::Computed(PrologueCall { f: supply, args: self.args.as_ptr(), count: Supply::ARGS })
    }
}

unsafe extern "C" fn supply(args: *const *mut u8, scalars: *const i64) {
    // SAFETY: kernels pass their memory, then the two buffers of `Supply`, and seven scalars.
    unsafe {
        let to: *mut f32 = (*args).cast();
        let data: *const f32 = (*args.add(1)).cast_const().cast();
        let l = std::slice::from_raw_parts((*args.add(2)).cast::<i64>(), 8);
        let s = std::slice::from_raw_parts(scalars, 7);
        let base = l[0] + s[0] * l[1] + s[1] * l[2] + s[2] * l[3];
        for (i, j) in (s[3]..s[4]).flat_map(|i| (s[5]..s[6]).map(move |j| (i, j))) {
            let value = *data.offset((base + i * l[4] + j * l[5]) as isize);
            to.wrapping_offset((i * l[6] + j) as isize).write(value);
        }
    }
}

/// Scratch memory of so many bytes, full of NaNs.
pub fn scratch(bytes: usize) -> Vec<u64> {
    vec![u64::MAX; bytes.div_ceil(8)]
}

pub fn assert_same_bits(what: &str, actual: &[f32], expected: &[f32]) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    for (i, (a, e)) in actual.iter().zip(expected).enumerate() {
        assert!(a.to_bits() == e.to_bits(), "{what}: element {i} is {a:e}, expected {e:e}");
    }
}

/// A constant in packed form, made of up to three parts, each from a copy of what it reads at an odd address, as a constant of
/// a model file may have.
pub fn packed<T: Copy, const N: usize>(
    isa: Isa,
    packing: &Packing,
    constant: &[T],
    bytes_of: impl Fn(T) -> [u8; N],
) -> Vec<f32> {
    let mut packed = vec![f32::NAN; packed_len(packing)];
    let units = pack_units(packing);
    for first in (0..units).step_by(units.div_ceil(3).max(1)) {
        let part = first..units.min(first + units.div_ceil(3));
        let source = &constant[pack_source(packing, part.clone())];
        let bytes: Vec<u8> = std::iter::once(0).chain(source.iter().flat_map(|w| bytes_of(*w))).collect();
        // SAFETY: the copy holds the elements that the part reads.
        unsafe { pack_part(isa, packing, part, bytes.as_ptr().wrapping_add(1), &mut packed) };
    }
    packed
}
