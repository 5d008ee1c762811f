//! Kernels for a GPU: what the verifier refuses, what the interpreter finds, and what it counts.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod launches;

use half::bf16;
use launches::{kernel, parse};
use tensorc_ir::DType;
use tensorc_ir::interp::{Access, Counts, run_launch};
use tensorc_ir::kir::{Kernel, warp_matrix};
use tensorc_ir::scalar::Scalar;
use tensorc_ir::testing::Rng;
use tensorc_ir::verify::verify_kernel;

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

fn run(kernel: &Kernel, buffers: &mut [Vec<u8>]) -> Counts {
    run_launch(kernel, buffers).unwrap_or_else(|e| panic!("{e}"))
}

#[track_caller]
fn fails(text: &str, buffers: &mut [Vec<u8>], why: &str) {
    let error = run_launch(&kernel(text), buffers).expect_err(why).to_string();
    assert!(error.contains(why), "{error}");
}

#[track_caller]
fn refused(text: &str, why: &str) {
    let error = verify_kernel(&parse(text)).expect_err(why).to_string();
    assert!(error.contains(why), "{error}");
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

#[test]
fn races_are_found_in_any_order_of_threads() {
    let buffers = || [f32s([1.0; 64]), f32s([0.0; 64])];
    let shared = "%s = alloc shared f32[64]";
    let program = |between: &str| {
        let text = "%v = load %x[%t] store %s[%t], %v BETWEEN %w = load %s[mod(%t + 1, 64)] store %y[%t], %w";
        block(IN_OUT, shared, 64, &text.replace("BETWEEN", between))
    };
    run(&kernel(&program("barrier")), &mut buffers());
    fails(&program(""), &mut buffers(), "of block 0 races with another for element 1 of `s`");
    let all_write = block(IN_OUT, "", 64, "%v = load %x[%t] store %y[0], %v");
    fails(&all_write, &mut buffers(), "races with another for element 0 of `y`");
    let blocks = "kernel @k(%x: f32[64], %y: mut f32[64]) {
        grid %b in 0..2 { threads %t in 0..32 { %v = load %x[%t] store %y[%t], %v } } }";
    fails(blocks, &mut buffers(), "thread 0 of block 1 races");
    // Read by all, written by one after a barrier.
    let late = "%v = load %s[0]  barrier  %z = eq.i64 %t, 0  if %z { store %s[0], %v }";
    let early = "%z0 = eq.i64 %t, 5  if %z0 { store %s[0], 2.0 } barrier ";
    run(&kernel(&block(IN_OUT, shared, 64, &format!("{early}{late}"))), &mut buffers());
    let unordered = format!("{early}{}", late.replace("barrier", ""));
    fails(&block(IN_OUT, shared, 64, &unordered), &mut buffers(), "races");
}

#[test]
fn what_was_never_written_and_what_is_outside_is_not_read() {
    let mut buffers = [f32s([1.0; 64]), f32s([0.0; 64])];
    let shared = "%s = alloc shared f32[64]";
    fails(&block(IN_OUT, shared, 64, "%v = load %s[%t] store %y[%t], %v"), &mut buffers, "before it is written");
    let beyond = block(IN_OUT, "", 64, "%v = load %x[%t + 1] store %y[%t], %v");
    fails(&beyond, &mut buffers, "index 64 is out of bounds of `x` (64 elements) in thread 63 of block 0");
    let local = block(IN_OUT, "", 32, "%r = alloc register f32[2] %v = load %r[1] store %y[%t], %v");
    fails(&local, &mut buffers, "element 1 of `r` is read before it is written");
}

#[test]
fn threads_that_part_meet_no_barrier() {
    let guarded = |inside: &str| block(IN_OUT, "", 64, &format!("%c = lt.i64 %t, 40 if %c {{ {inside} }}"));
    refused(&guarded("barrier"), "a barrier that some threads of a block may not reach");
    refused(&guarded("%v = load %x[%t] %w = shuffle %v xor 1"), "a shuffle that some threads of a warp may not reach");
    refused(&block(IN_OUT, "", 64, "for %i in 0..%t { barrier }"), "may not reach");
    // All threads of a warp, but not all of the block.
    let warps = "%w = index floordiv(%t, 32) %c = eq.i64 %w, 1
                 if %c { %v = load %x[%t] %s = shuffle %v xor 1 store %y[%t], %s }";
    let mut buffers = [f32s((0..64).map(|i| i as f32)), f32s([0.0; 64])];
    run(&kernel(&block(IN_OUT, "", 64, warps)), &mut buffers);
    assert_eq!(read(&buffers[1])[32..36], [33.0, 32.0, 35.0, 34.0]);
    // What the verifier cannot know, the interpreter sees.
    let by_value = "%v = load %x[0] %c = gt.f32 %v, 0.5 if %c { barrier }";
    run(&kernel(&block(IN_OUT, "", 64, by_value)), &mut buffers);
}

