//! Lines of positions sorted by merging, for a thread of a GPU each: no counters beside two strips of positions.

use crate::prelude::*;

/// Whether `a` comes before `b`: larger (or smaller) first, NaN before everything in a descending
/// and after everything in an ascending order.
fn before<'k>(a: KernelValue<'k>, b: KernelValue<'k>, largest: bool) -> KernelValue<'k> {
    let wide = compute_type(a.dtype());
    let wide = if wide == DType::Bool { DType::U8 } else { wide };
    let (a, b) = (a.cast(wide), b.cast(wide));
    let strict = a.cmp(if largest { CmpOp::Gt } else { CmpOp::Lt }, b);
    if !wide.is_float() {
        return strict;
    }
    let (a_nan, b_nan) = (a.ne(a), b.ne(b));
    let (first, second) = if largest { (a_nan, b_nan) } else { (b_nan, a_nan) };
    let other = !second;
    strict | (first & other)
}

/// The elements of a line, by i64 positions.
pub type LineElements<'a, 'k> = &'a dyn Fn(KernelValue<'k>) -> KernelValue<'k>;

/// How lines of positions are merged.
pub struct Merge<'a, 'k> {
    pub k: &'k KernelScope,
    /// Elements of a line.
    pub n: Extent,
    /// Holds two strips of `n` positions for each line.
    pub buf: KernelTensor<'k>,
    /// The next position of either of two runs.
    pub heads: KernelTensor<'k>,
    pub element: LineElements<'a, 'k>,
    pub largest: bool,
}

/// Doublings of a run of one element that no line is longer than.
const MAX_DOUBLINGS: u64 = 40;

impl Merge<'_, '_> {
    /// Merges the runs `run..mid` and `mid..stop` of the strip that begins at `from`; `to` is where positions of the other strip lie.
    fn runs(&self, [run, mid, stop]: [&Index; 3], from: &Index, to: &dyn Fn(&Index) -> Index) {
        let (k, buf, heads) = (self.k, self.buf, self.heads);
        let (first, second) = (Index::constant(0), Index::constant(1));
        let (middle, end) = (k.position(mid), k.position(stop));
        heads.set(&first, run);
        heads.set(&second, middle);
        k.range("o", (run, stop), |o| {
            let (i, j) = (heads.get(&first), heads.get(&second));
            let at = |head: KernelValue<'_>| from.add(&bounded(&head.index(), self.n - 1));
            let (left, right) = (buf.get(&at(i)), buf.get(&at(j)));
            let (a, b) = ((self.element)(left), (self.element)(right));
            let right_first = before(b, a, self.largest);
            let (left_done, right_left) = (i.ge(middle), j.lt(end));
            let take_right = (left_done | right_first) & right_left;
            buf.set(&to(o), take_right.select(right, left));
            let (next_i, next_j) = (i + 1, j + 1);
            let (i, j) = (take_right.select(i, next_i), take_right.select(next_j, j));
            heads.set(&first, i);
            heads.set(&second, j);
        });
    }

    /// Sorts a permutation by merging bottom-up: `width` doubles until it covers the line. Two strips begin at `base`, of which the
    /// first holds the order on entry. Returns where the strip begins that holds it on exit.
    ///
    /// The merge is stable, so equal elements keep ascending positions.
    pub fn sort(&self, base: &Index) -> Index {
        let Some(n) = self.n.known() else { return self.sort_any(base) };
        let (k, line_end) = (self.k, Index::constant(n));
        let (mut width, mut from, mut to) = (1, base.clone(), base.offset(n));
        while width < n {
            k.strided("run", (&Index::default(), &line_end, 2 * width), |run| {
                let end = |by: i64| run.offset(by * width).minimum(&line_end, &unbounded);
                self.runs([run, &end(1), &end(2)], &from, &|o| to.add(o));
            });
            std::mem::swap(&mut from, &mut to);
            width *= 2;
        }
        if from != *base {
            k.each("c", n, |i| self.buf.set(&base.add(i), self.buf.get(&from.add(i))));
        }
        base.clone()
    }

    /// As [`Merge::sort`], of lines of any length.
    fn sort_any(&self, base: &Index) -> Index {
        let (k, n) = (self.k, self.n);
        let width = k.cell("width", DType::I64).holding(1);
        let strip = k.cell("strip", DType::I64).holding(0);
        let begins = |strip: KernelValue<'_>| base.add(&bounded(&strip.index(), n));
        k.each("pass", MAX_DOUBLINGS, |_| {
            let half = width.get();
            k.when(half.lt(n), || {
                let (whole, here) = (half + half, strip.get());
                let (pairs, there) = ((whole + (n - 1)) / whole, -here + n);
                let (from, to) = (begins(here), begins(there));
                k.range("run", (&Index::default(), &pairs.index()), |pair| {
                    let run = k.position(pair) * whole;
                    let (mid, stop) = ((run + half).min(n), (run + whole).min(n));
                    let ends = [run, mid, stop].map(KernelValue::index);
                    self.runs(ends.each_ref(), &from, &|o| to.add(&bounded(o, n - 1)));
                });
                width.set(whole);
                strip.set(there);
            });
        });
        begins(strip.get())
    }
}
