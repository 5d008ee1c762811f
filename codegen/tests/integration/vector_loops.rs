//! Loops over vectors, for every instruction set of this machine, against the interpreter.

use tensorc_abi::DType;
use tensorc_codegen::cranelift::dump;
use tensorc_codegen::isa::Isa;
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Buf, Kernel, KernelBuilder, LoopKind, MemorySpace, Operand};
use tensorc_ir::scalar::{CmpOp, Scalar, ScalarOp};
use tensorc_random::Rng;

use crate::common;
use crate::common::random::contents;

/// What random loops compute with.
const TYPES: [DType; 10] = [
    DType::F32,
    DType::F32,
    DType::I32,
    DType::F64,
    DType::I64,
    DType::U8,
    DType::I16,
    DType::F16,
    DType::BF16,
    DType::U32,
];

const BINARY: [ScalarOp; 13] = [
    ScalarOp::Add,
    ScalarOp::Sub,
    ScalarOp::Mul,
    ScalarOp::Min,
    ScalarOp::Max,
    ScalarOp::Cmp(CmpOp::Lt),
    ScalarOp::Cmp(CmpOp::Ge),
    ScalarOp::Cmp(CmpOp::Eq),
    ScalarOp::And,
    ScalarOp::Xor,
    ScalarOp::Shr,
    ScalarOp::Div,
    ScalarOp::Rem,
];

/// A loop in the making.
struct RandomLoop<'r> {
    rng: &'r mut Rng,
    inputs: Vec<(Buf, DType)>,
    length: i64,
}

impl RandomLoop<'_> {
    /// Computes values from the elements at an index, the same for every index.
    fn values(&mut self, b: &mut KernelBuilder, at: &Index) -> Vec<Operand> {
        let mut values: Vec<Operand> = vec![];
        for (buf, dtype) in self.inputs.clone() {
            let guarded = self.rng.one_in(4);
            if guarded {
                let limit = Operand::Const(Scalar::i64(self.length / 2));
                let position = b.index_value(at.clone());
                let inside = b.op(ScalarOp::Cmp(CmpOp::Lt), &[position, limit]);
                let fill = Scalar::i64(self.rng.below(3) as i64).cast(dtype);
                values.push(b.load_guarded(buf, at.clone(), Some((inside, fill))));
            } else {
                let (behind, step) = (self.rng.below(3) as i64, if self.rng.one_in(4) { 2 } else { 1 });
                values.push(b.load(buf, at.scale(step).offset(behind)));
            }
        }
        for _ in 0..3 + self.rng.below(10) {
            if let Some(value) = self.operation(b, &values) {
                values.push(value);
            }
        }
        values
    }

    fn operation(&mut self, b: &mut KernelBuilder, values: &[Operand]) -> Option<Operand> {
        let any = |rng: &mut Rng| *rng.pick(values);
        let a = any(self.rng);
        let dtype = b.dtype(a);
        let (op, args) = match self.rng.below(6) {
            0 => (ScalarOp::Cast(*self.rng.pick(&TYPES)), vec![a]),
            1 => {
                let unary = [ScalarOp::Neg, ScalarOp::Abs, ScalarOp::Not, ScalarOp::Floor, ScalarOp::Sqrt];
                (*self.rng.pick(&unary), vec![a])
            }
            2 => {
                let c = values.iter().copied().find(|v| b.dtype(*v) == DType::Bool)?;
                let others: Vec<Operand> = values.iter().copied().filter(|v| b.dtype(*v) == dtype).collect();
                (ScalarOp::Select, vec![c, a, *self.rng.pick(&others)])
            }
            3 => {
                let others: Vec<Operand> = values.iter().copied().filter(|v| b.dtype(*v) == dtype).collect();
                let other = |rng: &mut Rng| *rng.pick(&others);
                (ScalarOp::Fma, vec![a, other(self.rng), other(self.rng)])
            }
            _ => {
                let others: Vec<Operand> = values.iter().copied().filter(|v| b.dtype(*v) == dtype).collect();
                let other = match self.rng.below(3) {
                    0 => Operand::Const(Scalar::i64(self.rng.below(5) as i64 - 1).cast(dtype)),
                    _ => *self.rng.pick(&others),
                };
                let op = *self.rng.pick(&BINARY);
                // Remainders of floats are functions.
                let known = op != ScalarOp::Rem || !dtype.is_float();
                (Some(op).filter(|_| known)?, vec![a, other])
            }
        };
        let types: Vec<DType> = args.iter().map(|a| b.dtype(*a)).collect();
        op.result(&types).is_ok().then(|| b.op(op, &args))
    }
}

