//! Kernels for a GPU in the interpreter: what operations of warps and blocks compute.

use crate::launches::kernel;
use half::bf16;
use tensorc_ir::DType;
use tensorc_ir::Rng;
use tensorc_ir::kir::{Kernel, warp_matrix};
use tensorc_ir::scalar::Scalar;
use tensorc_simulator::{BufferTraffic, LaunchCounts, run_launch};

/// The program of the threads of one block.
fn block(params: &str, shared: &str, threads: u32, program: &str) -> String {
    format!("kernel @k({params}) {{ grid %b in 0..1 {{ {shared} threads %t in 0..{threads} {{ {program} }} }} }}")
}

fn f32s(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

fn read(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| Scalar::read(DType::F32, b).as_f32()).collect()
}

fn run(kernel: &Kernel, buffers: &mut [Vec<u8>]) -> LaunchCounts {
    run_launch(kernel, buffers).unwrap_or_else(|e| panic!("{e}"))
}

const IN_OUT: &str = "%x: f32[64], %y: mut f32[64]";

#[test]
fn a_block_sums_by_shuffles_and_shared_memory() {
    let k = kernel(&block(
        "%x: f32[128], %y: mut f32[1]",
        "%s = alloc shared f32[4]",
        128,
        "%v0 = load %x[%t]
         %w0 = shuffle %v0 xor 16  %v1 = add.f32 %v0, %w0
         %w1 = shuffle %v1 xor 8   %v2 = add.f32 %v1, %w1
         %w2 = shuffle %v2 xor 4   %v3 = add.f32 %v2, %w2
         %w3 = shuffle %v3 xor 2   %v4 = add.f32 %v3, %w3
         %w4 = shuffle %v4 xor 1   %v5 = add.f32 %v4, %w4
         %lane = index mod(%t, 32)
         %first = eq.i64 %lane, 0
         if %first { store %s[floordiv(%t, 32)], %v5 }
         barrier
         %zero = eq.i64 %t, 0
         if %zero {
           %a = load %s[0]  %b1 = load %s[1]  %c = load %s[2]  %d = load %s[3]
           %e = add.f32 %a, %b1  %f = add.f32 %c, %d  %g = add.f32 %e, %f
           store %y[0], %g
         }",
    ));
    let mut buffers = [f32s((0..128).map(|i| i as f32)), f32s([0.0])];
    let counts = run(&k, &mut buffers);
    assert_eq!(read(&buffers[1]), [8128.0]);
    assert_eq!(counts.barriers, 1);
}

/// All threads of a warp, but not all of the block; and a branch that the verifier cannot know to be taken by all.
#[test]
fn warps_may_part_from_each_other() {
    let warps = "%w = index floordiv(%t, 32) %c = eq.i64 %w, 1
                 if %c { %v = load %x[%t] %s = shuffle %v xor 1 store %y[%t], %s }";
    let mut buffers = [f32s((0..64).map(|i| i as f32)), f32s([0.0; 64])];
    run(&kernel(&block(IN_OUT, "", 64, warps)), &mut buffers);
    assert_eq!(read(&buffers[1])[32..36], [33.0, 32.0, 35.0, 34.0]);
    let by_value = "%v = load %x[0] %c = gt.f32 %v, 0.5 if %c { barrier }";
    run(&kernel(&block(IN_OUT, "", 64, by_value)), &mut buffers);
}

/// Fragments loaded element by element, as the layout says, give a matrix product.
#[test]
fn matrix_units_multiply() {
    for (dtype, k, in_a, in_b) in [("bf16", 16, 8, 4), ("f32", 8, 4, 2)] {
        let text = block(
            &format!("%x: {dtype}[{}], %w: {dtype}[{}], %y: mut f32[128]", 32 * in_a, 32 * in_b),
            "",
            32,
            &format!(
                "%a = alloc register {dtype}[{in_a}] %b1 = alloc register {dtype}[{in_b}] %c = alloc register f32[4]
                 unroll %i in 0..{in_a} {{ %v = load %x[%t * {in_a} + %i] store %a[%i], %v }}
                 unroll %i in 0..{in_b} {{ %v = load %w[%t * {in_b} + %i] store %b1[%i], %v }}
                 unroll %i in 0..4 {{ store %c[%i], 1.0 }}
                 mma %c[0], %a[0], %b1[0]
                 unroll %i in 0..4 {{ %v = load %c[%i] store %y[%t * 4 + %i], %v }}"
            ),
        );
        let kind = if dtype == "f32" { DType::F32 } else { DType::BF16 };
        let mut rng = Rng::new(3);
        let mut small = || (rng.below(17) as f32 - 8.0) / 4.0;
        let (a, b): (Vec<f32>, Vec<f32>) =
            ((0..16 * k).map(|_| small()).collect(), (0..k * 8).map(|_| small()).collect());
        let bytes = |x: f32| match kind {
            DType::F32 => x.to_le_bytes().to_vec(),
            _ => bf16::from_f32(x).to_bits().to_le_bytes().to_vec(),
        };
        let spread = |n: usize, of: &dyn Fn(usize, usize) -> f32| -> Vec<u8> {
            (0..32 * n).flat_map(|i| bytes(of(i / n, i % n))).collect()
        };
        let mut buffers = [
            spread(in_a, &|lane, i| {
                let (r, c) = warp_matrix::a(kind, lane, i);
                a[r * k + c]
            }),
            spread(in_b, &|lane, i| {
                let (r, c) = warp_matrix::b(kind, lane, i);
                b[r * 8 + c]
            }),
            f32s([0.0; 128]),
        ];
        let counts = run(&kernel(&text), &mut buffers);
        assert_eq!(counts.products, 1);
        let found = read(&buffers[2]);
        for lane in 0..32 {
            for i in 0..4 {
                let (r, c) = warp_matrix::acc(lane, i);
                let expected: f32 = 1.0 + (0..k).map(|j| a[r * k + j] * b[j * 8 + c]).sum::<f32>();
                assert_eq!(found[lane * 4 + i], expected, "{dtype}: row {r}, column {c}");
            }
        }
    }
}

