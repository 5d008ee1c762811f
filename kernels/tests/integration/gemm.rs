//! Matrix products against the documented chain of multiply-adds (equal bits) and against f64
//! sums (error bound), for every ISA level, layout and division into tasks.

use crate::support::{self, Counter, Random, Supply, assert_same_bits, cuts, isa_levels, scratch};
use tensorc_abi::{BatchedGemm, GemmElements, MatrixLayout, PackedElements, Packing};
use tensorc_kernels::{Isa, gemm_run_with, gemm_scratch, gemm_tasks};

/// How an operand lies in memory.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Rows,
    Columns,
    /// Rows with a gap after each.
    Gapped,
    /// Neither rows nor columns are contiguous.
    Strided,
}

/// A layout of a `rows × cols` matrix for each of `batch`, and the elements it spans.
fn layout(kind: Kind, batch: [u64; 3], rows: u64, cols: u64) -> (MatrixLayout, usize) {
    let (rows, cols) = (rows as i64, cols as i64);
    let (row_stride, col_stride, size) = match kind {
        Kind::Rows => (cols, 1, rows * cols),
        Kind::Columns => (1, rows, rows * cols),
        Kind::Gapped => (cols + 5, 1, rows * (cols + 5)),
        Kind::Strided => (cols * 3 + 1, 3, rows * (cols * 3 + 1)),
    };
    let batch = batch.map(|b| b as i64);
    let batch_strides = [size * batch[1] * batch[2], size * batch[2], size];
    let len = 3 + size * batch[0] * batch[1] * batch[2];
    (MatrixLayout { offset: 3, batch_strides, row_stride, col_stride }, len as usize)
}

fn at(layout: &MatrixLayout, batch: [u64; 3], row: u64, col: u64) -> usize {
    let b: i64 = batch.iter().zip(&layout.batch_strides).map(|(&b, &s)| b as i64 * s).sum();
    (layout.offset + b + row as i64 * layout.row_stride + col as i64 * layout.col_stride) as usize
}

/// The documented sum, into a copy of `c`; each element is checked against its f64 sum.
fn model(call: &BatchedGemm, a: &[f32], b: &[f32], c: &[f32]) -> Vec<f32> {
    let mut out = c.to_vec();
    for b0 in 0..call.batch[0] {
        for b1 in 0..call.batch[1] {
            for b2 in 0..call.batch[2] {
                let batch = [b0, b1, b2];
                for i in 0..call.m {
                    for j in 0..call.n {
                        let (mut sum, mut exact, mut size) = (0.0f32, 0.0f64, 0.0f64);
                        for k in 0..call.k {
                            let x = a[at(&call.a, batch, i, k)];
                            let y = b[at(&call.b, batch, k, j)];
                            sum = x.mul_add(y, sum);
                            exact += x as f64 * y as f64;
                            size += (x as f64 * y as f64).abs();
                        }
                        let bound = call.k as f64 * f64::from(f32::EPSILON) * size;
                        assert!((f64::from(sum) - exact).abs() <= bound);
                        out[at(&call.c, batch, i, j)] = sum;
                    }
                }
            }
        }
    }
    out
}

struct Case {
    batch: [u64; 3],
    mnk: [u64; 3],
    kinds: [Kind; 2],
    gapped_c: bool,
    packed: bool,
}

fn run(
    isa: Isa,
    call: &BatchedGemm,
    a: &[f32],
    b: &[f32],
    c: &mut [f32],
    ranges: &[std::ops::Range<u64>],
    epilogue: bool,
) {
    let mut packed = Vec::new();
    if call.b_packed {
        let packing = Packing::GemmB {
            k: call.k,
            n: call.n,
            offset: call.b.offset,
            row_stride: call.b.row_stride,
            col_stride: call.b.col_stride,
            elements: PackedElements::F32,
        };
        packed = support::packed(isa, &packing, b, f32::to_ne_bytes);
    }
    let right = if call.b_packed { packed.as_ptr() } else { b.as_ptr() };
    let [s0, s1, s2] = call.c.batch_strides;
    let data = c.as_mut_ptr().wrapping_add(call.c.offset as usize);
    let counter = Counter::new(call.batch, call.m, call.n, data, [s0, s1, s2, call.c.row_stride]);
    let supply = Supply::new(a, &call.a, call.k as usize);
    for (i, range) in ranges.iter().enumerate() {
        let computed = i % 2 == 1;
        let left = if computed { supply.left() } else { a.as_ptr().into() };
        let mut scratch = scratch(gemm_scratch(call, computed.then_some(Supply::ARGS)));
        let finish = epilogue.then(|| counter.call());
        // SAFETY: the buffers have the sizes the call states.
        unsafe {
            gemm_run_with(isa, call, left, right, c.as_mut_ptr(), finish, range.clone(), scratch.as_mut_ptr().cast());
        }
    }
    if epilogue {
        counter.assert_once(&format!("{call:?}"));
    }
}

