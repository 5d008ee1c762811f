//! Kernels whose warps part, in the interpreter: products of tiles that the copy engine fetches, and what is not awaited.

use crate::launches::kernel;
use half::bf16;
use tensorc_ir::DType;
use tensorc_ir::Rng;
use tensorc_ir::scalar::Scalar;
use tensorc_simulator::{BufferTraffic, LaunchCounts, run_launch};

/// Rows, columns and terms of the product below: two groups of rows, terms that end inside of a tile, columns that do, too.
const ROWS: usize = 128;
const COLUMNS: usize = 72;
const TERMS: usize = 232;

/// `y = x · w` with tiles of 128×96×64, two steps ahead; the columns of `w` side by side in memory if `transposed`.
fn product(transposed: bool) -> String {
    let (b, copies) = match transposed {
        false => (
            "%b_tiles[%slot * 6144]",
            "copy_tile %b_tiles[%s * 6144], %w rows 72 columns 232 stride 232 box 96 at 0, %k * 64 signals %full[%s]",
        ),
        true => (
            "%b_tiles[%slot * 8192] transposed panels 4096",
            "unroll %p in 0..2 {
               copy_tile %b_tiles[%s * 8192 + %p * 4096], %w rows 232 columns 72 stride 72 box 64
                 at %k * 64, %p * 64 signals %full[%s]
             }",
        ),
    };
    let (size, bytes, columns) = if transposed { (16384, 32768, 128) } else { (12288, 28672, 96) };
    format!(
        "kernel @k(%x: bf16[29696], %w: bf16[16704], %y: mut f32[9216]) {{
           grid %b in 0..1 {{
             %a_tiles = alloc tile bf16[16384]
             %b_tiles = alloc tile bf16[{size}]
             %full = alloc barrier i64[2]
             %empty = alloc barrier i64[2]
             threads %t in 0..384 {{
               init_barriers %full arrivals 1
               init_barriers %empty arrivals 8
               barrier
               roles {{
                 warps 0..8 registers 240 {{
                   %group = index floordiv(%t, 128)
                   %sums = alloc register f32[64]
                   unroll %i in 0..64 {{ store %sums[%i], 0.0 }}
                   for %k in 0..4 {{
                     %slot = index mod(%k, 2)
                     await_barrier %full[%slot] phase floordiv(%k, 2)
                     group_mma %sums[0], %a_tiles[%slot * 8192 + %group * 4096], {b} columns {columns} depth 64
                     await_products %sums pending 0
                     arrive %empty[%slot]
                   }}
                   unroll %i in 0..36 {{
                     %row = index %group * 64 + floordiv(mod(%t, 128), 32) * 16 + floordiv(mod(%t, 32), 4)
                                  + mod(floordiv(%i, 2), 2) * 8
                     %v = load %sums[%i]
                     store %y[%row * 72 + floordiv(%i, 4) * 8 + mod(%t, 4) * 2 + mod(%i, 2)], %v
                   }}
                 }}
                 warps 8..12 registers 24 {{
                   %warp = index floordiv(%t, 32)
                   %first = eq.i64 %warp, 8
                   if %first {{
                     for %k in 0..4 {{
                       %s = index mod(%k, 2)
                       await_barrier %empty[%s] phase floordiv(%k, 2) - 1
                       arrive %full[%s] bytes {bytes}
                       copy_tile %a_tiles[%s * 8192], %x rows 128 columns 232 stride 232 box 128
                         at 0, %k * 64 signals %full[%s]
                       {copies}
                     }}
                   }}
                 }}
               }}
             }}
           }}
         }}"
    )
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| bf16::from_f32(*x).to_bits().to_le_bytes()).collect()
}

/// The same of f32, the left operand of which lies beside others: twice as many steps of half as many terms.
fn product_of_f32() -> String {
    let changes = [
        ("bf16", "f32"),
        ("[16384]", "[8192]"),
        ("[12288]", "[6144]"),
        ("* 8192", "* 4096"),
        ("* 6144", "* 3072"),
        ("%group * 4096", "%group * 2048"),
        ("0..4 {", "0..8 {"),
        ("%k * 64", "%k * 32"),
        ("depth 64", "depth 32"),
        ("box 128", "box 128 batch 1 stride 8 at 0 batch 1 stride 29696 at 0"),
    ];
    changes.into_iter().fold(product(false), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    })
}

/// Runs a variant of the product on small numbers: what it did, and whether the result is right.
fn run(text: &str, transposed: bool) -> Result<(LaunchCounts, bool), String> {
    let bytes = |values: &[f32]| match text.contains("bf16") {
        true => bytes(values),
        false => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
    };
    let mut rng = Rng::new(5);
    let mut small = |n: usize| (0..n).map(|_| (rng.below(17) as f32 - 8.0) / 4.0).collect::<Vec<f32>>();
    let (x, w) = (small(ROWS * TERMS), small(COLUMNS * TERMS));
    let mut buffers = [bytes(&x), bytes(&w), vec![0; ROWS * COLUMNS * 4]];
    let counts = run_launch(&kernel(text), &mut buffers).map_err(|e| e.to_string())?;
    let found = buffers[2].chunks_exact(4).map(|b| Scalar::read(DType::F32, b).as_f32());
    let of_w = |k: usize, j: usize| if transposed { w[k * COLUMNS + j] } else { w[j * TERMS + k] };
    let expected = |at: usize| {
        let (i, j) = (at / COLUMNS, at % COLUMNS);
        (0..TERMS).map(|k| x[i * TERMS + k] * of_w(k, j)).sum::<f32>()
    };
    Ok((counts, found.enumerate().all(|(at, y)| y == expected(at))))
}

