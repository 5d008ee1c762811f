//! Random kernels with every kind of statement, and contents of their buffers.

use tensorc_abi::DType;
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, Kernel, KernelBuilder, LoopKind, MemorySpace, Operand, Var};
use tensorc_ir::scalar::{CmpOp, MathFn, Scalar, ScalarOp};

struct Random(u64);

impl Random {
    fn next(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.next(100) < percent
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.next(from.len())]
    }

    fn scalar(&mut self, dtype: DType) -> Scalar {
        match dtype {
            DType::Bool => Scalar::bool(self.chance(50)),
            d if d.is_float() => {
                let x = self.pick(&[0.0, -0.0, 1.0, -1.5, 0.5, 3.25, f64::NAN, f64::INFINITY, 1e5, -300.7, 1e-6, 0.1]);
                Scalar::from_f64(d, x)
            }
            d => {
                let x = self.pick(&[0, 1, -1, 2, 7, -8, 31, 100, 127, -128, 40000, i64::MIN, i64::MAX, 1 << 31]);
                Scalar::from_i64(d, x)
            }
        }
    }
}

/// How a buffer may be used where the generator is.
#[derive(Clone)]
struct Usable {
    buf: Buf,
    dtype: DType,
    len: u64,
    space: MemorySpace,
    writable: bool,
    /// Allocated inside of the current vector loop.
    private: bool,
    /// The offset at which the current vector loop accesses it by lane, once chosen.
    by_lane: Option<Index>,
}

/// The least and the greatest value of an index.
type Interval = (i64, i64);

struct Generator {
    random: Random,
    values: Vec<(Operand, DType)>,
    indices: Vec<(Index, Interval)>,
    ranges: Vec<Interval>,
    buffers: Vec<Usable>,
    /// The lane variable, lanes, and how many indices were in scope outside.
    vector: Option<(Index, u64, usize)>,
    budget: usize,
}

const PLAIN: [ScalarOp; 23] = [
    ScalarOp::Neg,
    ScalarOp::Abs,
    ScalarOp::Sqrt,
    ScalarOp::Floor,
    ScalarOp::Round,
    ScalarOp::Not,
    ScalarOp::Add,
    ScalarOp::Sub,
    ScalarOp::Mul,
    ScalarOp::Div,
    ScalarOp::Rem,
    ScalarOp::Scale,
    ScalarOp::Min,
    ScalarOp::Max,
    ScalarOp::And,
    ScalarOp::Or,
    ScalarOp::Xor,
    ScalarOp::Shl,
    ScalarOp::Shr,
    ScalarOp::Cmp(CmpOp::Eq),
    ScalarOp::Cmp(CmpOp::Lt),
    ScalarOp::Cmp(CmpOp::Ge),
    ScalarOp::Fma,
];

type Done = Result<(), std::convert::Infallible>;

impl Generator {
    fn operand(&mut self, dtype: DType) -> Operand {
        let fitting: Vec<Operand> = self.values.iter().filter(|(_, d)| *d == dtype).map(|(o, _)| *o).collect();
        if fitting.is_empty() || self.random.chance(10) {
            return Operand::Const(self.random.scalar(dtype));
        }
        // Recent values, so that programs are deep rather than wide.
        let recent = fitting.len().min(4);
        if self.random.chance(70) {
            fitting[fitting.len() - 1 - self.random.next(recent)]
        } else {
            self.random.pick(&fitting)
        }
    }

    fn interval(&self, v: u32) -> Interval {
        self.ranges.get(v as usize).copied().unwrap_or((i64::MIN / 4, i64::MAX / 4))
    }

    fn know(&mut self, index: &Index, range: Interval) {
        let v = index.as_var().unwrap() as usize;
        self.ranges.resize(self.ranges.len().max(v + 1), (i64::MIN / 4, i64::MAX / 4));
        self.ranges[v] = range;
        self.indices.push((index.clone(), range));
    }

