//! Kernels that are told their sizes compute what kernels that hold them do.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use tensorc_ir::extent::{Symbol, Trace};
use tensorc_ir::index::{Atom, Index};
use tensorc_ir::interp::run_kernel;
use tensorc_ir::kir::{Kernel, KernelBuilder, LoopKind, MemorySpace, Operand, SizedKernel, Stmt};
use tensorc_ir::scalar::{MathFn, MathLibrary, ScalarFn};
use tensorc_ir::verify::verify_kernel;
use tensorc_ir::{DType, Extent};
use tensorc_random::{Rng, random_kernel};

/// Every function is the identity.
struct Identity(ScalarFn);

impl MathLibrary for Identity {
    fn body(&self, _: MathFn) -> &ScalarFn {
        &self.0
    }
}

fn trace() -> Trace {
    let symbol = |(name, example): (&str, i64)| Symbol { name: name.into(), range: (2, 1 << 20), example };
    Trace::new([("n", 11), ("m", 13)].map(symbol).to_vec())
}

/// Numbers of kernels as expressions of symbols that have the same value in the example.
struct Opening<'t> {
    rng: Rng,
    trace: &'t Trace,
    kernel: &'t Kernel,
}

impl Opening<'_> {
    fn number(&mut self, n: Extent) -> Extent {
        if self.rng.one_in(2) {
            return n;
        }
        let symbol = self.trace.symbol(self.rng.below(2) as usize);
        match self.rng.below(3) {
            0 => symbol * 3 + (n.example() - 3 * symbol.example()),
            _ => symbol + (n.example() - symbol.example()),
        }
    }

    fn index(&mut self, index: &Index) -> Index {
        let mut sum = Index::constant(self.number(index.constant));
        for (atom, factor) in &index.terms {
            let atom = match atom {
                Atom::Var(v) => Atom::Var(*v),
                Atom::Div(x, d) => Atom::Div(self.index(x).into(), self.number(*d)),
                Atom::Mod(x, d) => Atom::Mod(self.index(x).into(), self.number(*d)),
                Atom::Min(a, b) => Atom::Min(self.index(a).into(), self.index(b).into()),
                Atom::Max(a, b) => Atom::Max(self.index(a).into(), self.index(b).into()),
            };
            sum = sum.add(&Index::of(atom).scale(self.number(*factor)));
        }
        sum
    }

    fn block(&mut self, body: &[Stmt]) -> Vec<Stmt> {
        body.iter().map(|stmt| self.stmt(stmt)).collect()
    }

    fn stmt(&mut self, stmt: &Stmt) -> Stmt {
        match stmt.clone() {
            Stmt::For { var, lo, hi, step, kind, body } => {
                let body = self.block(&body);
                let (lo, hi) = match kind {
                    LoopKind::Serial => (self.index(&lo), self.index(&hi)),
                    LoopKind::Parallel => (lo, self.index(&hi)),
                    _ => (lo, hi),
                };
                Stmt::For { var, lo, hi, step, kind, body }
            }
            Stmt::LetIndex { var, index } => Stmt::LetIndex { var, index: self.index(&index) },
            // Registers have no addresses.
            Stmt::Load { buf, .. } | Stmt::Store { buf, .. } if self.kernel.buf(buf).space == MemorySpace::Register => {
                stmt.clone()
            }
            Stmt::Load { var, buf, index, guard } => Stmt::Load { var, buf, index: self.index(&index), guard },
            Stmt::Store { buf, index, value } => Stmt::Store { buf, index: self.index(&index), value },
            Stmt::VectorMath { f, buf, start, len } => {
                Stmt::VectorMath { f, buf, start: self.index(&start), len: self.index(&len) }
            }
            Stmt::If { cond, then, otherwise } => {
                Stmt::If { cond, then: self.block(&then), otherwise: self.block(&otherwise) }
            }
            other => other,
        }
    }
}

/// Runs both kernels, one of them with its sizes, and with numbers in place of them; returns how many there are.
fn compare(kernel: &Kernel, open: &Kernel, trace: &Trace, buffers: &[Vec<u8>], what: &str) -> usize {
    let math = Identity(ScalarFn::identity(DType::F32));
    let SizedKernel { kernel: told, sizes } = trace.enter(|| open.sized()).unwrap();
    verify_kernel(&told).unwrap_or_else(|d| panic!("{what}: {d}"));
    let range = [0, kernel.parallel_extent().fixed()];
    let scalars: &[i64] = if kernel.is_parallel() { &range } else { &[] };
    let mut expected = buffers.to_vec();
    run_kernel(kernel, &mut expected, scalars, &math).unwrap_or_else(|d| panic!("{what}: {d}"));
    let mut found = buffers.to_vec();
    if !sizes.is_empty() {
        found.push(sizes.iter().flat_map(|n| n.example().to_le_bytes()).collect());
    }
    run_kernel(&told, &mut found, scalars, &math).unwrap_or_else(|d| panic!("{what}: {d}"));
    assert!(found[..expected.len()] == expected, "{what}");
    let (bound, mut found) = (open.renumbered(&|n| n.example().into()), buffers.to_vec());
    assert!(!bound.is_open(), "{what}");
    run_kernel(&bound, &mut found, scalars, &math).unwrap_or_else(|d| panic!("{what}: {d}"));
    assert!(found == expected, "{what}");
    sizes.len()
}

#[test]
fn random_kernels_are_told_their_sizes() {
    let mut told = 0;
    for seed in 0..600 {
        let mut rng = Rng::new(seed);
        let dtype = *rng.pick(&[DType::F32, DType::F64, DType::I32, DType::I64]);
        let parallel = rng.one_in(2);
        let kernel = random_kernel(&mut rng, dtype, parallel);
        let element = |rng: &mut Rng| rng.element(dtype).bits.to_le_bytes()[..dtype.size()].to_vec();
        let memory = |n: u64, rng: &mut Rng| (0..n).flat_map(|_| element(rng)).collect();
        let buffers: Vec<Vec<u8>> =
            kernel.buffers[..kernel.params].iter().map(|b| memory(b.elements(), &mut rng)).collect();
        let trace = trace();
        let open = trace.enter(|| {
            let mut opening = Opening { rng, trace: &trace, kernel: &kernel };
            Kernel { body: opening.block(&kernel.body), ..kernel.clone() }
        });
        told += usize::from(compare(&kernel, &open, &trace, &buffers, &format!("seed {seed}")) > 0);
    }
    assert!(told > 300, "{told}");
}

/// Quotients and remainders of numbers that may be negative are rounded down.
#[test]
fn quotients_by_sizes_are_rounded_down() {
    let write = |d: Extent, c: Extent| {
        let mut k = KernelBuilder::new("k");
        let out = k.param("y", DType::I64, 40, true);
        let Ok::<_, ()>(()) = k.for_range("i", 20, LoopKind::Serial, |k, i| {
            let x = i.scale(3).offset(-c);
            for (at, atom) in [(0, Atom::Div(x.clone().into(), d)), (20, Atom::Mod(x.clone().into(), d))] {
                let value: Operand = k.index_value(Index::of(atom));
                k.store(out, i.offset(at), value);
            }
            Ok(())
        }) else {
            unreachable!()
        };
        k.finish()
    };
    let trace = trace();
    let open = trace.enter(|| write(trace.symbol(0), trace.symbol(1) * 2));
    let count = compare(&write(11.into(), 26.into()), &open, &trace, &[vec![0; 320]], "quotients");
    assert_eq!(count, 2, "the divisor, and what is subtracted");
}