fn check(random: &mut Random, case: &Case) {
    let [m, n, k] = case.mnk;
    let (a, a_len) = layout(case.kinds[0], case.batch, m, k);
    // A packed operand is one matrix shared by every batch.
    let (mut b, b_len) = layout(case.kinds[1], if case.packed { [1; 3] } else { case.batch }, k, n);
    if case.packed {
        b.batch_strides = [0; 3];
    }
    let (c, c_len) = layout(if case.gapped_c { Kind::Gapped } else { Kind::Rows }, case.batch, m, n);
    let call = BatchedGemm { batch: case.batch, m, n, k, a, b, c, b_packed: case.packed, elements: GemmElements::F32 };
    let (a, b, c) = (random.fill(a_len), random.fill(b_len), random.fill(c_len));
    let expected = model(&call, &a, &b, &c);
    let tasks = gemm_tasks(&call);
    for isa in isa_levels() {
        let what = format!("{isa:?} {call:?} {:?}", case.kinds);
        let mut whole = c.clone();
        run(isa, &call, &a, &b, &mut whole, std::slice::from_ref(&(0..tasks)), false);
        assert_same_bits(&what, &whole, &expected);
        let mut cut = c.clone();
        run(isa, &call, &a, &b, &mut cut, &cuts(random, tasks), true);
        for batch in 0..case.batch.iter().product::<u64>() {
            let batch =
                [batch / (case.batch[1] * case.batch[2]), batch / case.batch[2] % case.batch[1], batch % case.batch[2]];
            for i in 0..m {
                for j in 0..n {
                    let index = at(&call.c, batch, i, j);
                    assert_eq!(cut[index], 2.0 * expected[index], "{what}");
                }
            }
        }
    }
}

#[test]
fn random_products() {
    let mut random = Random::new(1);
    let kinds = [Kind::Rows, Kind::Columns, Kind::Gapped, Kind::Strided];
    for _ in 0..support::rounds(250) {
        let size = |random: &mut Random| random.pick(&[1, 2, 3, 4, 5, 7, 11, 12, 13, 16, 17, 20, 24, 31, 33, 48, 65]);
        let mnk = [size(&mut random), size(&mut random), size(&mut random)];
        let batch = random.pick(&[[1, 1, 1], [1, 1, 1], [2, 1, 3], [1, 5, 1], [2, 2, 2]]);
        let kinds = [random.pick(&kinds), random.pick(&kinds)];
        let case = Case { batch, mnk, kinds, gapped_c: random.below(2) == 0, packed: random.below(2) == 0 };
        check(&mut random, &case);
    }
}

#[test]
fn several_blocks_and_tasks() {
    let mut random = Random::new(2);
    let kinds = [Kind::Rows, Kind::Columns, Kind::Strided];
    for mnk in [
        [1, 5000, 7],
        [3, 300, 600],
        [2, 129, 513],
        [230, 140, 300],
        [37, 1100, 520],
        [400, 33, 257],
        [13, 520, 1024],
        [30, 2048, 40],
    ] {
        for packed in [false, true] {
            let kinds = [random.pick(&kinds), random.pick(&kinds)];
            check(&mut random, &Case { batch: [1; 3], mnk, kinds, gapped_c: false, packed });
        }
    }
}

#[test]
fn few_columns() {
    let mut random = Random::new(7);
    let kinds = [Kind::Rows, Kind::Columns, Kind::Gapped, Kind::Strided];
    for mnk in
        [[32, 1, 128], [33, 2, 129], [500, 3, 700], [70, 4, 0], [200, 5, 1], [1025, 6, 300], [40, 8, 256], [64, 9, 90]]
    {
        for packed in [false, true] {
            for gapped_c in [false, true] {
                let kinds = [random.pick(&kinds), random.pick(&kinds)];
                check(&mut random, &Case { batch: [2, 1, 2], mnk, kinds, gapped_c, packed });
            }
        }
    }
}

#[test]
fn copied_columns_serve_all_rows() {
    let mut random = Random::new(6);
    for kinds in [[Kind::Rows, Kind::Rows], [Kind::Rows, Kind::Columns], [Kind::Columns, Kind::Rows]] {
        for (batch, mnk) in [([1, 1, 1], [330, 150, 600]), ([1, 2, 1], [300, 90, 100]), ([1, 1, 1], [64, 100, 1024])] {
            check(&mut random, &Case { batch, mnk, kinds, gapped_c: true, packed: false });
        }
    }
}

#[test]
fn empty_products() {
    let mut random = Random::new(3);
    for (mnk, batch) in [
        ([0, 4, 4], [1; 3]),
        ([4, 0, 4], [1; 3]),
        ([4, 4, 4], [0, 1, 1]),
        ([4, 40, 0], [1; 3]),
        ([1, 40, 0], [1, 2, 1]),
    ] {
        for packed in [false, true] {
            check(&mut random, &Case { batch, mnk, kinds: [Kind::Rows; 2], gapped_c: false, packed });
        }
    }
}

#[test]
fn broadcast_and_transposed_batches() {
    // Attention scores: heads interleaved in rows, the right operand transposed, one batch stride zero.
    let mut random = Random::new(4);
    let (heads, rows, width) = (3u64, 20u64, 24u64);
    let a = MatrixLayout { offset: 0, batch_strides: [0, 24, 0], row_stride: 72, col_stride: 1 };
    let b = MatrixLayout { offset: 0, batch_strides: [0, 24, 0], row_stride: 1, col_stride: 72 };
    let c = MatrixLayout { offset: 0, batch_strides: [1200, 400, 0], row_stride: 20, col_stride: 1 };
    let call = BatchedGemm {
        batch: [2, heads, 1],
        m: rows,
        n: rows,
        k: width,
        a,
        b,
        c,
        b_packed: false,
        elements: GemmElements::F32,
    };
    let (a, b, c) = (random.fill(1440), random.fill(1440), random.fill(2400));
    let expected = model(&call, &a, &b, &c);
    for isa in isa_levels() {
        let mut out = c.clone();
        run(isa, &call, &a, &b, &mut out, std::slice::from_ref(&(0..gemm_tasks(&call))), false);
        assert_same_bits(&format!("{isa:?}"), &out, &expected);
    }
}
