//! Pairwise coupling: class probabilities from pairwise probabilities, after T.-F. Wu, C.-J. Lin and R. C. Weng, "Probability estimates for multi-class
//! classification by pairwise coupling" (2004), algorithm 2: as many sweeps as it takes, at most 100.

use crate::prelude::*;

const MAX_SWEEPS: u64 = 100;
/// The error at which it ends, times the number of classes.
const ERROR: f64 = 0.005;

/// The working memory of a row.
struct Row<'k> {
    k: &'k KernelScope,
    /// Probabilities that a class is chosen of a pair, [classes, classes].
    pairs: KernelTensor<'k>,
    q: KernelTensor<'k>,
    qp: KernelTensor<'k>,
    p: KernelTensor<'k>,
    classes: u64,
}

/// Class probabilities [rows, classes] from pairwise probabilities [rows, pairs], each that of the first class of its pair.
pub(super) fn coupled(of_pairs: Tensor<'_>, classes: usize) -> Result<Tensor<'_>> {
    let (g, ty) = (of_pairs.graph(), of_pairs.ty()?);
    let made = DenseType::new(DType::F32, Extents::of([ty.dims.at(0), Extent::from(classes as i64)]));
    let k = &KernelScope::new("pairwise_coupling");
    let (given, result) = (k.input("pairs", &ty), k.output("classes", &made));
    let classes = classes as u64;
    k.parallel_each("row", ty.dims.at(0), |at| {
        let square = |name| k.memory(name, DType::F32, [classes, classes], MemorySpace::Stack);
        let line = |name| k.memory(name, DType::F32, [classes], MemorySpace::Stack);
        let row = Row { k, pairs: square("pair"), q: square("q"), qp: line("qp"), p: line("p"), classes };
        row.begin(given, at);
        row.sweeps();
        k.each("class", classes, |class| result.set([at, class], row.p.get(class)));
    });
    Ok(g.kernel(k.finish(), &[of_pairs], &[made])?[0])
}

impl<'k> Row<'k> {
    fn begin(&self, given: KernelTensor<'k>, at: &Index) {
        let (k, n) = (self.k, self.classes as i64);
        let mut pair = 0;
        for i in 0..n {
            for j in i + 1..n {
                let (first, [i, j]) = (given.get([at, &Index::constant(pair)]), [i, j].map(Index::constant));
                self.pairs.set([&i, &j], first);
                self.pairs.set([&j, &i], k.number(DType::F32, 1.0) - first);
                pair += 1;
            }
        }
        for i in 0..n {
            let i = &Index::constant(i);
            self.p.set(i, k.number(DType::F32, 1.0 / n as f64));
            self.q.set([i, i], 0.0);
            for j in (0..n).map(Index::constant).filter(|j| j != i) {
                let [there, back] = [self.pairs.get([&j, i]), self.pairs.get([i, &j])];
                self.q.add([i, i], there * there);
                self.q.set([i, &j], -there * back);
            }
        }
    }

    fn sweeps(&self) {
        let (k, n) = (self.k, self.classes);
        let cell = |name| k.cell(name, DType::F32);
        let [total, error] = ["total", "error"].map(cell);
        let ended = k.cell("ended", DType::I64).holding(0);
        k.each("sweep", MAX_SWEEPS, |_| {
            k.when(ended.get().eq(0), || {
                total.set(0.0);
                k.each("i", n, |i| {
                    self.qp.set(i, 0.0);
                    k.each("j", n, |j| self.qp.add(i, self.q.get([i, j]) * self.p.get(j)));
                    total.add(self.p.get(i) * self.qp.get(i));
                });
                error.set(0.0);
                k.each("i", n, |i| error.set(error.get().max((self.qp.get(i) - total.get()).abs())));
                let small = error.get().lt(f64::from(ERROR as f32 / n as f32));
                k.when(small, || ended.set(1));
            });
            k.when(ended.get().eq(0), || k.each("i", n, |i| self.step(i, total)));
        });
    }

    /// Changes the probability of a class.
    fn step(&self, i: &Index, total: crate::kernel::KernelCell<'k>) {
        let (k, q) = (self.k, self.q.get([i, i]));
        let change = (total.get() - self.qp.get(i)) / q;
        self.p.add(i, change);
        let grown = change + 1.0;
        total.set((total.get() + change * (change * q + self.qp.get(i) * 2.0)) / grown / grown);
        k.each("j", self.classes, |j| {
            self.qp.set(j, (self.qp.get(j) + change * self.q.get([i, j])) / grown);
            self.p.set(j, self.p.get(j) / grown);
        });
    }
}
