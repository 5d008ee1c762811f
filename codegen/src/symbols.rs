//! Functions of the run-time library that generated code calls: what they are named, how they are called.

use std::collections::BTreeMap;

use tensorc_abi::DType;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::kir::{Kernel, Operand, Stmt};
use tensorc_ir::scalar::{MathFn, ScalarOp};

/// How an external function is called: by the C convention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prototype {
    /// The type of every parameter; addresses are i64.
    pub param: DType,
    pub arity: usize,
    pub result: Option<DType>,
}

/// The function that computes `op` on a scalar of type `from`, if it is not open coded.
pub(crate) fn callee(op: ScalarOp, from: DType) -> Option<(String, Prototype)> {
    match op {
        ScalarOp::Math(f) if from == DType::F64 => {
            let p = Prototype { param: DType::F64, arity: f.arity(), result: Some(DType::F64) };
            Some((format!("tc_{}_f64", f.name()), p))
        }
        ScalarOp::Rem if matches!(from, DType::F32 | DType::F64) => {
            Some((format!("tc_fmod_{from}"), Prototype { param: from, arity: 2, result: Some(from) }))
        }
        ScalarOp::Scale => {
            Some(("tc_scale_f32".into(), Prototype { param: DType::F32, arity: 2, result: Some(DType::F32) }))
        }
        ScalarOp::Cast(to @ (DType::F16 | DType::BF16)) => {
            let (name, param) = match from {
                DType::F64 => ("f64", DType::F64),
                DType::I32 | DType::U32 | DType::I64 => ("i64", DType::I64),
                DType::U64 => ("u64", DType::I64),
                _ => return None,
            };
            Some((format!("tc_{name}_to_{to}"), Prototype { param, arity: 1, result: Some(DType::U32) }))
        }
        _ => None,
    }
}

/// Functions of the run-time library that do what functions of C do, by the names in C, where LLVM calls them on
/// processors without an instruction.
pub(crate) const C_FUNCTIONS: [(&str, &str); 10] = [
    ("ceilf", "tc_ceil_f32"),
    ("ceil", "tc_ceil_f64"),
    ("floorf", "tc_floor_f32"),
    ("floor", "tc_floor_f64"),
    ("truncf", "tc_trunc_f32"),
    ("trunc", "tc_trunc_f64"),
    ("roundevenf", "tc_round_f32"),
    ("roundeven", "tc_round_f64"),
    ("fmaf", "tc_fma_f32"),
    ("fma", "tc_fma_f64"),
];

/// What is called instead of a function of C: itself, unless the run-time library has it.
pub(crate) fn callee_name(name: &str) -> String {
    C_FUNCTIONS.iter().find(|(c_name, _)| *c_name == name).map_or(name, |(_, own)| own).to_owned()
}

/// The function that applies `f` to a strip of f32: its address, then the number of elements.
pub(crate) fn strip(f: MathFn) -> (String, Prototype) {
    (format!("tc_v{}_f32", f.name()), Prototype { param: DType::I64, arity: 2, result: None })
}

/// Every function the kernel may call, by name.
pub(crate) fn needed(kernel: &Kernel) -> BTreeMap<String, Prototype> {
    fn walk(kernel: &Kernel, body: &[Stmt], out: &mut BTreeMap<String, Prototype>) {
        for stmt in body {
            match stmt {
                Stmt::For { body, .. } => walk(kernel, body, out),
                Stmt::If { then, otherwise, .. } => {
                    walk(kernel, then, out);
                    walk(kernel, otherwise, out);
                }
                Stmt::Let { op, args, .. } => {
                    let from = args.first().map(|a| match a {
                        Operand::Var(v) => kernel.var(*v).dtype,
                        Operand::Const(c) => c.dtype,
                    });
                    out.extend(from.and_then(|from| callee(*op, from)));
                }
                Stmt::VectorMath { f, .. } => out.extend([strip(*f)]),
                _ => {}
            }
        }
    }
    let mut out = BTreeMap::new();
    walk(kernel, &kernel.body, &mut out);
    out
}

/// The address of a function in the run-time library.
pub(crate) fn address(name: &str, resolve: &dyn Fn(&str) -> Option<*const u8>) -> Result<*const u8> {
    resolve(name).ok_or_else(|| {
        Diagnostic::new(DiagnosticCode::Unsupported, format!("the run-time library has no function `{name}`"))
    })
}
