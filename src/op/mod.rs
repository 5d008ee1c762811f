//! Operators written by users, in their own crates.
//!
//! An operator is a value, an [`OpDef`], that a compiler is made with. From then on it is like every
//! other: callable on arrays and in graphs, with inference, gradient and text form. There are three
//! kinds: an expression ([`scalar`], [`crate::scalar_op!`]), which fuses and becomes machine code; a
//! graph of operators ([`composite`]), which fuses as they do; and a closure ([`closure`]), which runs
//! as it is.
//!
//! ```
//! use tensorc_nd::{Runtime, RuntimeOptions};
//! use tensorc::{Compiler, Options, scalar_op};
//!
//! scalar_op! {
//!     /// ½σ²x² near 0, |x| - ½/σ² elsewhere.
//!     pub smooth_l1(x; scalar: f64 = 1.0, "σ") = {
//!         let s2 = scalar * scalar;
//!         x.abs().lt(&x.lit(1.0 / s2)).select(&(0.5 * s2 * &x * &x), &(x.abs() - 0.5 / s2))
//!     }
//! }
//!
//! # fn main() -> Result<(), tensorc_nd::Error> {
//! let compiler = Compiler::with_operators(Options::default(), [smooth_l1()])?;
//! let rt = Runtime::with_compiler(compiler, RuntimeOptions::default())?;
//! let x = rt.array(&[4], &[1f32, 2.0, 3.0, 4.0])?;
//! let y = rt.op("smooth_l1")?.arg(&x).invoke()?;
//! assert_eq!(y.to_vec::<f32>()?, [0.5, 1.5, 2.5, 3.5]);
//! # Ok(())
//! # }
//! ```

mod check;
mod closure;
mod macros;
mod reference;

#[doc(hidden)]
pub use macros::{next_operand, parameter, with_scalar_form};

pub use check::{GradientCheck, GradientError, check_gradient};
pub use closure::{BackwardCall, Closure, ClosureCall, Keep, Random, closure};
pub use reference::reference;

pub use tensorc_ir::build::Builder;
pub use tensorc_ir::diag::{Diagnostic, DiagnosticCode};
pub use tensorc_ir::graph::Value;
pub use tensorc_ir::infer::InferCtx;
pub use tensorc_ir::op::{
    Accuracy, Compute, Grad, GradCtx, Infer, InputSpec, NodeCtx, OpDef, OpError, ResultCount, ScalarCtx, TypeRule,
};
pub use tensorc_ir::params::{ParamKind, ParamSpec, ParamValue, Params};
pub use tensorc_ir::scalar::{CmpOp, Ex, MathFn, Scalar, ScalarBuilder};
pub use tensorc_ir::{DenseType, Dim, Shape, TensorData, TensorType};
pub use tensorc_ops::compose;
pub use tensorc_ops::def::{Define, FLOATS, INTS, NUMBERS};

/// An element-wise operator on float operands of one type, from the value of one element. Operands broadcast;
/// f16 and bf16 arrive as f32 and the result is rounded. The gradient follows from the expression.
///
/// The methods of [`Define`] add parameters, documentation, other element types ([`Define::types`]), equal
/// shapes instead of broadcasting ([`Define::equal_shapes`]) and a gradient of one's own.
pub fn scalar(
    name: &'static str,
    operands: &[&'static str],
    value: impl Fn(&ScalarCtx<'_>, &[Ex]) -> Ex + Send + Sync + 'static,
) -> OpDef {
    // How expressions round is up to their author: the error bound of built-in entries does not apply.
    tensorc_ops::def::elementwise(name, "", FLOATS, operands, value).ulp(f64::INFINITY)
}

/// An operator made of others, on float operands of one type; `types` says what it results in, see [`like`] and
/// [`types`]. The gradient follows from its parts unless [`Define::gradient`] states it.
pub fn composite(
    name: &'static str,
    operands: &[&'static str],
    types: Infer,
    body: impl Fn(&mut Builder<'_>, &NodeCtx<'_>, &[Value]) -> Result<Value, Diagnostic> + Send + Sync + 'static,
) -> OpDef {
    let compute = tensorc_ops::def::composite(move |b, cx, args| {
        let args: Vec<Value> = args.iter().copied().flatten().collect();
        body(b, cx, &args)
    });
    operands.iter().fold(OpDef::new(name, "", compute, types), |def, operand| def.group(operand, FLOATS))
}

/// The only result has type and shape of an operand; each follows from the other.
pub fn like(operand: usize) -> Infer {
    tensorc_ops::def::rule(move |cx| tensorc_ops::same_type(cx, 0, operand))
}

/// Result types from operand types, as soon as all of these are known. Optional operands that are absent do not
/// count.
pub fn types(rule: impl Fn(&Params, &[DenseType]) -> Result<Vec<DenseType>, OpError> + Send + Sync + 'static) -> Infer {
    tensorc_ops::def::rule(move |cx| {
        let given = (0..cx.input_count()).filter(|i| cx.has_input(*i)).map(|i| cx.input(i).dense());
        let Some(given) = given.collect::<Option<Vec<DenseType>>>() else { return Ok(()) };
        let results = rule(cx.params, &given)?;
        if results.len() < cx.output_count() {
            let why = format!("{} result types for {} results", results.len(), cx.output_count());
            return Err(OpError(why));
        }
        for (i, ty) in results.iter().take(cx.output_count()).enumerate() {
            cx.set_output_dtype(i, ty.dtype)?;
            cx.set_output_dims(i, ty.dims.iter().map(|d| Dim::Const(*d)))?;
        }
        Ok(())
    })
}