    /// A random expression over the first `scope` index variables.
    fn index(&mut self, scope: usize) -> Index {
        let ranges = self.ranges.clone();
        let of = move |v: u32| ranges.get(v as usize).copied().unwrap_or((i64::MIN / 4, i64::MAX / 4));
        let mut sum = Index::constant(self.random.next(9) as i64 - 2);
        for _ in 0..self.random.next(3) + 1 {
            if scope == 0 {
                break;
            }
            let (var, _) = self.indices[self.random.next(scope)].clone();
            let scaled = var.scale(self.random.pick(&[1, 1, 1, 2, 4, -1, 8, 3]));
            let d = self.random.pick(&[2, 3, 4, 7, 8]);
            let term = match self.random.next(10) {
                0 => scaled.floor_div(d, &of),
                1 => scaled.modulo(d, &of),
                2 => scaled.minimum(&Index::constant(d), &of),
                3 => scaled.maximum(&Index::constant(1), &of),
                _ => scaled,
            };
            sum = sum.add(&term);
        }
        sum
    }

    /// The index brought into `0..len`.
    fn within(&self, index: Index, len: u64) -> Index {
        let of = |v: u32| self.interval(v);
        let (lo, hi) = index.interval(&of);
        let (lo, hi) = (lo.fixed(), hi.fixed());
        match () {
            _ if lo >= 0 && hi < len as i64 => index,
            _ if hi.saturating_sub(lo) < len as i64 => index.offset(-lo),
            _ => index.modulo(len as i64, &of),
        }
    }

    fn load(&mut self, b: &mut KernelBuilder) {
        let at = self.random.next(self.buffers.len());
        let usable = self.buffers[at].clone();
        let scope = self.indices.len();
        let lanes_differ = self.vector.is_some() && usable.writable && !usable.private;
        if lanes_differ {
            // What other lanes write in this loop must not be read.
            let Some(index) = self.by_lane(at) else { return };
            let v = b.load(usable.buf, index);
            self.values.push((v, usable.dtype));
            return;
        }
        if usable.space == MemorySpace::Register {
            let v = b.load(usable.buf, Index::constant(self.random.next(usable.len as usize) as i64));
            self.values.push((v, usable.dtype));
            return;
        }
        let index = match (&self.vector, self.random.chance(60)) {
            (Some((lane, lanes, outside)), true) if usable.len > *lanes => {
                let (lane, lanes, outside) = (lane.clone(), *lanes, *outside);
                let base = self.index(outside);
                self.within(base, usable.len - lanes).add(&lane)
            }
            _ => self.index(scope),
        };
        let v = if self.random.chance(30) {
            let inside = b.in_range(&index, 0, usable.len as i64);
            let fill = self.random.scalar(usable.dtype);
            b.load_guarded(usable.buf, index, Some((inside, fill)))
        } else {
            let index = self.within(index, usable.len);
            b.load(usable.buf, index)
        };
        self.values.push((v, usable.dtype));
    }

    /// The one index at which the current vector loop accesses a writable buffer.
    fn by_lane(&mut self, at: usize) -> Option<Index> {
        let (lane, lanes, outside) = self.vector.clone()?;
        let usable = self.buffers[at].clone();
        if usable.len < lanes {
            return None;
        }
        let base = match usable.by_lane {
            Some(base) => base,
            None if usable.space == MemorySpace::Register => Index::constant(
                self.random.next((usable.len - lanes) as usize + 1) as i64 & self.random.pick(&[-1, !3]),
            ),
            None => {
                let base = self.index(outside);
                self.within(base, usable.len - lanes + 1)
            }
        };
        self.buffers[at].by_lane = Some(base.clone());
        Some(base.add(&lane))
    }

