//! Running folds along an axis.

use crate::blocks::{COPY_LANES, in_blocks, in_vectors};
use crate::kernel::{bounded, coordinates};
use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    let entry = |name, doc, op, unit| {
        let infer = rule(|cx| {
            cx.copy_shape(0, 0)?;
            cx.same_dtype(0, 0)
        });
        define(name, doc, prim(move |cx| scan(cx, name, op, unit)), infer)
            .operand("x", NUMBERS)
            .static_operands(&["axis"], INDICES)
            .param("exclusive", false, "leave out the element itself")
            .param("reverse", false, "from the end of the axis")
            .ulp(1.0)
    };
    vec![
        entry("cumsum", "Running sums along an axis.", ScalarOp::Add, 0.0)
            .gradient(derivative(crate::adjoint::of_cumsum))
            .onnx("CumSum", 11),
        entry("cumprod", "Running products along an axis.", ScalarOp::Mul, 1.0)
            .gradient(derivative(crate::adjoint::of_cumprod))
            .onnx("CumProd", 26),
    ]
}

/// Bytes of totals that are kept in registers: half of the vectors of 128 bits that there are.
const TOTAL_BYTES: i64 = 128;

/// Totals of neighbouring lines lie in memory, not in registers, if they take at least the first number of bytes. A task has totals
/// of at most the second one.
const ROW_BYTES: [i64; 2] = [512, 4096];

/// Lines that are not neighbours and advance together, so that none waits for its own sum.
const LINES: i64 = 8;

/// A tensor in which a fold runs along the middle one of three axes.
struct Scan<'k> {
    k: &'k KernelScope,
    input: KernelTensor<'k>,
    output: KernelTensor<'k>,
    op: ScalarOp,
    unit: f64,
    /// The type of totals.
    wide: DType,
    exclusive: bool,
    reverse: bool,
    /// Elements of a line.
    n: Extent,
}

impl Scan<'_> {
    /// A step of the line whose total is in a register.
    fn advance(&self, totals: KernelTensor<'_>, register: &Index, at: [&Index; 3]) {
        let value = self.input.get_as(at, self.wide);
        let before = totals.get(register);
        let after = before.binary(self.op, value);
        totals.set(register, after);
        self.output.set_cast(at, if self.exclusive { before } else { after });
    }

    fn steps(&self, body: impl FnOnce(&Index)) {
        self.k.each("step", self.n, |step| match self.reverse {
            true => body(&step.scale(-1).offset(self.n - 1)),
            false => body(step),
        });
    }

    /// Scans up to `count` neighbouring lines from `first` on, whose totals are in memory.
    fn rows(&self, outer: &Index, (first, last): (&Index, &Index), count: i64) {
        let totals = self.k.memory("totals", self.wide, [count as u64], MemorySpace::Stack);
        let each = |body: &dyn Fn(&Index, &Index)| {
            in_vectors(self.k, (first, last), COPY_LANES, |inner| body(&inner.sub(first), inner));
        };
        each(&|place, _| totals.set(place, self.unit));
        self.steps(|along| each(&|place, inner| self.advance(totals, place, [outer, along, inner])));
    }

    /// Scans `count` lines at once, the first `vectors` of which are neighbours; `line` has the outer and the inner coordinate of
    /// one by its number.
    fn lines(&self, count: i64, vectors: i64, line: &dyn Fn(&Index) -> [Index; 2]) {
        let (k, single) = (self.k, count - vectors);
        let totals = |name, n: i64| k.memory(name, self.wide, [n as u64], MemorySpace::Register);
        let packed = (vectors > 0).then(|| totals("totals", vectors));
        let rest = (single > 0).then(|| totals("total", single));
        let each = |body: &dyn Fn(KernelTensor<'_>, &Index, &Index)| {
            if let Some(packed) = packed {
                k.lanes("l", vectors as u64, |l| body(packed, l, l));
            }
            if let Some(rest) = rest {
                k.unrolled("r", single, |r| body(rest, r, &r.offset(vectors)));
            }
        };
        each(&|totals, register, _| totals.set(register, self.unit));
        self.steps(|along| {
            each(&|totals, register, number| {
                let [outer, inner] = line(number);
                self.advance(totals, register, [&outer, along, &inner]);
            });
        });
    }
}

/// A running fold along the axis of operand 1. Lines along it are independent; some advance together, as vectors where they are
/// neighbours.
fn scan(cx: &NodeCtx<'_>, name: &str, op: ScalarOp, unit: f64) -> Result<Prim, OpError> {
    let x = cx.input(0)?;
    let axis = cx.value(1).and_then(TensorData::item).ok_or("operand `axis` must be one number")?;
    let axis = normalize_axis(axis.as_i64(), x.rank())?;
    let (outer, n, inner) = (x.dims.range(..axis).count(), x.dims.at(axis), x.dims.range(axis + 1..).count());
    let spread = DenseType::new(x.dtype, [outer, n, inner].into_iter().collect::<Extents>());
    let k = &KernelScope::new(name);
    let (input, output) = (k.input("x", &spread), k.output("y", &spread));
    let (exclusive, reverse) = (cx.params.flag("exclusive"), cx.params.flag("reverse"));
    let scan = Scan { k, input, output, op, unit, wide: compute_type(x.dtype), exclusive, reverse, n };
    let number = |line: &Index| {
        let line = coordinates(line, &[outer, inner]);
        [line[0].clone(), line[1].clone()]
    };
    match cx.grain {
        Grain::Fine => k.parallel_each("line", outer * inner, |line| scan.lines(1, 0, &|_| number(line))),
        Grain::Coarse if inner.example() < 4 => in_blocks(k, (Extent::ONE, outer * inner), LINES, |_, first, count| {
            scan.lines(count, 0, &|i| number(&first.add(i)));
        }),
        Grain::Coarse if inner.example() * scan.wide.size() as i64 >= ROW_BYTES[0] => {
            let row = ROW_BYTES[1] / scan.wide.size() as i64;
            k.parallel(&[outer, inner.div_ceil(row)], |at| {
                let first = k.bound("first", &at[1].scale(row));
                let last = k.bound("last", &bounded(&first.offset(row), inner));
                scan.rows(&at[0], (&first, &last), row);
            });
        }
        Grain::Coarse => {
            let width = TOTAL_BYTES / scan.wide.size() as i64;
            in_blocks(k, (outer, inner), width, |outer, first, count| {
                scan.lines(count, count / 4 * 4, &|i| [outer.clone(), first.add(i)]);
            });
        }
    }
    k.prim()
}
