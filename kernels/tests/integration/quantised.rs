//! Products with weights of a few bits in blocks against sums in f64, for every ISA level, form, number of rows and
//! division into tasks, and the packed form against its elements.

use crate::double::{at, layout};
use crate::support::{Counter, Random, cuts, isa_levels, rounds, scratch};
use tensorc_abi::{BatchedGemm, BlockedParts, BlockedWeights, GemmElements, MatrixLayout};
use tensorc_kernels::{quantised_run_with, quantised_scratch, quantised_tasks};

/// Weights, and their packed form at an address that is aligned for nothing.
struct Weights {
    form: BlockedWeights,
    /// By column, then term.
    values: Vec<f32>,
    memory: Vec<u8>,
}

impl Weights {
    fn new(random: &mut Random, [n, k]: [usize; 2]) -> Weights {
        let bits = random.pick(&[2u64, 4, 8]);
        let block = random.pick(&[16, 32, 64, 128, 256, 1024]);
        let mask = ((1u32 << bits) - 1) as u8;
        let form = BlockedWeights::new(bits, block, random.pick(&[true, false]), random.bits() as u8 & mask).unwrap();
        let (block, blocks) = (block as usize, k.div_ceil(block as usize));
        let codes: Vec<u8> = (0..n * k).map(|_| random.bits() as u8 & mask).collect();
        let zeros: Vec<u8> = (0..n * blocks).map(|_| random.bits() as u8 & mask).collect();
        let scales = random.fill(n * blocks);
        let bytes: Vec<u8> = scales.iter().flat_map(|s| s.to_le_bytes()).collect();
        let zero = |at: usize| if form.zeros { zeros[at] } else { form.zero };
        let value = |i: usize| {
            let at = i / k.max(1) * blocks + i % k.max(1) / block;
            (f32::from(codes[i]) - f32::from(zero(at))) * scales[at]
        };
        let parts = BlockedParts {
            codes: &codes,
            strides: [k, 1],
            flip: 0,
            scales: &bytes,
            block_strides: [blocks, 1],
            zeros: Some(&zeros),
        };
        let mut memory = vec![0; 1 + form.bytes(k, n).unwrap()];
        form.pack(k, n, &parts, &mut memory[1..]);
        Weights { form, values: (0..n * k).map(value).collect(), memory }
    }
}

#[test]
fn packed_weights_have_their_elements() {
    let mut random = Random::new(17);
    for _ in 0..rounds(40) {
        let (n, k) = (1 + random.below(9), 1 + random.below(700));
        let weights = Weights::new(&mut random, [n, k]);
        for j in 0..n {
            let first = random.below(k);
            let mut bytes = vec![0; 4 * (k - first)];
            weights.form.unpack([n, k], &weights.memory[1..], j, first, &mut bytes);
            let expected = weights.values[j * k + first..(j + 1) * k].iter().flat_map(|x| x.to_le_bytes());
            assert!(bytes.into_iter().eq(expected), "{:?} {n} {k} column {j} from {first}", weights.form);
        }
    }
}

#[test]
fn products_with_blocked_weights_are_sums() {
    let mut random = Random::new(18);
    let mut shapes = vec![[1, 1, 1], [0, 4, 3], [4, 0, 3], [3, 5, 0], [1, 4, 128], [9, 40, 65], [13, 33, 700]];
    let extents = [1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 31, 32, 33, 64, 100, 129];
    shapes.extend((0..rounds(60)).map(|_| [0; 3].map(|_| random.pick(&extents))));
    // Of several tasks, in rows and in columns, and of several blocks of terms.
    shapes.extend([[600, 40, 200], [1, 700, 900], [5, 300, 1030], [24, 600, 300], [11, 70, 2100]]);
    for [m, n, k] in shapes {
        let batch = random.pick(&[[1, 1, 1], [1, 2, 3]]);
        let weights = Weights::new(&mut random, [n, k].map(|n| n as usize));
        let (a, a_len) = layout(&mut random, batch, [m, k], false);
        let (c, c_len) = layout(&mut random, batch, [m, n], true);
        let elements = GemmElements::Blocked(weights.form);
        let call = BatchedGemm { batch, m, n, k, a, b: MatrixLayout::default(), c, b_packed: false, elements };
        let (left, before) = (random.fill(a_len), random.fill(c_len));
        let mut first: Option<Vec<f32>> = None;
        for isa in isa_levels() {
            let mut result = before.clone();
            let mut marks = vec![0.0f32; (batch.iter().product::<u64>() * m * n) as usize];
            let strides = [m * n * batch[1] * batch[2], m * n * batch[2], m * n, n].map(|s| s as i64);
            let counter = Counter::new(batch, m, n, marks.as_mut_ptr(), strides);
            let mut memory = scratch(quantised_scratch(&call));
            for tasks in cuts(&mut random, quantised_tasks(&call)) {
                let operands = (left.as_ptr(), weights.memory[1..].as_ptr(), result.as_mut_ptr());
                let memory = memory.as_mut_ptr().cast();
                // SAFETY: the buffers are as long as the layouts reach, and the tasks are within the call's.
                unsafe { quantised_run_with(isa, &call, operands, Some(counter.call()), tasks, memory) };
            }
            counter.assert_once(&format!("{isa:?} {call:?}"));
            check(&call, &weights, &left, &before, &result);
            // Every level adds in the same order.
            let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
            match &first {
                None => first = Some(result),
                Some(first) => assert!(bits(first) == bits(&result), "{isa:?} {call:?}: other bits"),
            }
        }
    }
}

/// Elements of the result are sums, and the others are as before.
fn check(call: &BatchedGemm, weights: &Weights, left: &[f32], before: &[f32], result: &[f32]) {
    let mut rest = result.to_vec();
    for flat in 0..call.batch.iter().product() {
        let [_, b1, b2] = call.batch;
        let index = [flat / (b1 * b2), flat / b2 % b1, flat % b2];
        for (i, j) in (0..call.m).flat_map(|i| (0..call.n).map(move |j| (i, j))) {
            let (mut sum, mut size) = (0.0f64, 0.0f64);
            for t in 0..call.k {
                let weight = weights.values[(j * call.k + t) as usize];
                let term = f64::from(left[at(&call.a, index, i, t)]) * f64::from(weight);
                (sum, size) = (sum + term, size + term.abs());
            }
            let place = at(&call.c, index, i, j);
            let error = (f64::from(result[place]) - sum).abs();
            let bound = (call.k as f64 + 8.0) * size * f64::from(f32::EPSILON);
            assert!(error <= bound, "{call:?}: {} at ({i}, {j}), not {sum}", result[place]);
            rest[place] = before[place];
        }
    }
    assert_eq!(rest, before, "{call:?} writes outside of its result");
}