    fn store(&mut self, b: &mut KernelBuilder) {
        let at = self.random.next(self.buffers.len());
        let usable = self.buffers[at].clone();
        if !usable.writable {
            return;
        }
        let in_memory = usable.space != MemorySpace::Register && self.vector.is_none();
        if in_memory && usable.dtype == DType::F32 && self.random.chance(30) {
            let start = self.random.next(usable.len as usize) as i64;
            let len = self.random.next(usable.len as usize + 1) as i64 - start;
            let f = self.random.pick(&[MathFn::Exp, MathFn::Log, MathFn::Tanh, MathFn::Erf]);
            return b.apply_strip(f, usable.buf, Index::constant(start), Index::constant(len));
        }
        let index = match &self.vector {
            Some(_) if !usable.private => match self.by_lane(at) {
                Some(index) => index,
                None => return,
            },
            _ if usable.space == MemorySpace::Register => Index::constant(self.random.next(usable.len as usize) as i64),
            _ => {
                let index = self.index(self.indices.len());
                self.within(index, usable.len)
            }
        };
        let value = self.operand(usable.dtype);
        b.store(usable.buf, index, value);
    }

    fn operation(&mut self, b: &mut KernelBuilder) {
        let dtype = self.random.pick(&DType::COMPUTED);
        let dtype = self.values.last().map_or(dtype, |(_, d)| if self.random.chance(60) { *d } else { dtype });
        let to = self.random.pick(&DType::COMPUTED);
        let (op, types) = match self.random.next(10) {
            0 | 1 => (ScalarOp::Cast(to), vec![dtype]),
            2 => (ScalarOp::Select, vec![DType::Bool, dtype, dtype]),
            3 if dtype.is_int() && to.is_int() => (ScalarOp::Bitcast(to), vec![dtype]),
            _ => {
                let op = self.random.pick(&PLAIN);
                (op, vec![dtype; op.arity()])
            }
        };
        if let Ok(result) = op.result(&types) {
            let args: Vec<Operand> = types.iter().map(|t| self.operand(*t)).collect();
            let v = b.op(op, &args);
            self.values.push((v, result));
        }
    }

    /// A local buffer with every element written.
    fn alloc(&mut self, b: &mut KernelBuilder) {
        let dtype = self.random.pick(&DType::COMPUTED);
        let space = if self.random.chance(70) { MemorySpace::Register } else { MemorySpace::Stack };
        let len = if self.vector.is_some() { 1 + self.random.next(3) } else { self.random.pick(&[1, 3, 4, 8, 16, 20]) };
        let buf = b.alloc("local", dtype, len as u64, space);
        for i in 0..len {
            let v =
                if self.random.chance(50) { Operand::Const(self.random.scalar(dtype)) } else { self.operand(dtype) };
            b.store(buf, Index::constant(i as i64), v);
        }
        let private = self.vector.is_some();
        self.buffers.push(Usable { buf, dtype, len: len as u64, space, writable: true, private, by_lane: None });
    }

    fn scoped(&mut self, b: &mut KernelBuilder, depth: usize) -> Done {
        let (values, indices, buffers) = (self.values.len(), self.indices.len(), self.buffers.len());
        self.block(b, depth)?;
        self.values.truncate(values);
        self.indices.truncate(indices);
        self.buffers.truncate(buffers);
        Ok(())
    }

