//! Products and convolutions that vendor libraries (cuBLASLt, cuDNN) compute, and some that they do not.

/// Inputs and body of a graph, `T` for an element type; products and convolutions by libraries.
pub const PROGRAMS: [(&str, &str, &str, [usize; 2]); 19] = [
    ("product", "%x: T[37, 29], %w: T[29, 45]", "%y = matmul(%x, %w)", [1, 0]),
    (
        "layer",
        "%x: T[40, 64], %w: T[80, 64], %b: T[80]",
        "%t = transpose(%w) {perm = [1, 0]} %p = matmul(%x, %t) %s = add(%p, %b) %y = gelu(%s)",
        [1, 0],
    ),
    ("bias", "%x: T[2, 9, 40], %w: T[40, 24], %b: T[24]", "%p = matmul(%x, %w) %y = add(%b, %p)", [1, 0]),
    ("bias of rows", "%x: T[24, 40], %w: T[40, 24], %b: T[24, 1]", "%p = matmul(%x, %w) %y = add(%p, %b)", [1, 0]),
    (
        "columns",
        "%x: T[72, 36], %w: T[20, 72]",
        "%t = transpose(%x) {perm = [1, 0]} %v = transpose(%w) {perm = [1, 0]} %y = matmul(%t, %v)",
        [1, 0],
    ),
    (
        "heads",
        "%x: T[2, 4, 24, 32], %z: T[2, 4, 40, 32]",
        "%t = transpose(%z) {perm = [0, 1, 3, 2]} %y = matmul(%x, %t)",
        [1, 0],
    ),
    (
        "heads side by side",
        "%x: T[2, 20, 4, 16], %z: T[2, 4, 16, 24]",
        "%t = transpose(%x) {perm = [0, 2, 1, 3]} %y = matmul(%t, %z)",
        [1, 0],
    ),
    ("residual", "%x: T[33, 48], %w: T[48, 17], %r: T[33, 17]", "%p = matmul(%x, %w) %y = add(%p, %r)", [1, 0]),
    (
        "transposed result",
        "%x: T[34, 40], %w: T[40, 24]",
        "%p = matmul(%x, %w) %y = transpose(%p) {perm = [1, 0]}",
        [1, 0],
    ),
    ("one row", "%x: T[1, 65], %w: T[65, 70]", "%y = matmul(%x, %w)", [1, 0]),
    ("one column", "%x: T[33, 40], %w: T[40, 1]", "%y = matmul(%x, %w)", [1, 0]),
    ("product and softmax", "%x: T[20, 16], %w: T[16, 40]", "%p = matmul(%x, %w) %y = softmax(%p)", [1, 0]),
    (
        "side by side",
        "%x: T[20, 16], %w: T[16, 40], %v: T[16, 24]",
        "%p = matmul(%x, %w) %q = matmul(%x, %v) %y = concat(%p, %q) {axis = 1}",
        [2, 0],
    ),
    (
        "convolution",
        "%x: T[2, 6, 9, 10], %w: T[24, 6, 3, 3], %b: T[24]",
        "%c = conv(%x, %w, %b) {pads = [1, 1, 1, 1]} %y = relu(%c)",
        [0, 1],
    ),
    (
        "grouped convolution",
        "%x: T[2, 6, 11, 9], %w: T[8, 3, 3, 2]",
        "%y = conv(%x, %w) {pads = [2, 1, 2, 1], strides = [2, 1], dilations = [2, 2], group = 2}",
        [0, 1],
    ),
    ("padded behind", "%x: T[1, 3, 8, 8], %w: T[4, 3, 3, 3]", "%y = conv(%x, %w) {pads = [0, 0, 1, 1]}", [0, 0]),
    ("along a line", "%x: T[2, 5, 30], %w: T[7, 5, 3]", "%y = conv(%x, %w) {pads = [1, 1]}", [0, 1]),
    ("of one pixel", "%x: T[2, 6, 5, 7], %w: T[8, 6, 1, 1]", "%y = conv(%x, %w)", [0, 1]),
    (
        "attention",
        "%q: T[2, 3, 37, 24], %k: T[2, 3, 24, 70], %v: T[2, 3, 70, 20]",
        "%s = matmul(%q, %k) %p = softmax(%s) %y = matmul(%p, %v)",
        [0, 0],
    ),
];
