//! The first elements of a line in order, on a processor: few by insertion, many by a radix sort of what a histogram leaves.
//!
//! Elements are compared by keys, integers that ascend in the order that is wanted. So equal elements, zeros of both signs and all
//! NaN among them, have equal keys, and stay in ascending position.

use crate::blocks::in_vectors;
use crate::prelude::*;

/// The order of the elements of a line.
pub struct RankOrder<'a, 'k> {
    pub k: &'k KernelScope,
    pub dtype: DType,
    /// Elements of the line.
    pub n: Extent,
    /// How many of them are wanted.
    pub count: Extent,
    /// Descending, NaN first; otherwise ascending, NaN last.
    pub largest: bool,
    pub element: &'a dyn Fn(&Index) -> KernelValue<'k>,
}

/// The type of keys of elements of a type.
fn key_type(dtype: DType) -> DType {
    if compute_type(dtype).size() == 8 { DType::I64 } else { DType::I32 }
}

/// A signed integer that ascends as elements come in order.
fn key(x: &Ex, largest: bool) -> Ex {
    let (wide, key) = (compute_type(x.dtype()), key_type(x.dtype()));
    let int = |n: i64| x.builder().constant(Scalar::from_i64(key, n));
    let (bits, greatest) = (8 * key.size() as u32, int(i64::MAX >> (64 - 8 * key.size())));
    let ascending = if wide.is_float() {
        let x = x.cast(wide);
        let number = x.eq(&x.lit(0.0)).select(&x.lit(0.0), &x).bitcast(key);
        // Numbers below zero ascend with their magnitude.
        let flipped = &number ^ (number.shr(&int(i64::from(bits) - 1)) & &greatest);
        x.ne(&x).select(&greatest, &flipped)
    } else if matches!(x.dtype(), DType::U32 | DType::U64) {
        x.bitcast(key) ^ int(i64::MIN >> (64 - bits))
    } else {
        x.cast(key)
    };
    if largest { !ascending } else { ascending }
}

impl<'k> RankOrder<'_, 'k> {
    /// Bits of a key.
    fn key_bits(&self) -> u32 {
        8 * key_type(self.dtype).size() as u32
    }

    fn key(&self, x: KernelValue<'k>) -> KernelValue<'k> {
        let [key] = self.k.eval(&[x], |a| [key(&a[0], self.largest)]);
        key
    }

    /// An element in a type that comparisons are made in.
    fn compared(&self, at: &Index) -> KernelValue<'k> {
        let x = (self.element)(at);
        x.cast(if x.dtype() == DType::Bool { DType::U8 } else { compute_type(x.dtype()) })
    }

    /// The positions of the first `count` elements, by insertion into a sorted list. Most elements of a line only meet the last of
    /// it.
    pub fn insertion(&self, count: i64) -> KernelTensor<'k> {
        let k = self.k;
        let list = |name, dtype| k.memory(name, dtype, [count as u64], MemorySpace::Stack);
        let (ids, keys) = (list("ids", DType::I64), list("keys", key_type(self.dtype)));
        // Puts an element in a place of the list, from where it rises to that of its key.
        let insert = |place: &Index, id: &Index, key: KernelValue<'k>| {
            keys.set(place, key);
            ids.set(place, id);
            k.range("j", (&Index::default(), place), |back| {
                let at = place.sub(back);
                let next = at.offset(-1);
                let ahead = keys.get(&next);
                k.when(key.lt(ahead), || {
                    keys.set(&at, ahead);
                    ids.set(&at, ids.get(&next));
                    keys.set(&next, key);
                    ids.set(&next, id);
                });
            });
        };
        let filled = Index::constant(count).minimum(&Index::constant(self.n), &unbounded);
        k.range("i", (&Index::default(), &filled), |i| insert(i, i, self.key((self.element)(i))));
        let last = Index::constant(count - 1);
        let worst = |ids: KernelTensor<'k>| self.compared(&bounded(&ids.get(&last).index(), self.n - 1));
        let limit = worst(ids);
        let limit = k.register("limit", limit.dtype()).holding(limit);
        k.range("i", (&filled, &Index::constant(self.n)), |i| {
            let (x, limit_now) = (self.compared(i), limit.get());
            let out = if self.largest { x.le(limit_now) } else { x.ge(limit_now) };
            // A NaN gets past this test, too.
            k.when(!out, || {
                let key = self.key((self.element)(i));
                k.when(key.lt(keys.get(&last)), || {
                    insert(&last, i, key);
                    limit.set(worst(ids));
                });
            });
        });
        ids
    }
}

/// Positions and keys of a line in strips of `n` words, each word a key and a position of 32 bits, or the strips in pairs for words
/// of 64. Sorting goes from one strip to another and back.
pub struct Radix<'a, 'k> {
    pub order: RankOrder<'a, 'k>,
    pub buf: KernelTensor<'k>,
    /// Where the strips of the line begin.
    pub base: Index,
    pub strips: i64,
}

/// Values of a digit.
const RADIX: i64 = 256;

/// Values of the uppermost bits of a key that candidates are chosen by: of f32, sign, exponent and two bits of the fraction.
const BINS: i64 = 2048;

/// Elements of a line from which on candidates are chosen before they are sorted.
const MIN_CHOSEN_FROM: i64 = 2048;

