//! Every scalar operation on every type and the edge values of it, as kernels.

use tensorc_abi::DType;
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Kernel, KernelBuilder, LoopKind, Operand};
use tensorc_ir::scalar::{CmpOp, MathFn, Scalar, ScalarOp};

fn edges(dtype: DType, few: bool) -> Vec<Scalar> {
    if dtype == DType::Bool {
        return vec![Scalar::bool(false), Scalar::bool(true)];
    }
    if dtype.is_float() {
        let mut values =
            vec![0.0, -0.0, 1.0, -1.5, 0.5, 2.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 3.0e9, -7.25, 1e-40];
        if !few {
            values.extend([
                1e-7,
                -3e-6,
                6.1e-5,
                65504.0,
                65519.0,
                65520.0,
                -65536.0,
                1e38,
                -1e39,
                127.5,
                128.5,
                -128.9,
                255.5,
                256.0,
                32767.9,
                2147483648.0,
                -2147483649.0,
                4294967295.5,
                1.8e19,
                -9.3e18,
                1.0009765625,
                1.00048828125,
                0.1,
                3.5,
                5e-324,
                1.17549435e-38,
                0.333333333333,
                -2.0,
                100.7,
            ]);
        }
        return values.into_iter().map(|x| Scalar::from_f64(dtype, x)).collect();
    }
    let bits = dtype.size() * 8;
    let mut values: Vec<u64> = vec![0, 1, 2, u64::MAX, 1 << (bits - 1), (1 << (bits - 1)) - 1, 7, u64::MAX - 6];
    if !few {
        values.extend([3, 5, 8, 15, 16, 31, 32, 33, 63, 64, 100, (1 << (bits - 1)) + 1, 0x5555_5555_5555_5555]);
        values.extend([0x1234_5678_9abc_def1, 0x8123_4567, (1 << 24) + 1, (1 << 53) + 1]);
    }
    let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
    values.into_iter().map(|bits| Scalar { dtype, bits: bits & mask }).collect()
}

fn operations() -> Vec<ScalarOp> {
    let mut ops = vec![
        ScalarOp::Neg,
        ScalarOp::Abs,
        ScalarOp::Sqrt,
        ScalarOp::Floor,
        ScalarOp::Ceil,
        ScalarOp::Trunc,
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
        ScalarOp::Fma,
        ScalarOp::Select,
    ];
    ops.extend([CmpOp::Eq, CmpOp::Ne, CmpOp::Lt, CmpOp::Le, CmpOp::Gt, CmpOp::Ge].map(ScalarOp::Cmp));
    ops.extend(DType::COMPUTED.map(ScalarOp::Cast));
    ops.extend(DType::COMPUTED.map(ScalarOp::Bitcast));
    ops.extend(MathFn::ALL.map(ScalarOp::Math));
    ops
}

/// Whether the operation is defined, and on values that memory can hold.
fn result(op: ScalarOp, types: &[DType]) -> Option<DType> {
    match op {
        ScalarOp::Math(_) if types[0] == DType::F32 => None,
        // Bytes other than 0 and 1 are no bools.
        ScalarOp::Bitcast(DType::Bool) if types[0] != DType::Bool => None,
        _ => op.result(types).ok(),
    }
}

/// `out[i] = op(in0[i], in1[i], …)`, some operands constant, with `lanes` lanes (1: a serial loop).
fn kernel(op: ScalarOp, types: &[DType], constants: &[Option<Scalar>], n: u64, lanes: u64) -> Kernel {
    let mut b = KernelBuilder::new(op.name());
    let inputs: Vec<_> = types.iter().map(|t| b.param("in", *t, n, false)).collect();
    let out = b.param("out", result(op, types).unwrap(), n, true);
    let body = |b: &mut KernelBuilder, at: Index| {
        let args: Vec<Operand> = inputs
            .iter()
            .zip(constants)
            .map(|(buf, c)| c.map_or_else(|| b.load(*buf, at.clone()), Operand::Const))
            .collect();
        let r = b.op(op, &args);
        b.store(out, at, r);
        Ok::<(), ()>(())
    };
    if lanes == 1 {
        b.for_range("i", n, LoopKind::Serial, body).unwrap();
    } else {
        let range = (Index::default(), Index::constant(n), lanes as i64);
        b.for_loop("i", range, LoopKind::Serial, |b, i| {
            b.for_range("l", lanes, LoopKind::Vector, |b, l| body(b, i.add(&l)))
        })
        .unwrap();
    }
    b.finish()
}