#[test]
fn the_shape_of_a_launch_is_checked() {
    let threads = |n: &str, body: &str| {
        format!("kernel @k(%y: mut f32[4]) {{ grid %b in 0..1 {{ threads %t in 0..{n} {{ {body} }} }} }}")
    };
    refused(&threads("48", ""), "a multiple of 32, up to 1024");
    refused(&threads("2048", ""), "a multiple of 32, up to 1024");
    refused(&threads("32", "threads %u in 0..32 { }"), "a loop of a launch inside a kernel");
    refused("kernel @k(%y: mut f32[4]) { grid %b in 0..1 { store %y[0], 1.0 } }", "must end with a loop of threads");
    refused("kernel @k(%y: mut f32[4]) { threads %t in 0..32 { } }", "a loop of a launch inside a kernel");
    refused("kernel @k(%y: mut f32[4]) { barrier }", "stands in a loop of threads");
    refused(&threads("32", "%s = alloc shared f32[4]"), "exactly shared memory is allocated in the grid loop");
    let large =
        "kernel @k(%y: mut f32[4]) { grid %b in 0..1 { %s = alloc shared f32[60000] threads %t in 0..32 { } } }";
    refused(large, "240000 bytes of shared memory, more than 232448");
    refused(&block(IN_OUT, "", 32, "%v = load %x[%t] %w = shuffle %v xor 32"), "a shuffle over distance 32");
    let narrow =
        "%a = alloc register f64[8] %b1 = alloc register f64[4] %c = alloc register f32[4] mma %c[0], %a[0], %b1[0]";
    refused(&block(IN_OUT, "", 32, narrow), "a product of matrices of f64");
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
        let traffic = counts.memory.iter().find(|((_, access), _)| *access == Access::Matrix).map(|(_, t)| *t);
        assert_eq!(traffic.map(|t| (t.requests, t.pieces, t.least)), Some((4, 8, 4)));
    }
}

/// A matrix of 16×8 elements of 32 bits comes out of shared memory as the operand of a product in tf32.
#[test]
fn matrices_of_words_are_loaded_as_operands() {
    let program = |form: &str| {
        block(
            "%x: f32[128], %y: mut f32[128]",
            "%s = alloc shared f32[128]",
            32,
            &format!(
                "unroll %i in 0..4 {{ %v = load %x[%t * 4 + %i] store %s[%t * 4 + %i], %v }}
                 barrier
                 %a = alloc register f32[4]
                 load_matrix %a[0], %s[mod(%t, 16) * 8 + floordiv(%t, 16) * 4] count 4 {form}
                 unroll %i in 0..4 {{ %v = load %a[%i] store %y[%t * 4 + %i], %v }}"
            ),
        )
    };
    let mut buffers = [f32s((0..128).map(|i| i as f32)), f32s([0.0; 128])];
    run(&kernel(&program("")), &mut buffers);
    let found = read(&buffers[1]);
    for lane in 0..32 {
        for i in 0..4 {
            let (row, column) = warp_matrix::a(DType::F32, lane, i);
            assert_eq!(found[lane * 4 + i], (row * 8 + column) as f32, "thread {lane}, element {i}");
        }
    }
    refused(&program("transposed"), "matrices of f32 cannot be transposed");
}

#[test]
fn copies_are_seen_when_they_are_awaited() {
    let shared = "%s = alloc shared f32[64]";
    let program = |after: &str| {
        let copy = "%c = lt.i64 %t, 12 copy_async %s[%t * 4], %x[%t * 4] len 4 where %c commit_copies";
        let store = "unroll %i in 0..4 { %v = load %s[mod(%t + 1, 16) * 4 + %i] store %y[%t * 4 + %i], %v }";
        block(IN_OUT, shared, 32, &format!("%in = lt.i64 %t, 16 if %in {{ {copy} }} {after} if %in {{ {store} }}"))
    };
    let buffers = || [f32s((1..65).map(|i| i as f32)), f32s([0.0; 64])];
    let mut given = buffers();
    run(&kernel(&program("await_copies 0 barrier")), &mut given);
    let found = read(&given[1]);
    assert_eq!((found[0], found[43], found[44], found[60]), (5.0, 48.0, 0.0, 1.0), "neighbours, and zeros");
    fails(&program("barrier"), &mut buffers(), "is read before its copy is awaited");
    fails(&program("await_copies 1 barrier"), &mut buffers(), "is read before its copy is awaited");
    fails(&program("await_copies 0"), &mut buffers(), "races");
    let misaligned = block(IN_OUT, shared, 32, "copy_async %s[%t + 1], %x[%t] len 4");
    fails(&misaligned, &mut buffers(), "element 1 of `s` is not aligned to 16 bytes");
}

/// What memory does is counted by warp: neighbours share sectors, columns share banks.
#[test]
fn traffic_is_counted() {
    let text = "kernel @k(%x: f32[4096], %y: mut f32[4096]) {
        grid %b in 0..1 {
          %s = alloc shared f32[1056]
          threads %t in 0..32 {
            vector %l in 0..4 { %v = load %x[%t * 4 + %l] store %y[%t * 4 + %l], %v }
            %w = load %x[%t * 32]
            store %s[%t * 32], %w
            store %s[%t * 33 + 1], %w
          } } }";
    let mut buffers = [f32s([1.0; 4096]), f32s([0.0; 4096])];
    let k = kernel(text);
    let counts = run(&k, &mut buffers);
    let text = counts.describe(&k).to_string();
    assert!(text.contains("load x: 2 requests, 640 bytes, 24.00 sectors/request, 48 of at least 20"), "{text}");
    assert!(text.contains("store y: 1 requests, 512 bytes, 16.00 sectors/request, 16 of at least 16"), "{text}");
    assert!(text.contains("store s: 2 requests, 256 bytes, 16.50 passes/request, 33 of at least 2"), "{text}");
}