impl<'k> Radix<'_, 'k> {
    /// Strips of working memory for a line of `n` elements.
    pub fn strips(dtype: DType, n: Extent) -> i64 {
        if key_type(dtype) == DType::I32 && n < Extent::of(1 << 32) { 2 } else { 4 }
    }

    fn is_wide(&self) -> bool {
        self.strips == 4
    }

    fn place(&self, strip: &Index, at: &Index) -> Index {
        self.base.add(strip).add(at)
    }

    /// The place of a position where it has a word of its own.
    fn id_place(&self, strip: &Index, at: &Index) -> Index {
        self.place(strip, at).offset(self.order.n * 2)
    }

    /// The position at a place of a strip.
    pub fn id(&self, strip: &Index, at: &Index) -> KernelValue<'k> {
        match self.is_wide() {
            true => self.buf.get(&self.id_place(strip, at)),
            false => self.buf.get(&self.place(strip, at)).binary(ScalarOp::And, i64::from(u32::MAX)),
        }
    }

    /// Writes keys, the lowest of which has bits 0, and positions to the first strip.
    fn fill(&self) {
        let k = self.order.k;
        let first = Index::default();
        k.each("i", self.order.n, |i| {
            let key = self.order.key((self.order.element)(i)).cast(DType::I64);
            if self.is_wide() {
                let lowest = if key_type((self.order.element)(i).dtype()) == DType::I64 { i64::MIN } else { 1 << 31 };
                self.buf.set(&self.place(&first, i), key.binary(ScalarOp::Xor, lowest));
                self.buf.set(&self.id_place(&first, i), i);
            } else {
                let key = key.binary(ScalarOp::Shl, 32).binary(ScalarOp::Xor, i64::MIN);
                self.buf.set(&self.place(&first, i), key.binary(ScalarOp::Or, i));
            }
        });
    }

    fn copy(&self, from: [&Index; 2], to: [&Index; 2], word: KernelValue<'k>) {
        self.buf.set(&self.place(to[0], to[1]), word);
        if self.is_wide() {
            self.buf.set(&self.id_place(to[0], to[1]), self.buf.get(&self.id_place(from[0], from[1])));
        }
    }

    /// Moves the elements that may be among those wanted to the front of the first strip, in order, and returns their number.
    fn candidates(&self, counts: KernelTensor<'k>) -> KernelValue<'k> {
        let (k, n, first) = (self.order.k, self.order.n, Index::default());
        let shift = if self.is_wide() && self.order.key_bits() == 32 { 32 - 11 } else { 64 - 11 };
        let bin = |word: KernelValue<'k>| word.binary(ScalarOp::Shr, shift).binary(ScalarOp::And, BINS - 1);
        self.clear(counts, BINS);
        k.each("i", n, |i| self.count(counts, &bin(self.buf.get(&self.place(&first, i))).index()));
        let (seen, last) = (k.register("seen", DType::I64).holding(0), k.register("last", DType::I64).holding(0));
        k.each("bin", BINS, |b| {
            let before = seen.get();
            last.update(before.lt(self.order.count), b);
            seen.set(before + counts.get_as(b, DType::I64));
        });
        let (last, kept) = (last.get(), k.register("kept", DType::I64).holding(0));
        k.each("i", n, |i| {
            let (word, to) = (self.buf.get(&self.place(&first, i)), kept.get());
            self.copy([&first, i], [&first, &to.index()], word);
            kept.set(to + bin(word).le(last).cast(DType::I64));
        });
        kept.get()
    }

    fn clear(&self, counts: KernelTensor<'k>, n: i64) {
        let zero = Scalar::zero(counts.dtype());
        in_vectors(self.order.k, (&Index::default(), &Index::constant(n)), 16, |i| counts.set(i, zero));
    }

    fn count(&self, counts: KernelTensor<'k>, at: &Index) {
        counts.set(at, counts.get(at) + 1);
    }

    /// Sorts by one digit after the other, the lowest first. Returns the strip that holds the result.
    pub fn sort(&self) -> Index {
        let (k, n) = (self.order.k, self.order.n);
        self.fill();
        let counts = k.memory("counts", DType::I32, [BINS as u64], MemorySpace::Stack);
        let chosen = n.example() >= MIN_CHOSEN_FROM && self.order.count.example() * 4 <= n.example();
        let m = if chosen { self.candidates(counts) } else { k.position(&Index::constant(n)) };
        let digits = i64::from(self.order.key_bits()) / 8;
        let lowest = if self.is_wide() { 0 } else { 32 };
        let digit = |word: KernelValue<'k>, d: &Index| {
            let shift = k.position(&d.scale(8).offset(lowest));
            word.binary(ScalarOp::Shr, shift).binary(ScalarOp::And, RADIX - 1).index()
        };
        let all = (&Index::default(), &m.index());
        self.clear(counts, RADIX * digits);
        k.range("i", all, |i| {
            let word = self.buf.get(&self.place(&Index::default(), i));
            k.unrolled("d", digits, |d| self.count(counts, &d.scale(RADIX).add(&digit(word, d))));
        });
        let strip = k.cell("strip", DType::I64).holding(0);
        let passes = Index::constant(digits).minimum(&m.index().scale(digits), &unbounded);
        k.range("d", (&Index::default(), &passes), |d| {
            let (table, here) = (d.scale(RADIX), strip.get());
            let (from, to) = (here.index(), (-here + n).index());
            let any = self.buf.get(&self.place(&from, &Index::default()));
            let same = counts.get_as(&table.add(&digit(any, d)), DType::I64);
            k.when(same.ne(m), || {
                let sum = k.register("sum", DType::I32).holding(0);
                k.each("v", RADIX, |v| {
                    let (at, before) = (table.add(v), sum.get());
                    sum.set(before + counts.get(&at));
                    counts.set(&at, before);
                });
                k.range("i", all, |i| {
                    let word = self.buf.get(&self.place(&from, i));
                    let at = table.add(&digit(word, d));
                    let next = counts.get(&at);
                    counts.set(&at, next + 1);
                    self.copy([&from, i], [&to, &next.cast(DType::I64).index()], word);
                });
                strip.set(&to);
            });
        });
        strip.get().index()
    }
}
