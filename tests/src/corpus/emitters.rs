//! A program for every way in which work is divided among the threads of a GPU, on awkward shapes.

use tensorc::DType;
use tensorc::ir::op::Registry;

use super::{Case, graph, inputs};

/// Name, inputs and body.
type Program = (&'static str, &'static str, &'static str);

/// Inputs and body of a graph: `T` stands for an element type.
const PROGRAMS: [Program; 30] = [
    ("map", "%x: T[3, 5, 7], %b: T[7]", "%s = add(%x, %b) %y = mul(%s, %x)"),
    ("wide map", "%x: T[6, 64], %b: T[64]", "%s = sub(%x, %b) %y = abs(%s)"),
    ("transpose", "%x: T[5, 9, 12]", "%y = transpose(%x) {perm = [2, 0, 1]}"),
    (
        "transpose and more",
        "%x: T[70, 33], %z: T[33, 70], %b: T[70]",
        "%t = transpose(%x) {perm = [1, 0]} %s = add(%t, %z) %y = mul(%s, %b)",
    ),
    ("transposed batch", "%x: T[3, 40, 2, 32]", "%y = transpose(%x) {perm = [0, 2, 3, 1]}"),
    ("one element", "%x: T[1]", "%y = add(%x, %x)"),
    ("row sum", "%x: T[9, 100]", "%a = const i64[1] [1] %y = reduce_sum(%x, %a)"),
    ("long row", "%x: T[2, 3001]", "%a = const i64[1] [1] %y = reduce_max(%x, %a)"),
    ("everything", "%x: T[7, 11, 13]", "%y = reduce_sum(%x)"),
    ("column sum", "%x: T[130, 37]", "%a = const i64[1] [0] %y = reduce_sum(%x, %a)"),
    ("short columns", "%x: T[5, 6, 7]", "%a = const i64[1] [1] %y = reduce_min(%x, %a)"),
    ("product", "%x: T[37, 29], %w: T[29, 45]", "%y = matmul(%x, %w)"),
    ("products", "%x: T[3, 17, 40], %w: T[3, 40, 20]", "%y = matmul(%x, %w)"),
    ("vector product", "%x: T[1, 65], %w: T[65, 70]", "%y = matmul(%x, %w)"),
    ("concat", "%x: T[3, 4], %z: T[3, 5]", "%n = neg(%z) %y = concat(%x, %n) {axis = 1}"),
    ("argmax", "%x: T[6, 50]", "%y = argmax(%x) {axis = 1}"),
    ("gather elements", "%x: T[5, 3]", "%i = const i64[2, 3] [4, -1, 0, 2, 2, 1] %y = gather_elements(%x, %i)"),
    ("gather tuples", "%x: T[5, 3, 4]", "%i = const i64[2, 2] [4, -1, 0, 2] %y = gather_nd(%x, %i)"),
    (
        "scatter elements",
        "%x: T[50, 3], %u: T[2, 2]",
        "%i = const i64[2, 2] [4, -1, 4, 2] %y = scatter_elements(%x, %i, %u) {reduction = \"add\"}",
    ),
    (
        "scatter along rows",
        "%x: T[3, 40], %u: T[3, 5]",
        "%i = const i64[3, 5] [1, 2, 3, 2, 1, 39, 0, 39, 7, 7, 8, 9, 8, 9, 10] \
         %y = scatter_elements(%x, %i, %u) {axis = 1}",
    ),
    (
        "scatter slices",
        "%x: T[9, 20], %u: T[4, 20]",
        "%i = const i64[4, 1] [3, 8, 3, 0] %y = scatter_nd(%x, %i, %u) {reduction = \"max\"}",
    ),
    (
        "scatter sum",
        "%u: T[6, 33]",
        "%i = const i64[6] [2, 0, 2, 4, 4, 4] %n = const i64[1] [7] %y = scatter_sum(%u, %i, %n)",
    ),
    (
        "scatter into a ring",
        "%x: T[2, 3, 8, 5], %u: T[2, 3, 2, 5]",
        "%i = const i64[2] [7, 3] %y = tensor_scatter(%x, %u, %i) {mode = \"circular\"}",
    ),
    ("choice", "%x: T[5, 9], %z: T[5, 9]", "%c = less(%x, %z) %y = where(%c, %x, %z)"),
    ("sorted rows", "%x: T[4, 33]", "%y = sort(%x) {axis = 1}"),
    ("running sum", "%x: T[3, 20]", "%a = const i64[] [1] %y = cumsum(%x, %a)"),
    ("reflection", "%x: T[4, 5]", "%p = const i64[4] [1, 0, 2, 3] %y = pad(%x, %p) {mode = \"reflect\"}"),
    (
        "conversions",
        "%x: T[6, 10]",
        "%i = cast(%x) {to = i32} %j = cast(%x) {to = u8} %k = cast(%j) {to = i32} %s = add(%i, %k) %y = cast(%s) {to = f32}",
    ),
    ("row product", "%x: T[6, 10]", "%a = const i64[1] [1] %y = reduce_prod(%x, %a)"),
    ("gather", "%x: T[10, 6]", "%i = const i64[4] [3, -1, 0, 9] %y = gather(%x, %i)"),
];

/// The same of floating-point numbers alone.
const FLOAT_PROGRAMS: [Program; 28] = [
    ("gelu", "%x: T[5, 33]", "%y = gelu(%x)"),
    (
        "functions",
        "%x: T[7, 11]",
        "%a = tanh(%x) %b = erf(%x) %c = exp(%x) %d = sin(%x) %e = add(%a, %b) %f = add(%c, %d) %y = mul(%e, %f)",
    ),
    (
        "powers",
        "%x: T[5, 9], %z: T[5, 9]",
        "%h = abs(%x) %l = log1p(%h) %p = pow(%h, %l) %f = floor(%z) %y = mul(%p, %f)",
    ),
    (
        "largest of windows",
        "%x: T[2, 3, 9, 8]",
        "%y = max_pool(%x) {kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]}",
    ),
    (
        "means of windows",
        "%x: T[2, 3, 9, 8]",
        "%y = average_pool(%x) {kernel_shape = [3, 2], strides = [2, 2], pads = [1, 1, 1, 1], ceil_mode = true}",
    ),
    ("softmax", "%x: T[4, 77]", "%y = softmax(%x)"),
    ("long softmax", "%x: T[2, 2050]", "%y = softmax(%x)"),
    ("softmax of columns", "%x: T[30, 9]", "%y = softmax(%x) {axis = 0}"),
    ("norm", "%x: T[6, 96], %s: T[96], %b: T[96]", "%y = layer_norm(%x, %s, %b)"),
    ("aligned product", "%x: T[70, 136], %w: T[136, 72]", "%y = matmul(%x, %w)"),
    (
        "layer",
        "%x: T[40, 64], %w: T[80, 64], %b: T[80]",
        "%t = transpose(%w) {perm = [1, 0]} %p = matmul(%x, %t) %s = add(%p, %b) %y = gelu(%s)",
    ),
    (
        "heads",
        "%x: T[2, 4, 24, 32], %z: T[2, 4, 40, 32]",
        "%t = transpose(%z) {perm = [0, 1, 3, 2]} %y = matmul(%x, %t)",
    ),
    ("product and softmax", "%x: T[20, 16], %w: T[16, 40]", "%p = matmul(%x, %w) %y = softmax(%p)"),
    (
        "attention",
        "%q: T[2, 3, 37, 24], %k: T[2, 3, 70, 24], %v: T[2, 3, 70, 20]",
        "%t = transpose(%k) {perm = [0, 1, 3, 2]} %s = matmul(%q, %t) %c = const T[] [0.25] %d = mul(%s, %c) \
         %p = softmax(%d) %y = matmul(%p, %v)",
    ),
    (
        "attention with a bias",
        "%q: T[2, 70, 64], %k: T[2, 64, 130], %v: T[2, 130, 64], %m: T[70, 130], %b: T[2, 1, 130]",
        "%s = matmul(%q, %k) %c = const T[] [0.125] %f = mul(%s, %c) %d = add(%f, %m) %e = add(%d, %b) \
         %p = softmax(%e) %y = matmul(%p, %v)",
    ),
    (
        "attention of heads side by side",
        "%q: T[2, 20, 64], %k: T[2, 20, 64], %v: T[2, 20, 64]",
        "%h = const i64[4] [2, 20, 4, 16] %i = reshape(%q, %h) %j = reshape(%k, %h) %l = reshape(%v, %h) \
         %m = transpose(%i) {perm = [0, 2, 1, 3]} %n = transpose(%j) {perm = [0, 2, 3, 1]} \
         %o = transpose(%l) {perm = [0, 2, 1, 3]} %s = matmul(%m, %n) %c = const T[] [0.25] %d = mul(%s, %c) \
         %p = softmax(%d) %r = matmul(%p, %o) %u = transpose(%r) {perm = [0, 2, 1, 3]} %w = const i64[3] [2, 20, 64] %y = reshape(%u, %w)",
    ),
    (
        "attention of wide heads",
        "%q: T[1, 5, 128], %k: T[1, 128, 33], %v: T[1, 33, 128]",
        "%s = matmul(%q, %k) %c = const T[] [0.0625] %d = mul(%s, %c) %p = softmax(%d) %y = matmul(%p, %v)",
    ),
    (
        "attention of one query",
        "%q: T[6, 1, 40], %k: T[6, 40, 100], %v: T[6, 100, 40]",
        "%s = matmul(%q, %k) %c = const T[] [0.125] %d = mul(%s, %c) %p = softmax(%d) %y = matmul(%p, %v)",
    ),
    (
        "attention of very wide heads",
        "%q: T[1, 70, 256], %k: T[1, 256, 75], %v: T[1, 75, 256]",
        "%s = matmul(%q, %k) %c = const T[] [0.0625] %d = mul(%s, %c) %p = softmax(%d) %y = matmul(%p, %v)",
    ),
    (
        "attention of heads of different widths",
        "%q: T[2, 20, 130], %k: T[2, 130, 40], %v: T[2, 40, 150]",
        "%s = matmul(%q, %k) %c = const T[] [0.0625] %d = mul(%s, %c) %p = softmax(%d) %y = matmul(%p, %v)",
    ),
    (
        "attention of one query and many keys",
        "%q: T[2, 3, 1, 40], %k: T[2, 3, 40, 600], %v: T[2, 3, 600, 24]",
        "%s = matmul(%q, %k) %c = const T[] [0.125] %d = mul(%s, %c) %p = softmax(%d) %y = matmul(%p, %v)",
    ),
    (
        "attention with parts of the keys left out",
        "%q: T[2, 17, 64], %k: T[2, 64, 1100], %v: T[2, 1100, 64]",
        "%s = matmul(%q, %k) %a = const i64[] [0] %b = const i64[] [1100] %c = const i64[] [1] %r = range(%a, %b, %c) \
         %f = const i64[] [700] %l = less(%r, %f) %i = const T[] [-inf] %w = const T[] [0.125] %g = mul(%s, %w) %d = where(%l, %i, %g) %p = softmax(%d) \
         %y = matmul(%p, %v)",
    ),
    (
        "attention by exponentials of many keys",
        "%q: T[2, 5, 16], %k: T[2, 16, 700], %v: T[2, 700, 20]",
        "%s = matmul(%q, %k) %c = const T[] [0.0625] %d = mul(%s, %c) %e = exp(%d) %a = const i64[1] [2] \
         %z = reduce_sum(%e, %a) {keepdims = true} %p = div(%e, %z) %y = matmul(%p, %v)",
    ),
    ("product of columns", "%x: T[40, 72], %w: T[40, 136]", "%t = transpose(%x) {perm = [1, 0]} %y = matmul(%t, %w)"),
    ("awkward product", "%x: T[2, 33, 41], %w: T[2, 41, 27]", "%y = matmul(%x, %w)"),
    (
        "deep convolution",
        "%x: T[2, 6, 9, 10], %w: T[24, 6, 3, 3], %b: T[24]",
        "%c = conv(%x, %w, %b) {pads = [1, 1, 1, 1]} %y = relu(%c)",
    ),
    (
        "convolution",
        "%x: T[2, 5, 11, 9], %w: T[7, 5, 3, 3], %b: T[7]",
        "%y = conv(%x, %w, %b) {pads = [1, 1, 1, 1], strides = [2, 1]}",
    ),
    (
        "convolution and normalisation",
        "%x: T[2, 5, 11, 9], %w: T[7, 5, 3, 3], %s: T[7], %b: T[7], %m: T[7], %v: T[7]",
        "%c = conv(%x, %w) {pads = [1, 1, 1, 1]} %h = abs(%v) %o = const T[] [1.0] %a = add(%h, %o) \
         %n = batch_norm(%c, %s, %b, %m, %a) %y = relu(%n)",
    ),
];

/// Of f64, whose functions are expanded on a GPU.
const WIDE_PROGRAMS: [Program; 9] = [
    ("exponentials", "%x: T[7, 11]", "%a = exp(%x) %b = softplus(%a) %c = tanh(%b) %d = sigmoid(%x) %y = mul(%c, %d)"),
    ("logarithms", "%x: T[7, 11]", "%s = abs(%x) %l = log(%s) %m = log1p(%s) %y = sub(%l, %m)"),
    ("angles", "%x: T[7, 11]", "%s = sin(%x) %c = cos(%x) %t = atan(%x) %p = mul(%s, %c) %y = add(%p, %t)"),
    ("hyperbolic", "%x: T[7, 11]", "%s = sinh(%x) %c = cosh(%x) %a = asinh(%s) %y = div(%a, %c)"),
    ("normal distribution", "%x: T[7, 11]", "%e = erf(%x) %g = gelu(%x) %y = add(%e, %g)"),
    ("powers", "%x: T[7, 11], %e: T[7, 11]", "%a = abs(%x) %y = pow(%a, %e)"),
    ("wide softmax", "%x: T[4, 77]", "%y = softmax(%x)"),
    (
        "remainders",
        "%x: T[7, 11], %z: T[7, 11]",
        "%a = abs(%z) %c = const T[] [0.03] %d = add(%a, %c) %y = mod(%x, %d) {fmod = true}",
    ),
    ("to half precision", "%x: T[7, 11]", "%h = cast(%x) {to = f16} %y = abs(%h)"),
];

/// Every program for each of its element types; f32 programs with products also in tf32.
pub fn cases(registry: &Registry) -> Vec<Case> {
    let floats = [DType::F32, DType::F16, DType::BF16];
    let all = [&floats[..], &[DType::F64, DType::I32, DType::I64, DType::I8]].concat();
    let every = PROGRAMS.iter().flat_map(|p| all.iter().map(move |d| (p, *d)));
    let float = FLOAT_PROGRAMS.iter().flat_map(|p| floats.iter().map(move |d| (p, *d)));
    let wide = WIDE_PROGRAMS.iter().map(|p| (p, DType::F64, false));
    let product = |(_, _, body): &&Program| body.contains("matmul") || body.contains("conv");
    let rounded = FLOAT_PROGRAMS.iter().filter(product).map(|p| (p, DType::F32, true));
    let programs = every.chain(float).map(|(p, d)| (p, d, false)).chain(rounded).chain(wide);
    let case = |(seed, ((name, operands, body), dtype, tf32)): (usize, (&Program, DType, bool))| {
        let graph = graph(registry, operands, body, dtype);
        let name = format!("{name} of {}", if tf32 { "tf32" } else { dtype.name() });
        Case { name, inputs: inputs(&graph, seed as u64), graph, tf32 }
    };
    programs.enumerate().map(case).collect()
}
