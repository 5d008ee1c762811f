//! Kernels written for processors, as launches: an iteration of the parallel loop to a thread.

use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::index::Index;
use tensorc_ir::kir::{Kernel, LoopKind, Operand, Stmt, Var, VarInfo, WARP};
use tensorc_ir::scalar::{CmpOp, MathLibrary, Scalar, ScalarOp};
use tensorc_ir::{DType, Extent};

use super::functions::expanded;

/// Threads of a block.
const THREADS: u64 = 128;

/// The kernel as a launch. One without a parallel loop runs in one thread.
///
/// # Errors
/// [`DiagnosticCode::Unsupported`] if it applies library functions to strips, or takes scalars.
pub fn launched(kernel: &Kernel, library: &dyn MathLibrary) -> Result<Kernel> {
    let refuse =
        |why: &str| Err(Diagnostic::new(DiagnosticCode::Unsupported, format!("kernel `{}` {why}", kernel.name)));
    if has_vector_calls(&kernel.body) {
        return refuse("calls vector math, which is not available on a GPU");
    }
    let mut out = Kernel { scalars: vec![], body: vec![], ..kernel.clone() };
    let mut fresh = |name: &str, dtype: DType| {
        out.vars.push(VarInfo { name: name.into(), dtype });
        Var(out.vars.len() as u32 - 1)
    };
    let (block, thread) = (fresh("b", DType::I64), fresh("t", DType::I64));
    let (threads, extent, var, body) = match &kernel.body[..] {
        [Stmt::For { var, kind: LoopKind::Parallel, body, .. }] => {
            (THREADS, kernel.parallel_extent(), *var, body.clone())
        }
        _ if !kernel.scalars.is_empty() => return refuse("takes scalars"),
        body => (WARP as u64, Extent::ONE, fresh("p", DType::I64), body.to_vec()),
    };
    let inside = fresh("inside", DType::Bool);
    let blocks = extent.div_ceil(threads);
    let p = Index::var(block.0).scale(threads as i64).add(&Index::var(thread.0));
    let mut program = vec![Stmt::LetIndex { var, index: p }];
    let bound = match extent.known() {
        Some(extent) => Operand::Const(Scalar::i64(extent)),
        None => {
            let bound = fresh("n", DType::I64);
            program.push(Stmt::LetIndex { var: bound, index: Index::constant(extent) });
            Operand::Var(bound)
        }
    };
    let compare = [Operand::Var(var), bound];
    program.extend([
        Stmt::Let { var: inside, op: ScalarOp::Cmp(CmpOp::Lt), args: compare.into_iter().collect() },
        Stmt::If { cond: Operand::Var(inside), then: body, otherwise: vec![] },
    ]);
    let nest = |var, n: Extent, kind, body| Stmt::For {
        var,
        lo: Index::default(),
        hi: Index::constant(n),
        step: 1,
        kind,
        body,
    };
    let threads = nest(thread, threads.into(), LoopKind::Threads, program);
    out.body = vec![nest(block, blocks, LoopKind::Grid, vec![threads])];
    Ok(expanded(out, library))
}

fn has_vector_calls(body: &[Stmt]) -> bool {
    body.iter().any(|stmt| match stmt {
        Stmt::VectorMath { .. } => true,
        Stmt::For { body, .. } => has_vector_calls(body),
        Stmt::If { then, otherwise, .. } => has_vector_calls(then) || has_vector_calls(otherwise),
        _ => false,
    })
}
