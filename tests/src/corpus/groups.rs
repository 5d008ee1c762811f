//! Products that groups of warps compute where a GPU has such, and products near them that they do not.

use tensorc::DType;
use tensorc::ir::op::Registry;

use super::{Case, graph, inputs};

/// Inputs and body of a graph, `T` for an element type, and whether groups of warps multiply.
const PROGRAMS: [(&str, &str, &str, bool); 22] = [
    ("product", "%x: T[70, 136], %w: T[136, 72]", "%y = matmul(%x, %w)", true),
    (
        "layer",
        "%x: T[72, 64], %w: T[80, 64], %b: T[80]",
        "%t = transpose(%w) {perm = [1, 0]} %p = matmul(%x, %t) %s = add(%p, %b) %y = gelu(%s)",
        true,
    ),
    ("columns", "%x: T[72, 136], %w: T[72, 88]", "%t = transpose(%x) {perm = [1, 0]} %y = matmul(%t, %w)", true),
    (
        "columns and rows",
        "%x: T[104, 200], %w: T[72, 104]",
        "%t = transpose(%x) {perm = [1, 0]} %v = transpose(%w) {perm = [1, 0]} %y = matmul(%t, %v)",
        true,
    ),
    ("rows of a batch", "%x: T[3, 47, 64], %w: T[64, 72]", "%y = matmul(%x, %w)", true),
    ("residual", "%x: T[65, 320], %w: T[320, 64], %r: T[65, 64]", "%p = matmul(%x, %w) %y = add(%p, %r)", true),
    (
        "transposed result",
        "%x: T[66, 64], %w: T[64, 72]",
        "%p = matmul(%x, %w) %y = transpose(%p) {perm = [1, 0]}",
        true,
    ),
    ("odd columns", "%x: T[65, 64], %w: T[73, 64]", "%t = transpose(%w) {perm = [1, 0]} %y = matmul(%x, %t)", true),
    ("rows too close", "%x: T[70, 100], %w: T[100, 72]", "%y = matmul(%x, %w)", true),
    ("all rows too close", "%x: T[70, 100], %w: T[100, 73]", "%y = matmul(%x, %w)", false),
    ("few terms", "%x: T[128, 32], %w: T[32, 128]", "%y = matmul(%x, %w)", false),
    ("products", "%x: T[2, 70, 64], %w: T[2, 64, 72]", "%y = matmul(%x, %w)", true),
    (
        "products of columns",
        "%x: T[3, 64, 72], %w: T[3, 80, 64], %b: T[3, 72, 80]",
        "%t = transpose(%x) {perm = [0, 2, 1]} %v = transpose(%w) {perm = [0, 2, 1]} %p = matmul(%t, %v) %y = add(%p, %b)",
        true,
    ),
    (
        "heads side by side",
        "%x: T[2, 65, 3, 64], %w: T[2, 80, 3, 64]",
        "%t = transpose(%x) {perm = [0, 2, 1, 3]} %v = transpose(%w) {perm = [0, 2, 3, 1]} %y = matmul(%t, %v)",
        true,
    ),
    ("one matrix for two", "%x: T[2, 3, 70, 64], %w: T[3, 64, 64]", "%y = matmul(%x, %w)", true),
    (
        "heads that share keys",
        "%q: T[2, 65, 3, 2, 64], %k: T[2, 70, 3, 64]",
        "%x = transpose(%q) {perm = [0, 2, 3, 1, 4]} %t = transpose(%k) {perm = [0, 2, 3, 1]} \
         %i = const i64[5] [2, 3, 1, 64, 70] %w = reshape(%t, %i) %y = matmul(%x, %w)",
        true,
    ),
    ("terms of other batches", "%x: T[2, 70, 72], %w: T[2, 72, 64]", "%y = matmul(%x, %w)", true),
    ("a matrix for each batch", "%x: T[2, 3, 25, 72], %w: T[2, 1, 72, 80]", "%y = matmul(%x, %w)", true),
    (
        "heads side by side of many terms",
        "%x: T[2, 65, 3, 72], %w: T[2, 80, 3, 72]",
        "%t = transpose(%x) {perm = [0, 2, 1, 3]} %v = transpose(%w) {perm = [0, 2, 3, 1]} %y = matmul(%t, %v)",
        true,
    ),
    (
        "batches at odd distances",
        "%x: T[3, 65, 70], %w: T[3, 80, 70]",
        "%v = transpose(%w) {perm = [0, 2, 1]} %y = matmul(%x, %v)",
        false,
    ),
    ("short rows of a batch", "%x: T[2, 40, 64], %w: T[2, 64, 64]", "%y = matmul(%x, %w)", false),
    (
        "normalised layer",
        "%x: T[72, 64], %w: T[64, 80], %s: T[80], %b: T[80], %m: T[80], %v: T[80]",
        "%p = matmul(%x, %w) %h = abs(%v) %o = const T[] [1.0] %a = add(%h, %o) %y = batch_norm(%p, %s, %b, %m, %a)",
        true,
    ),
];

/// The same of f32 that may be rounded to tf32.
const ROUNDED_PROGRAMS: [(&str, &str, &str, bool); 6] = [
    (
        "layer of f32",
        "%x: T[72, 104], %w: T[200, 104], %b: T[200]",
        "%t = transpose(%w) {perm = [1, 0]} %p = matmul(%x, %t) %s = add(%p, %b) %y = gelu(%s)",
        true,
    ),
    (
        "layer of many rows",
        "%x: T[2, 70, 64], %w: T[68, 64]",
        "%t = transpose(%w) {perm = [1, 0]} %y = matmul(%x, %t)",
        true,
    ),
    (
        "heads of f32",
        "%x: T[2, 65, 3, 68], %w: T[2, 70, 3, 68]",
        "%t = transpose(%x) {perm = [0, 2, 1, 3]} %v = transpose(%w) {perm = [0, 2, 3, 1]} %y = matmul(%t, %v)",
        true,
    ),
    ("columns of f32 side by side", "%x: T[70, 72], %w: T[72, 200]", "%y = matmul(%x, %w)", true),
    (
        "rows of f32 side by side",
        "%x: T[64, 72], %w: T[72, 64]",
        "%t = transpose(%x) {perm = [1, 0]} %v = transpose(%w) {perm = [1, 0]} %y = matmul(%t, %v)",
        true,
    ),
    (
        "short rows of f32",
        "%x: T[70, 66], %w: T[72, 66]",
        "%t = transpose(%w) {perm = [1, 0]} %y = matmul(%x, %t)",
        false,
    ),
];

/// The products, and whether groups of warps multiply: of bf16 and f16 in turn, and of f32 that may be rounded.
pub fn cases(registry: &Registry) -> Vec<(Case, bool)> {
    let case = |(i, (name, operands, body, grouped)): (usize, &(&str, &str, &str, bool))| {
        let (dtype, tf32) = match i {
            i if i >= PROGRAMS.len() => (DType::F32, true),
            i if i % 2 == 0 => (DType::BF16, false),
            _ => (DType::F16, false),
        };
        let graph = graph(registry, operands, body, dtype);
        (Case { name: format!("group product: {name}"), inputs: inputs(&graph, i as u64), graph, tf32 }, *grouped)
    };
    PROGRAMS.iter().chain(&ROUNDED_PROGRAMS).enumerate().map(case).collect()
}