/// A matrix of f32 with as many columns as the loop has elements.
struct Matrix {
    table: Buf,
    scaled: Buf,
    folded: Buf,
    /// Rows, in groups.
    rows: [i64; 2],
    columns: i64,
    /// What the number of a row is multiplied by, where it is added.
    counted: Option<i64>,
}

impl Matrix {
    /// Calls `body` with the position of every element of a column, and its row in a group.
    fn column(&self, b: &mut KernelBuilder, at: &Index, mut body: impl FnMut(&mut KernelBuilder, Index, Index)) {
        let [groups, rows] = self.rows;
        b.for_range("g", groups as u64, LoopKind::Serial, |b, g| {
            b.for_range("r", rows as u64, LoopKind::Serial, |b, r| {
                let row = g.scale(rows).add(&r);
                body(b, row.scale(self.columns).add(at), r);
                Ok::<(), ()>(())
            })
        })
        .unwrap();
    }

    /// Folds a column together with a value, and divides its elements by the result.
    fn fold(&self, b: &mut KernelBuilder, at: &Index, (acc, place): (Buf, &Index), value: Operand) {
        b.store(acc, place.clone(), value);
        self.column(b, at, |b, element, row| {
            let (old, x) = (b.load(acc, place.clone()), b.load(self.table, element));
            let mut term = b.op(ScalarOp::Mul, &[x, value]);
            if let Some(step) = self.counted {
                let row = b.index_value(row.scale(step).offset(3));
                let row = [DType::I32, DType::F32].into_iter().fold(row, |v, to| b.op(ScalarOp::Cast(to), &[v]));
                term = b.op(ScalarOp::Add, &[term, row]);
            }
            let new = b.op(ScalarOp::Add, &[old, term]);
            b.store(acc, place.clone(), new);
        });
        let sum = b.load(acc, place.clone());
        self.column(b, at, |b, element, _| {
            let x = b.load(self.table, element.clone());
            let quotient = b.op(ScalarOp::Div, &[x, sum]);
            b.store(self.scaled, element, quotient);
        });
        b.store(self.folded, at.clone(), sum);
    }
}

/// What a loop does at every element, the same for vectors and for single ones.
struct Element {
    seed: u64,
    length: i64,
    inputs: Vec<(Buf, DType)>,
    outputs: Vec<(Buf, DType)>,
    matrix: Matrix,
    /// Where columns are folded: by lane, and for one element.
    columns: Option<(Buf, Buf)>,
    /// Partial results by lane, and how values are folded into them.
    acc: Buf,
    fold: Option<ScalarOp>,
}

impl Element {
    fn new(b: &mut KernelBuilder, rng: &mut Rng, lanes: i64) -> Element {
        let length = 40 + rng.below(160) as i64;
        let mut inputs = vec![];
        for _ in 0..1 + rng.below(3) {
            let dtype = *rng.pick(&TYPES);
            inputs.push((b.param("in", dtype, 2 * length as u64 + 2, false), dtype));
        }
        let mut outputs = vec![];
        for _ in 0..3 {
            let dtype = *rng.pick(&TYPES);
            outputs.push((b.param("out", dtype, length as u64, true), dtype));
        }
        let rows = [1 + rng.below(3) as i64, 1 + rng.below(4) as i64];
        let area = (length * rows[0] * rows[1]) as u64;
        let matrix = Matrix {
            table: b.param("table", DType::F32, area, false),
            scaled: b.param("scaled", DType::F32, area, true),
            folded: b.param("folded", DType::F32, length as u64, true),
            rows,
            columns: length,
            counted: rng.one_in(2).then(|| *rng.pick(&[1, 5])),
        };
        let mut registers = |lanes: i64| b.alloc("column", DType::F32, lanes as u64, MemorySpace::Register);
        let columns = rng.one_in(2).then(|| (registers(lanes), registers(1)));
        let acc = registers(lanes);
        let fold = rng.one_in(3).then(|| *rng.pick(&[ScalarOp::Add, ScalarOp::Max]));
        Element { seed: rng.next_u64(), length, inputs, outputs, matrix, columns, acc, fold }
    }

