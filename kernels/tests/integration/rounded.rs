//! Products of operands rounded to bf16, against sums in f64, for every ISA level, layout and division into tasks.

use crate::double::{at, layout};
use crate::support::{Counter, Random, cuts, isa_levels, packed, rounds, scratch};
use tensorc_abi::{BatchedGemm, GemmElements, PackedElements, Packing};
use tensorc_kernels::{rounded_run_with, rounded_scratch, rounded_tasks};

/// The nearest number of bf16, the even one of two.
pub fn to_bf16(x: f32) -> f32 {
    let step = f32::from_bits((x.to_bits() & 0x7f80_0000).saturating_sub(7 << 23));
    if step == 0.0 { x } else { (x / step).round_ties_even() * step }
}

#[test]
fn products_of_rounded_operands() {
    let mut random = Random::new(11);
    let mut shapes =
        vec![[1, 1, 1], [12, 32, 64], [13, 33, 65], [25, 31, 7], [40, 64, 2], [3, 5, 0], [0, 4, 3], [4, 0, 3]];
    let extents = [1, 2, 3, 5, 8, 11, 12, 13, 17, 31, 32, 33, 64, 100];
    shapes.extend((0..rounds(40)).map(|_| [0; 3].map(|_| random.pick(&extents))));
    // Of several tasks, in rows and in columns, and of several blocks of terms.
    shapes.extend([[530, 40, 200], [24, 600, 300], [13, 70, 2100]]);
    for [m, n, k] in shapes {
        let batch = random.pick(&[[1, 1, 1], [1, 2, 3]]);
        let (a, a_len) = layout(&mut random, batch, [m, k], false);
        let (mut b, b_len) = layout(&mut random, [1; 3], [k, n], false);
        b.batch_strides = [0; 3];
        let (c, c_len) = layout(&mut random, batch, [m, n], true);
        let call = BatchedGemm { batch, m, n, k, a, b, c, b_packed: true, elements: GemmElements::Bf16 };
        let (left, right) = (random.fill(a_len), random.fill(b_len));
        let packing = Packing::GemmB {
            k,
            n,
            offset: b.offset,
            row_stride: b.row_stride,
            col_stride: b.col_stride,
            elements: PackedElements::Bf16,
        };
        for isa in isa_levels() {
            let what = format!("{isa:?} {m}×{n}×{k}, {batch:?}");
            let weights = packed(isa, &packing, &right, f32::to_ne_bytes);
            let strides = [m * n * batch[1] * batch[2], m * n * batch[2], m * n, n].map(|s| s as i64);
            let run = |tasks: &[std::ops::Range<u64>]| {
                let mut result = vec![f32::NAN; c_len];
                let mut marks = vec![0.0f32; (batch.iter().product::<u64>() * m * n) as usize];
                let counter = Counter::new(batch, m, n, marks.as_mut_ptr(), strides);
                let mut memory = scratch(rounded_scratch(&call));
                for tasks in tasks.iter().cloned() {
                    // SAFETY: the buffers are as long as the layouts reach, and the tasks are within the call's.
                    unsafe {
                        let (operands, memory) = ([left.as_ptr(), weights.as_ptr()], memory.as_mut_ptr().cast());
                        rounded_run_with(
                            isa,
                            &call,
                            operands,
                            result.as_mut_ptr(),
                            Some(counter.call()),
                            tasks,
                            memory,
                        );
                    }
                }
                counter.assert_once(&what);
                result
            };
            let tasks = rounded_tasks(&call);
            let result = run(&cuts(&mut random, tasks));
            let whole = run(std::slice::from_ref(&(0..tasks)));
            assert!(whole.iter().zip(&result).all(|(x, y)| x.to_bits() == y.to_bits()), "{what}: tasks in parts");
            for flat in 0..batch.iter().product() {
                let index = [flat / (batch[1] * batch[2]), flat / batch[2] % batch[1], flat % batch[2]];
                for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                    let number = |x: f32| f64::from(to_bf16(x));
                    let term = |k| number(left[at(&a, index, i, k)]) * number(right[at(&b, [0; 3], k, j)]);
                    let (sum, size) = (0..k).map(term).fold((0.0, 1e-30), |(sum, size), x| (sum + x, size + x.abs()));
                    let found = f64::from(result[at(&c, index, i, j)]);
                    assert!((found - sum).abs() <= 1e-6 * size * (k as f64).sqrt().max(1.0), "{what}: {found} {sum}");
                }
            }
        }
    }
}
