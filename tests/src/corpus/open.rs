//! Programs with open dimensions, for every way in which work is divided among the threads of a GPU.

use tensorc::DType;
use tensorc::ir::graph::Graph;
use tensorc::ir::op::Registry;

use super::graph;

/// A graph with open dimensions, and extents of these in the order in which inputs have them.
pub struct OpenProgram {
    pub name: String,
    pub graph: Graph,
    pub extents: &'static [&'static [u64]],
    /// How many of the extents something is compiled for.
    pub compiled: usize,
}

/// The first is compiled for; further ones of two and more elements find that, unless the order of a sum depends on a length. Axes of
/// one element have graphs of their own.
const LENGTHS: &[&[u64]] =
    &[&[33], &[2], &[15], &[16], &[17], &[31], &[32], &[127], &[128], &[129], &[251], &[64], &[1], &[0]];
const PAIRS: &[&[u64]] = &[
    &[33, 65],
    &[2, 127],
    &[15, 16],
    &[16, 17],
    &[17, 31],
    &[31, 128],
    &[32, 33],
    &[127, 2],
    &[64, 129],
    &[7, 64],
    &[1, 37],
    &[37, 1],
    &[0, 5],
    &[5, 0],
];
const ROWS: &[&[u64]] = &[
    &[3, 65],
    &[2, 32],
    &[15, 33],
    &[5, 127],
    &[16, 128],
    &[3, 129],
    &[2, 1022],
    &[2, 1025],
    &[1, 40],
    &[2, 2600],
    &[3, 4098],
    &[2, 2053],
];
const COLUMNS: &[&[u64]] = &[&[65, 33], &[127, 2], &[128, 31], &[129, 32], &[2, 64], &[15, 17], &[37, 1], &[1, 37]];
const TRIPLES: &[&[u64]] = &[
    &[33, 17, 65],
    &[2, 31, 15],
    &[16, 16, 16],
    &[17, 128, 32],
    &[31, 127, 33],
    &[129, 32, 127],
    &[15, 2, 64],
    &[1, 33, 40],
    &[40, 33, 1],
];
const IMAGES: &[&[u64]] = &[&[2, 17, 33], &[3, 15, 16], &[2, 32, 31], &[5, 7, 13]];

/// Name, inputs, body, extents and how many of these something is compiled for.
type Program = (&'static str, &'static str, &'static str, &'static [&'static [u64]], usize);

const PROGRAMS: [Program; 14] = [
    ("map", "%x: T[?n, ?m], %b: T[?m]", "%s = add(%x, %b) %y = mul(%s, %x)", PAIRS, 3),
    ("map of rows", "%x: T[?n, 24], %b: T[24]", "%s = sub(%x, %b) %y = abs(%s)", LENGTHS, 2),
    ("transpose", "%x: T[?n, ?m]", "%t = transpose(%x) {perm = [1, 0]} %y = neg(%t)", PAIRS, 3),
    ("softmax", "%x: T[?n, ?m]", "%y = softmax(%x) {axis = 1}", ROWS, 3),
    ("softmax of rows", "%x: T[?n, 40]", "%y = softmax(%x) {axis = 1}", LENGTHS, 2),
    ("largest of all", "%x: T[?n, ?m]", "%y = reduce_max(%x)", COLUMNS, 3),
    ("column sum", "%x: T[?n, ?m]", "%a = const i64[1] [0] %y = reduce_sum(%x, %a)", COLUMNS, 3),
    ("product", "%x: T[?n, ?k], %w: T[?k, ?m]", "%p = matmul(%x, %w) %y = tanh(%p)", TRIPLES, 3),
    ("products", "%x: T[?b, ?n, 24], %w: T[?b, 24, 40]", "%y = matmul(%x, %w)", PAIRS, 3),
    (
        "attention",
        "%q: T[?b, 2, ?l, 24], %k: T[?b, 2, ?l, 24], %v: T[?b, 2, ?l, 24]",
        "%c = const T[] [0.0625] %d = mul(%q, %c) %t = transpose(%k) {perm = [0, 1, 3, 2]} %s = matmul(%d, %t) %p = softmax(%s) %y = matmul(%p, %v)",
        &[&[33, 65], &[40, 15], &[34, 64], &[36, 2]],
        1,
    ),
    ("joined", "%x: T[?n, ?m], %z: T[?n, 3]", "%s = neg(%z) %y = concat(%s, %x, %s) {axis = 1}", PAIRS, 4),
    ("joined behind", "%x: T[?n, 3], %z: T[?m, 3]", "%s = neg(%z) %y = concat(%s, %x, %s) {axis = 0}", PAIRS, 5),
    (
        "convolution",
        "%x: T[?n, 3, ?h, ?w], %f: T[10, 3, 3, 3]",
        "%c = conv(%x, %f) {pads = [1, 1, 1, 1], strides = [2, 2]} %y = relu(%c)",
        IMAGES,
        1,
    ),
    ("running sum", "%x: T[?n, ?m]", "%a = const i64[] [1] %y = cumsum(%x, %a)", PAIRS, 3),
];

/// Those that are also run with elements of 16 bits: wider vectors, and matrix units.
const NARROW: [&str; 4] = ["map of rows", "softmax of rows", "product", "attention"];

/// All programs.
pub fn programs(registry: &Registry) -> Vec<OpenProgram> {
    let program = |dtype: DType, (name, inputs, body, extents, compiled): Program| OpenProgram {
        name: format!("{name} of {dtype}"),
        graph: graph(registry, inputs, body, dtype),
        extents,
        compiled,
    };
    let narrow = PROGRAMS.into_iter().filter(|(name, ..)| NARROW.contains(name));
    let narrow = narrow.map(|one| program(DType::F16, one));
    PROGRAMS.into_iter().map(|one| program(DType::F32, one)).chain(narrow).collect()
}