    fn write(&self, b: &mut KernelBuilder, at: &Index, lane: Option<&Index>) {
        let mut rng = Rng::new(self.seed);
        let values = RandomLoop { rng: &mut rng, inputs: self.inputs.clone(), length: self.length }.values(b, at);
        for (buf, dtype) in &self.outputs {
            if let Some(value) = values.iter().rev().find(|v| b.dtype(**v) == *dtype) {
                b.store(*buf, at.clone(), *value);
            }
        }
        let mut floats = values.iter().filter(|v| b.dtype(**v) == DType::F32).copied().collect::<Vec<_>>().into_iter();
        let (first, last) = (floats.next(), floats.next_back());
        if let (Some((vector, single)), Some(value)) = (self.columns, first) {
            let place = lane.map_or((single, Index::default()), |lane| (vector, lane.clone()));
            self.matrix.fold(b, at, (place.0, &place.1), value);
        }
        if let (Some(lane), Some(fold), Some(value)) = (lane, self.fold, last) {
            let old = b.load(self.acc, lane.clone());
            let new = b.op(fold, &[old, value]);
            b.store(self.acc, lane.clone(), new);
        }
    }

    /// Joins the halves of the partial results; how many are left.
    fn join(&self, b: &mut KernelBuilder, lanes: i64) -> i64 {
        let mut left = lanes;
        while left >= 8 {
            left /= 2;
            each_lane(b, left, |b, l| {
                let (high, low) = (b.load(self.acc, l.offset(left)), b.load(self.acc, l.clone()));
                let both = b.op(self.fold.unwrap_or(ScalarOp::Min), &[low, high]);
                b.store(self.acc, l, both);
            });
        }
        left
    }
}

fn each_lane(b: &mut KernelBuilder, lanes: i64, mut body: impl FnMut(&mut KernelBuilder, Index)) {
    let all = |b: &mut KernelBuilder, l| {
        body(b, l);
        Ok::<(), ()>(())
    };
    b.for_range("l", lanes as u64, LoopKind::Vector, all).unwrap();
}

/// `out[i] = f(in[i..i + 3])`, a fold of a column, by vectors and element by element, and partial results by lane.
fn random_loop(seed: u64) -> Kernel {
    let mut rng = Rng::new(seed);
    let mut b = KernelBuilder::new("random");
    let lanes = *rng.pick(&[8, 16, 16, 32, 64]);
    let sums = b.param("sums", DType::F32, 64, true);
    let element = Element::new(&mut b, &mut rng, lanes);
    each_lane(&mut b, lanes, |b, l| b.store(element.acc, l, Operand::Const(Scalar::f32(0.5))));
    let (length, whole) = (element.length, element.length / lanes * lanes);
    b.for_loop("i", (Index::default(), Index::constant(whole), lanes), LoopKind::Serial, |b, i| {
        each_lane(b, lanes, |b, l| element.write(b, &i.add(&l), Some(&l)));
        Ok::<(), ()>(())
    })
    .unwrap();
    let left = if rng.one_in(2) { element.join(&mut b, lanes) } else { lanes };
    b.for_loop("i", (Index::constant(whole), Index::constant(length), 1), LoopKind::Serial, |b, i| {
        element.write(b, &i, None);
        Ok::<(), ()>(())
    })
    .unwrap();
    each_lane(&mut b, left, |b, l| {
        let value = b.load(element.acc, l.clone());
        b.store(sums, l, value);
    });
    b.finish()
}

#[test]
fn random_loops_match_the_interpreter() {
    let count = std::env::var("TENSORC_RANDOM_LOOPS").ok().and_then(|n| n.parse().ok()).unwrap_or(2000u64);
    let first = std::env::var("TENSORC_FIRST_LOOP").ok().and_then(|n| n.parse().ok()).unwrap_or(0u64);
    for seeds in (first..first + count).collect::<Vec<_>>().chunks(200) {
        let kernels: Vec<Kernel> = seeds.iter().map(|seed| random_loop(*seed)).collect();
        for isa in common::isas() {
            let module = common::compile_for(&kernels, isa);
            for (i, (kernel, seed)) in kernels.iter().zip(seeds).enumerate() {
                let found = common::difference(kernel, &module, i, &contents(kernel, *seed), &[]);
                found.unwrap_or_else(|why| {
                    panic!("seed {seed}, {isa}: {why}\n{}", tensorc_ir::text::print_kernel(kernel))
                });
            }
        }
    }
}