    fn looped(&mut self, b: &mut KernelBuilder, depth: usize) -> Done {
        let mut kind = self.random.pick(&[LoopKind::Serial, LoopKind::Serial, LoopKind::Unroll, LoopKind::Vector]);
        if kind == LoopKind::Vector && self.vector.is_some() {
            kind = LoopKind::Serial;
        }
        let outside = self.indices.len();
        let (lo, hi, step) = match kind {
            LoopKind::Vector => {
                let lanes = self.random.pick(&[4i64, 8, 16, 8, 3, 12]);
                let lo = if self.random.chance(80) { Index::constant(0) } else { Index::constant(4) };
                (lo.clone(), lo.offset(lanes), 1)
            }
            LoopKind::Unroll => (Index::constant(self.random.next(3) as i64), Index::constant(3), 1),
            _ => {
                let mut hi = Index::constant(1 + self.random.next(4) as i64);
                if self.random.chance(20) && outside > 0 && self.vector.is_none() {
                    let any = self.index(outside);
                    hi = self.within(any, 5);
                }
                (Index::constant(self.random.next(2) as i64), hi, 1 + self.random.next(2) as i64)
            }
        };
        let of = |v: u32| self.interval(v);
        let (first, last) = (lo.interval(&of).0.fixed(), hi.interval(&of).1.fixed() - 1);
        let range = (first, last.max(first));
        let lanes = (range.1 - range.0 + 1) as u64;
        b.for_loop("i", (lo, hi, step), kind, |b, i| {
            let (values, buffers) = (self.values.len(), self.buffers.len());
            self.know(&i, range);
            self.values.push((Operand::Var(Var(i.as_var().unwrap())), DType::I64));
            if kind == LoopKind::Vector {
                self.vector = Some((i.offset(-range.0), lanes, outside));
                // Lanes may only meet in buffers at their own elements.
                self.buffers.iter_mut().for_each(|u| u.by_lane = None);
            }
            self.block(b, depth + 1)?;
            if kind == LoopKind::Vector {
                self.vector = None;
            }
            self.values.truncate(values);
            self.indices.truncate(outside);
            self.buffers.truncate(buffers);
            Ok(())
        })
    }

    fn block(&mut self, b: &mut KernelBuilder, depth: usize) -> Done {
        for _ in 0..3 + self.random.next(8) {
            if self.budget == 0 {
                return Ok(());
            }
            self.budget -= 1;
            match self.random.next(20) {
                0 if depth < 4 => self.alloc(b),
                1..=3 if depth < 4 => self.looped(b, depth)?,
                4 if depth < 4 => {
                    let cond = self.operand(DType::Bool);
                    b.if_then(cond, |b| self.scoped(b, depth + 1))?;
                }
                5 => {
                    let index = self.index(self.indices.len());
                    let v = b.index_value(index);
                    self.values.push((v, DType::I64));
                }
                6..=9 => self.load(b),
                10..=12 => self.store(b),
                _ => self.operation(b),
            }
        }
        Ok(())
    }
}

/// A kernel and its scalars. Few break a rule that the generator does not know: the interpreter refuses them.
pub fn random_kernel(seed: u64) -> (Kernel, Vec<i64>) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    random.next(2);
    let mut b = KernelBuilder::new(format!("random{seed}"));
    let mut buffers = vec![];
    for i in 0..6 {
        let (dtype, len, writable) = (random.pick(&DType::COMPUTED), random.pick(&[20u64, 37, 64]), i >= 3);
        let buf = b.param("p", dtype, len, writable);
        buffers.push(Usable { buf, dtype, len, space: MemorySpace::Global, writable, private: false, by_lane: None });
    }
    let parallel = random.chance(40);
    let scalars = if parallel { vec![1, 4] } else { vec![random.next(50) as i64 - 10] };
    let mut generator =
        Generator { random, values: vec![], indices: vec![], ranges: vec![], buffers, vector: None, budget: 45 };
    if parallel {
        let done = b.for_range("p", 5, LoopKind::Parallel, |b, i| {
            generator.know(&i, (0, 4));
            generator.block(b, 0)
        });
        done.unwrap();
    } else {
        let s = Index::var(b.scalar("s").0);
        generator.know(&s, (i64::MIN / 4, i64::MAX / 4));
        generator.block(&mut b, 0).unwrap();
    }
    (b.finish(), scalars)
}

/// Buffers for its parameters.
pub fn contents(kernel: &Kernel, seed: u64) -> Vec<Vec<u8>> {
    let mut random = Random(seed * 7 + 3);
    let fill = |info: &tensorc_ir::kir::BufInfo| {
        let mut bytes = vec![0; info.elements() as usize * info.dtype.size()];
        bytes.chunks_exact_mut(info.dtype.size()).for_each(|b| random.scalar(info.dtype).write(b));
        bytes
    };
    kernel.buffers[..kernel.params].iter().map(fill).collect()
}