/// A matrix of 16×16 comes out of shared memory as the operand of a product.
#[test]
fn matrices_are_loaded_as_operands() {
    for (transposed, word) in [(false, ""), (true, "transposed")] {
        let text = block(
            "%x: bf16[256], %y: mut bf16[256]",
            "%s = alloc shared bf16[256]",
            32,
            &format!(
                "unroll %i in 0..8 {{ %v = load %x[%t * 8 + %i] store %s[%t * 8 + %i], %v }}
                 barrier
                 %a = alloc register bf16[8]
                 load_matrix %a[0], %s[mod(%t, 16) * 16 + floordiv(%t, 16) * 8] count 4 {word}
                 unroll %i in 0..8 {{ %v = load %a[%i] store %y[%t * 8 + %i], %v }}"
            ),
        );
        let bits: Vec<u16> = (0..256).collect();
        let mut buffers = [bits.iter().flat_map(|b| b.to_le_bytes()).collect::<Vec<u8>>(), vec![0; 512]];
        let counts = run(&kernel(&text), &mut buffers);
        for lane in 0..32 {
            for i in 0..8 {
                let (mut row, mut column) = warp_matrix::a(DType::BF16, lane, i);
                if transposed {
                    // Within each matrix of 8×8.
                    (row, column) = (row / 8 * 8 + column % 8, column / 8 * 8 + row % 8);
                }
                let at = (lane * 8 + i) * 2;
                let found = u16::from_le_bytes([buffers[1][at], buffers[1][at + 1]]);
                assert_eq!(usize::from(found), row * 16 + column, "thread {lane}, element {i}");
            }
        }
        // Rows of 32 bytes: two rows of a matrix share each group of banks.
        let traffic = counts.memory.iter().find(|((_, access), _)| *access == BufferTraffic::Matrix).map(|(_, t)| *t);
        assert_eq!(traffic.map(|t| (t.requests, t.pieces, t.least)), Some((4, 8, 4)));
    }
}

/// A matrix of 16×8 elements of 32 bits comes out of shared memory as the operand of a product in tf32.
#[test]
fn matrices_of_words_are_loaded_as_operands() {
    let program = block(
        "%x: f32[128], %y: mut f32[128]",
        "%s = alloc shared f32[128]",
        32,
        "unroll %i in 0..4 { %v = load %x[%t * 4 + %i] store %s[%t * 4 + %i], %v }
         barrier
         %a = alloc register f32[4]
         load_matrix %a[0], %s[mod(%t, 16) * 8 + floordiv(%t, 16) * 4] count 4
         unroll %i in 0..4 { %v = load %a[%i] store %y[%t * 4 + %i], %v }",
    );
    let mut buffers = [f32s((0..128).map(|i| i as f32)), f32s([0.0; 128])];
    run(&kernel(&program), &mut buffers);
    let found = read(&buffers[1]);
    for lane in 0..32 {
        for i in 0..4 {
            let (row, column) = warp_matrix::a(DType::F32, lane, i);
            assert_eq!(found[lane * 4 + i], (row * 8 + column) as f32, "thread {lane}, element {i}");
        }
    }
}

#[test]
fn copies_are_seen_when_they_are_awaited() {
    let shared = "%s = alloc shared f32[64]";
    let program = {
        let copy = "%c = lt.i64 %t, 12 copy_async %s[%t * 4], %x[%t * 4] len 4 where %c commit_copies";
        let store = "unroll %i in 0..4 { %v = load %s[mod(%t + 1, 16) * 4 + %i] store %y[%t * 4 + %i], %v }";
        block(
            IN_OUT,
            shared,
            32,
            &format!("%in = lt.i64 %t, 16 if %in {{ {copy} }} await_copies 0 barrier if %in {{ {store} }}"),
        )
    };
    let mut given = [f32s((1..65).map(|i| i as f32)), f32s([0.0; 64])];
    run(&kernel(&program), &mut given);
    let found = read(&given[1]);
    assert_eq!((found[0], found[43], found[44], found[60]), (5.0, 48.0, 0.0, 1.0), "neighbours, and zeros");
}