/// `out[r, i] = in[r, i]·scale[i] + bias[r]`, rows of `n` elements by vectors of eight and single elements.
fn rows_of(n: i64, dtype: DType) -> Kernel {
    let (rows, stride) = (7, n + 3);
    let mut b = KernelBuilder::new("rows");
    let input = b.param("in", dtype, (rows * stride) as u64, false);
    let scale = b.param("scale", dtype, n as u64, false);
    let bias = b.param("bias", dtype, rows as u64, false);
    let out = b.param("out", dtype, (rows * stride) as u64, true);
    b.for_range("r", rows as u64, LoopKind::Serial, |b, r| {
        let shift = b.load(bias, r.clone());
        let row = b.let_index("row", r.scale(stride));
        let element = |b: &mut KernelBuilder, i: Index| {
            let (x, factor) = (b.load(input, row.add(&i)), b.load(scale, i.clone()));
            let product = b.op(ScalarOp::Mul, &[x, factor]);
            let sum = b.op(ScalarOp::Add, &[product, shift]);
            b.store(out, row.add(&i), sum);
        };
        let whole = n / 8 * 8;
        b.for_loop("i", (Index::default(), Index::constant(whole), 8), LoopKind::Serial, |b, i| {
            each_lane(b, 8, |b, l| element(b, i.add(&l)));
            Ok::<(), ()>(())
        })?;
        b.for_loop("i", (Index::constant(whole), Index::constant(n), 1), LoopKind::Serial, |b, i| {
            element(b, i);
            Ok::<(), ()>(())
        })
    })
    .unwrap();
    b.finish()
}

#[test]
fn rows_of_any_length_match_the_interpreter() {
    let lengths = [1, 2, 3, 4, 7, 8, 9, 10, 15, 16, 17, 31, 33, 64, 100];
    let types = [DType::F32, DType::F64, DType::I32, DType::U8, DType::I16];
    let kernels: Vec<Kernel> = lengths.iter().flat_map(|n| types.map(|dtype| rows_of(*n, dtype))).collect();
    for isa in common::isas() {
        let module = common::compile_for(&kernels, isa);
        for (i, kernel) in kernels.iter().enumerate() {
            let found = common::difference(kernel, &module, i, &contents(kernel, 5), &[]);
            found.unwrap_or_else(|why| panic!("{isa}: {why}\n{}", tensorc_ir::text::print_kernel(kernel)));
        }
    }
    let clif = dump(&rows_of(10, DType::F32), "x86_64-v3".parse().unwrap()).unwrap().clif;
    assert!(clif.contains("rows of elements"), "{clif}");
}

/// `out[r, c] = in[c, r]·2`, four rows at a time by vectors of so many columns, `apart` elements from each other.
fn transposition(dtype: DType, lanes: i64, apart: i64) -> Kernel {
    let mut b = KernelBuilder::new("transposition");
    let (rows, columns) = (apart / 4 * 4, lanes * 2);
    let input = b.param("in", dtype, (columns * apart) as u64, false);
    let out = b.param("out", dtype, (rows * columns) as u64, true);
    b.for_loop("i", (Index::default(), Index::constant(columns), lanes), LoopKind::Serial, |b, i| {
        b.for_loop("t", (Index::default(), Index::constant(rows), 4), LoopKind::Serial, |b, t| {
            each_lane(b, lanes, |b, l| {
                for row in (0..4).map(|ahead| t.offset(ahead)) {
                    let column = i.add(&l);
                    let x = b.load(input, column.scale(apart).add(&row));
                    let twice = b.op(ScalarOp::Add, &[x, x]);
                    b.store(out, row.scale(columns).add(&column), twice);
                }
            });
            Ok::<(), ()>(())
        })
    })
    .unwrap();
    b.finish()
}

#[test]
fn transposed_blocks_match_the_interpreter() {
    let mut kernels = vec![];
    for dtype in [DType::F32, DType::I32, DType::F64, DType::I16] {
        for lanes in [8, 16, 32] {
            kernels.extend([4, 7, 33, 1000].map(|apart| transposition(dtype, lanes, apart)));
        }
    }
    for isa in common::isas() {
        let module = common::compile_for(&kernels, isa);
        for (i, kernel) in kernels.iter().enumerate() {
            let found = common::difference(kernel, &module, i, &contents(kernel, 5), &[]);
            found.unwrap_or_else(|why| panic!("{isa}: {why}\n{}", tensorc_ir::text::print_kernel(kernel)));
        }
    }
    for isa in ["x86_64-v3", "x86_64-v4"] {
        let clif = dump(&transposition(DType::F32, 16, 33), isa.parse().unwrap()).unwrap().clif;
        assert!(clif.contains("by 33"), "{clif}");
    }
}