/// One operation in one form.
pub struct Case {
    pub op: ScalarOp,
    pub types: Vec<DType>,
    /// Operands that the code knows.
    pub constants: Vec<Option<Scalar>>,
    pub inputs: Vec<Vec<Scalar>>,
    pub lanes: u64,
}

impl Case {
    pub fn result(&self) -> DType {
        result(self.op, &self.types).unwrap()
    }

    pub fn kernel(&self) -> Kernel {
        kernel(self.op, &self.types, &self.constants, self.inputs[0].len() as u64, self.lanes)
    }

    /// The operands, and memory for the result.
    pub fn buffers(&self) -> Vec<Vec<u8>> {
        let bytes = |values: &Vec<Scalar>| {
            let size = values[0].dtype.size();
            let mut bytes = vec![0u8; values.len() * size];
            values.iter().zip(bytes.chunks_exact_mut(size)).for_each(|(v, b)| v.write(b));
            bytes
        };
        let result = vec![0xa5; self.inputs[0].len() * self.result().size()];
        self.inputs.iter().map(bytes).chain([result]).collect()
    }

    /// Fails unless the elements of the result are what the definition says.
    pub fn check(&self, result: &[u8]) {
        for (at, found) in super::elements(self.result(), result).into_iter().enumerate() {
            let args: Vec<Scalar> = self.inputs.iter().zip(&self.constants).map(|(v, c)| c.unwrap_or(v[at])).collect();
            let expected = self.op.eval(&args);
            let shown: Vec<String> = args.iter().map(|a| format!("{:#x} ({})", a.bits, a.as_f64())).collect();
            assert!(
                super::same(expected, found),
                "{:?} on {:?}, {} lanes, constants {:?}: f({}) is {:#x}, computed {:#x}",
                self.op,
                self.types,
                self.lanes,
                self.constants,
                shown.join(", "),
                expected.bits,
                found.bits,
            );
        }
    }
}

/// All of them.
pub fn cases() -> Vec<Case> {
    let mut out = vec![];
    for op in operations() {
        for dtype in DType::COMPUTED {
            let types = match op {
                ScalarOp::Select => vec![DType::Bool, dtype, dtype],
                _ => vec![dtype; op.arity()],
            };
            if result(op, &types).is_none() {
                continue;
            }
            let values: Vec<Vec<Scalar>> = types.iter().map(|t| edges(*t, op.arity() == 3)).collect();
            let mut inputs: Vec<Vec<Scalar>> = vec![vec![]; types.len()];
            let total: usize = values.iter().map(Vec::len).product();
            for at in 0..total.next_multiple_of(16) {
                let mut rest = at % total;
                for (input, values) in inputs.iter_mut().zip(&values) {
                    input.push(values[rest % values.len()]);
                    rest /= values.len();
                }
            }
            let mut constants = vec![vec![None; types.len()]];
            if op.arity() > 1 && !matches!(op, ScalarOp::Math(_)) {
                for position in 0..types.len() {
                    for value in edges(types[position], true) {
                        let mut c = vec![None; types.len()];
                        c[position] = Some(value);
                        constants.push(c);
                    }
                }
            }
            for constants in constants {
                for lanes in [1, 4, 8, 16] {
                    let (types, constants, inputs) = (types.clone(), constants.clone(), inputs.clone());
                    out.push(Case { op, types, constants, inputs, lanes });
                }
            }
        }
    }
    out
}
