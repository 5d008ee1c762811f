//! The names that definitions of operators are written with.

pub(crate) use tensorc_ir::build::Builder;
pub(crate) use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
pub(crate) use tensorc_ir::dim::Equation;
pub(crate) use tensorc_ir::extent::Axes;
pub(crate) use tensorc_ir::graph::Value;
pub(crate) use tensorc_ir::index::{Index, delinearize, linearize, unbounded};
pub(crate) use tensorc_ir::infer::{InferCtx, normalize_axis};
pub(crate) use tensorc_ir::kir::{Kernel, MemorySpace};
pub(crate) use tensorc_ir::op::{
    Compute, GradCtx, Grain, Infer, NodeCtx, OpDef, OpError, ResultCount, ScalarCtx, TypeRule,
};
pub(crate) use tensorc_ir::params::{ParamKind, ParamValue, Params};
pub(crate) use tensorc_ir::prim::{Contraction, Gather, Prim, Reduction, View};
pub(crate) use tensorc_ir::scalar::{CmpOp, Ex, MathFn, Scalar, ScalarBuilder, ScalarFn, ScalarOp};
pub(crate) use tensorc_ir::{Allowed, DType, DenseType, Dim, Dims, Extent, Extents, Shape, TensorData};

pub(crate) use crate::compose::{compute_type, operand, reshape};
pub(crate) use crate::def::{
    BOOLS, Define, FLOATS, INDICES, INTS, NUMBERS, calling, define, elementwise, float_param, host, prim, rule, scalar,
    shape_rule,
};
pub(crate) use crate::graph::{Gradients, GraphScope, Tensor, derivative, formula, formulas};
pub(crate) use crate::kernel::{KernelScope, KernelTensor, KernelValue, bounded};
pub(crate) use crate::rules::{
    agree, agree_dtypes, agree_shapes, broadcasts_to, default_dtype, dtype_or_first, extent, extents, ints, length,
    multiple_of, one_element, open_rank_in, open_ranked, output_dims, partial, rank_in, ranked, reject_if, same,
    shaped, tabulated,
};
pub(crate) use crate::views::{Build, OrFail, followed_by, lowest, max_of, row_major, sum_of, vars, widen};
pub(crate) use crate::window::{AutoPad, SpatialWindow};