/// Serial loops of which an element needs what another has written: not one may become vectors.
#[test]
fn dependent_elements_are_computed_one_by_one() {
    let loops: [fn(&mut KernelBuilder, [Buf; 2], &Index); 3] = [
        // A running sum.
        |b, [x, y], i| {
            let (sum, term) = (b.load(y, i.clone()), b.load(x, i.clone()));
            let sum = b.op(ScalarOp::Add, &[sum, term]);
            b.store(y, i.offset(1), sum);
        },
        // The second of two writes to a place is that of a later element.
        |b, [x, y], i| {
            let value = b.load(x, i.clone());
            b.store(y, i.offset(3), value);
            b.store(y, i.clone(), Operand::Const(Scalar::f32(2.0)));
        },
        // Windows of elements overlap.
        |b, [x, y], i| {
            let value = b.load(x, i.clone());
            b.for_range("r", 5, LoopKind::Serial, |b, r| {
                b.store(y, i.add(&r), value);
                Ok::<(), ()>(())
            })
            .unwrap();
        },
    ];
    let kernel = |body: fn(&mut KernelBuilder, [Buf; 2], &Index)| {
        let mut b = KernelBuilder::new("dependent");
        let buffers = [b.param("x", DType::F32, 100, false), b.param("y", DType::F32, 110, true)];
        b.for_range("i", 100, LoopKind::Serial, |b, i| {
            body(b, buffers, &i);
            Ok::<(), ()>(())
        })
        .unwrap();
        b.finish()
    };
    let kernels: Vec<Kernel> = loops.into_iter().map(kernel).collect();
    for isa in common::isas() {
        let module = common::compile_for(&kernels, isa);
        for (i, kernel) in kernels.iter().enumerate() {
            let found = common::difference(kernel, &module, i, &contents(kernel, 5), &[]);
            found.unwrap_or_else(|why| panic!("{isa}, loop {i}: {why}"));
        }
    }
}

/// `out[i] = in[i]` rounded, moved, as a number of a type and an f32 again; and that times a factor as a number of the type.
fn requantised(to: DType) -> Kernel {
    let number = |x: f32| Operand::Const(Scalar::f32(x));
    let mut b = KernelBuilder::new("requantised");
    let (input, out) = (b.param("in", DType::F32, 100, false), b.param("out", DType::F32, 100, true));
    let numbers = b.param("numbers", to, 100, true);
    b.for_loop("i", (Index::default(), Index::constant(96), 16), LoopKind::Serial, |b, i| {
        each_lane(b, 16, |b, l| {
            let at = i.add(&l);
            let x = b.load(input, at.clone());
            let rounded = b.op(ScalarOp::Round, &[x]);
            let moved = b.op(ScalarOp::Add, &[rounded, number(7.0)]);
            let quantised = b.op(ScalarOp::Cast(to), &[moved]);
            let back = b.op(ScalarOp::Cast(DType::F32), &[quantised]);
            b.store(out, at.clone(), back);
            let scaled = b.op(ScalarOp::Mul, &[back, number(-1.7)]);
            let again = b.op(ScalarOp::Cast(to), &[scaled]);
            b.store(numbers, at, again);
        });
        Ok::<(), ()>(())
    })
    .unwrap();
    b.finish()
}

#[test]
fn requantised_numbers_match_the_interpreter() {
    let kernels = [DType::U8, DType::I8, DType::U16, DType::I16].map(requantised);
    let mut special =
        [f32::NAN, f32::INFINITY, -f32::INFINITY, -0.0, 3e9, -3e9, 248.5, 248.49, -135.5, 65528.5, -7.5].to_vec();
    special.resize_with(100, || 0.0);
    special.iter_mut().enumerate().skip(11).for_each(|(i, x)| *x = (i as f32 - 40.0) * 6.1);
    for isa in common::isas() {
        let module = common::compile_for(&kernels, isa);
        for (i, kernel) in kernels.iter().enumerate() {
            let mut given = contents(kernel, 5);
            given[0] = special.iter().flat_map(|x| x.to_le_bytes()).collect();
            let found = common::difference(kernel, &module, i, &given, &[]);
            found.unwrap_or_else(|why| panic!("{isa}: {why}\n{}", tensorc_ir::text::print_kernel(kernel)));
        }
    }
}

/// How many of the random loops have code for wide vectors: more than half with AVX-512, fewer with AVX2.
#[test]
fn most_loops_have_wide_vectors() {
    for (isa, least) in [("x86_64-v4", 55), ("x86_64-v3", 27), ("x86_64", 0)] {
        let isa: Isa = isa.parse().unwrap();
        let calls = |seed: &u64| dump(&random_loop(*seed), isa).unwrap().clif.contains("u2:");
        let found = (0..200).filter(calls).count();
        assert!(found >= 2 * least && (least > 0 || found == 0), "{isa}: {found} of 200 loops");
    }
}