#[test]
fn groups_of_warps_multiply_what_another_fetches() {
    for transposed in [false, true] {
        let (counts, right) = run(&product(transposed), transposed).unwrap();
        assert!(right, "transposed {transposed}");
        assert_eq!(counts.group_products, 8, "of each of two groups, four");
        let copies: Vec<(u64, u64)> = counts
            .memory
            .iter()
            .filter(|((_, access), _)| *access == BufferTraffic::Tile)
            .map(|(_, traffic)| (traffic.requests, traffic.bytes))
            .collect();
        let of_w = if transposed { (8, 2 * (TERMS * COLUMNS) as u64) } else { (4, 2 * (TERMS * COLUMNS) as u64) };
        assert_eq!(copies, [(4, 2 * (TERMS * ROWS) as u64), of_w], "every element once, zeros beyond");
    }
}

/// Numbers of f32 come with 10 bits of fraction, which is all of these.
#[test]
fn groups_of_warps_multiply_tf32() {
    let (counts, right) = run(&product_of_f32(), false).unwrap();
    assert!(right);
    assert_eq!(counts.group_products, 16, "of each of two groups, eight");
    let elsewhere = product_of_f32().replace("stride 29696 at 0", "stride 29696 at 1");
    assert!(!run(&elsewhere, false).unwrap().1, "zeros, where there is no matrix");
}

/// What is wrong with a variant of the product.
#[track_caller]
fn fails(from: &str, to: &str, why: &str) {
    let text = product(false);
    assert!(text.contains(from), "{from}");
    match run(&text.replace(from, to), false) {
        Ok((_, right)) => panic!("runs, with a right result: {right}; expected {why}"),
        Err(error) => assert!(error.contains(why), "{error}"),
    }
}

#[test]
fn what_is_not_awaited_is_an_error() {
    let wait = "await_barrier %full[%slot] phase floordiv(%k, 2)";
    fails(wait, "", "of `a_tiles` is read before");
    let mma = "await_products %sums pending 0";
    // The tiles are free before the product is finished.
    let early = format!("arrive %empty[%slot] {mma}");
    fails(&format!("{mma}\n                     arrive %empty[%slot]"), &early, "races with another for element");
    fails(mma, "", "`sums` is used before its products are awaited");
    fails("await_barrier %empty[%s] phase floordiv(%k, 2) - 1", "", "arrives at `full[0]` once too often");
    fails("unroll %i in 0..64 { store %sums[%i], 0.0 }", "", "are added to before they are written");
    // A copy that comes after the kernel's end.
    let late = "copy_tile %b_tiles[0], %w rows 72 columns 232 stride 232 box 96 at 0, 0 signals %full[0]";
    let text =
        product(false).replace("if %first {", &format!("if %first {{ %late = lt.i64 %b, 0 if %late {{ {late} }}"));
    assert!(run(&text, false).unwrap().1);
    let text = text.replace("lt.i64 %b, 0", "eq.i64 %b, 0").replace("for %k in 0..4", "for %k in 0..0");
    assert!(run(&text, false).unwrap_err().contains("a copy to `b_tiles` is not awaited"));
}

#[test]
fn warps_that_wait_for_ever_are_named() {
    fails("arrive %empty[%slot]", "", "warp 8 for phase 0 of `empty[0]`");
    fails("arrivals 8", "arrivals 9", "wait for ever: warp 0 for phase 1 of `full[0]`");
    fails("bytes 28672", "bytes 28600", "wait for ever: warp 0 for phase 0 of `full[0]`");
    fails("arrivals 8", "arrivals 4", "warp 8 waits for phase 0 of `empty[0]`, 2 are over");
    fails("phase floordiv(%k, 2) - 1", "phase floordiv(%k, 2) - 2", "waits for phase -2 of `empty[0]`");
    // Tiles are multiplied twice, and given free twice.
    fails("phase floordiv(%k, 2)\n", "phase floordiv(%k, 4)\n", "warp 8 waits for phase 0 of `empty[0]`, 2 are over");
}

/// Tiles begin at multiples of 1024 bytes, whatever lies before them.
#[test]
fn tiles_are_aligned() {
    let text = "kernel @k(%y: mut f32[4]) { grid %b in 0..1 {
        %s = alloc shared f32[5]  %a = alloc tile f16[520]  %e = alloc barrier i64[3]  %c = alloc tile f16[512]
        threads %t in 0..32 { init_barriers %e arrivals 1 barrier } } }";
    let k = kernel(text);
    let offsets: Vec<u64> = (1..5).map(|i| k.shared_offset(tensorc_ir::kir::Buf(i))).collect();
    assert_eq!(offsets, [0, 1024, 2064, 3072]);
    assert_eq!(k.launch().map(|l| l.shared_bytes), Some(4096));
}
