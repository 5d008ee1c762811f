//! Functions of the run-time library that generated code calls: what they are named, how they are called.

use std::collections::BTreeMap;

use cranelift_codegen::ir::{AbiParam, LibCall, Signature, Type, types};
use cranelift_codegen::isa::CallConv;
use tensorc_abi::DType;
use tensorc_ir::diag::{Code, Diagnostic, Result};
use tensorc_ir::kir::{Kernel, Operand, Stmt};
use tensorc_ir::scalar::{MathFn, ScalarOp};

/// How an external function is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prototype {
    pub param: Type,
    pub arity: usize,
    pub result: Option<Type>,
}

impl Prototype {
    pub fn signature(self, call_conv: CallConv) -> Signature {
        let mut signature = Signature::new(call_conv);
        signature.params = vec![AbiParam::new(self.param); self.arity];
        signature.returns = self.result.into_iter().map(AbiParam::new).collect();
        signature
    }
}

/// The function that computes `op` on a scalar of type `from`, if it is not open coded.
pub(super) fn callee(op: ScalarOp, from: DType) -> Option<(String, Prototype)> {
    let float = |d| if d == DType::F32 { types::F32 } else { types::F64 };
    match op {
        ScalarOp::Math(f) if from == DType::F64 => {
            let p = Prototype { param: types::F64, arity: f.arity(), result: Some(types::F64) };
            Some((format!("tc_{}_f64", f.name()), p))
        }
        ScalarOp::Rem if matches!(from, DType::F32 | DType::F64) => {
            Some((format!("tc_fmod_{from}"), Prototype { param: float(from), arity: 2, result: Some(float(from)) }))
        }
        ScalarOp::Cast(to @ (DType::F16 | DType::BF16)) => {
            let (name, param) = match from {
                DType::F64 => ("f64", types::F64),
                DType::I32 | DType::U32 | DType::I64 => ("i64", types::I64),
                DType::U64 => ("u64", types::I64),
                _ => return None,
            };
            Some((format!("tc_{name}_to_{to}"), Prototype { param, arity: 1, result: Some(types::I32) }))
        }
        _ => None,
    }
}

/// The function that applies `f` to a strip of f32: its address, then the number of elements.
pub(super) fn strip(f: MathFn) -> (String, Prototype) {
    (format!("tc_v{}_f32", f.name()), Prototype { param: types::I64, arity: 2, result: None })
}

/// Every function the kernel may call, by name.
pub(super) fn needed(kernel: &Kernel) -> BTreeMap<String, Prototype> {
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
                Stmt::Apply { f, .. } => out.extend([strip(*f)]),
                _ => {}
            }
        }
    }
    let mut out = BTreeMap::new();
    walk(kernel, &kernel.body, &mut out);
    out
}

/// The address of a function in the run-time library.
pub(super) fn address(name: &str, resolve: &dyn Fn(&str) -> Option<*const u8>) -> Result<*const u8> {
    resolve(name)
        .ok_or_else(|| Diagnostic::new(Code::Unsupported, format!("the run-time library has no function `{name}`")))
}

/// What Cranelift calls on processors without an instruction: functions of the run-time library.
pub(super) fn libcall(call: LibCall) -> String {
    match call {
        LibCall::CeilF32 => "tc_ceil_f32".into(),
        LibCall::CeilF64 => "tc_ceil_f64".into(),
        LibCall::FloorF32 => "tc_floor_f32".into(),
        LibCall::FloorF64 => "tc_floor_f64".into(),
        LibCall::TruncF32 => "tc_trunc_f32".into(),
        LibCall::TruncF64 => "tc_trunc_f64".into(),
        LibCall::NearestF32 => "tc_round_f32".into(),
        LibCall::NearestF64 => "tc_round_f64".into(),
        LibCall::FmaF32 => "tc_fma_f32".into(),
        LibCall::FmaF64 => "tc_fma_f64".into(),
        LibCall::X86Pshufb => "tc_x86_pshufb".into(),
        // Of the C library; kernels have no use for them.
        other => cranelift_module::default_libcall_names()(other),
    }
}

/// The names of all of these.
pub(super) fn libcalls() -> impl Iterator<Item = String> {
    LibCall::all_libcalls().iter().map(|call| libcall(*call)).filter(|name| name.starts_with("tc_"))
}
