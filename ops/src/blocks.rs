//! Loops of kernels for processors: blocks of neighbours as iterations of the outermost loop, runs of elements as vectors.

use crate::prelude::*;

/// Lanes of vector loops over elements that are only copied: a cache line of f32.
pub const COPY_LANES: i64 = 16;

fn free(_: u32) -> (i64, i64) {
    (0, i64::MAX / 8)
}

/// The outermost loop over `outer` times `n` things, up to `width` neighbours at a time: `body` gets the outer coordinate, the
/// first of a block, and how many it has. A block that is not whole has a body of its own where `n` is a number, and is done one by
/// one otherwise.
pub fn in_blocks(k: &KernelScope, (outer, n): (Extent, Extent), width: i64, body: impl Fn(&Index, &Index, i64)) {
    let rest = n.known().map(|n| n % width);
    if let Some(n) = n.known().filter(|n| (1..width).contains(n)) {
        return k.parallel_each("p", outer, |o| body(o, &Index::default(), n));
    }
    k.parallel(&[outer, n.div_ceil(width)], |at| {
        let (o, block) = (k.bound("outer", &at[0]), k.bound("block", &at[1]));
        let first = block.scale(width);
        if rest == Some(0) {
            return body(&o, &first, width);
        }
        let whole = k.in_range(&block, 0, n.div_floor(width));
        let cut = !whole;
        k.when(whole, || body(&o, &first, width));
        k.when(cut, || match rest {
            Some(rest) => body(&o, &Index::constant(n - rest), rest),
            None => k.range("c", (&first, &Index::constant(n)), |c| body(&o, c, 1)),
        });
    });
}

/// Runs `body` for the numbers `first..last`, in vectors of `lanes`, or of fewer for few numbers, as far as they fill any.
pub fn in_vectors(k: &KernelScope, (first, last): (&Index, &Index), lanes: i64, body: impl Fn(&Index)) {
    let lanes = match last.sub(first).as_constant() {
        Some(n) if n < lanes => n / 4 * 4,
        _ => lanes,
    };
    let mut tail = first.clone();
    if lanes > 1 {
        let whole = first.add(&last.sub(first).floor_div(lanes, &free).scale(lanes));
        k.strided("c", (first, &whole, lanes), |c| k.lanes("l", lanes as u64, |l| body(&c.add(l))));
        tail = whole;
    }
    k.range("c", (&tail, last), body);
}

/// Runs `body` for the numbers `0..n`, some of them written out one behind the other: for bodies so short that a loop would take
/// as long as they do.
pub fn in_short_steps(k: &KernelScope, n: i64, body: impl Fn(&Index)) {
    const STEPS: i64 = 4;
    let (zero, whole) = (Index::default(), Index::constant(n / STEPS * STEPS));
    if n >= STEPS {
        k.strided("i", (&zero, &whole, STEPS), |i| k.unrolled("s", STEPS, |s| body(&i.add(s))));
    }
    k.range("i", (&whole, &Index::constant(n)), body);
}

/// Copies a run of `len` elements between row-major offsets of two tensors of one type.
pub fn copy_run<'k>(k: &'k KernelScope, [to, from]: [(KernelTensor<'k>, &Index); 2], len: Extent) {
    let copy = |i: &Index| to.0.set(&to.1.add(i), from.0.get(&from.1.add(i)));
    match len.known() {
        Some(1) => copy(&Index::default()),
        _ => in_vectors(k, (&Index::default(), &Index::constant(len)), COPY_LANES, copy),
    }
}
