//! The names that definitions of operators are written with.

pub(crate) use tensorc_ir::build::Builder;
pub(crate) use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
pub(crate) use tensorc_ir::graph::Value;
pub(crate) use tensorc_ir::index::Index;
pub(crate) use tensorc_ir::infer::{InferCtx, normalize_axis};
pub(crate) use tensorc_ir::op::{Compute, GradCtx, Infer, NodeCtx, OpDef, OpError, ResultCount, ScalarCtx, TypeRule};
pub(crate) use tensorc_ir::params::{ParamKind, ParamValue, Params};
pub(crate) use tensorc_ir::prim::{Prim, View};
pub(crate) use tensorc_ir::scalar::{Ex, Scalar, ScalarBuilder, ScalarFn};
pub(crate) use tensorc_ir::{Allowed, DType, DenseType, Dim, Shape, TensorData};

pub(crate) use crate::compose::{cast, compute_type, number, reduce, reshape, with_number};
pub(crate) use crate::def::{
    BOOLS, Define, FLOATS, INDICES, INTS, NUMBERS, composite, define, elementwise, float_param, operand, prim, rule,
    scalar,
};
pub(crate) use crate::rules::{ints, output_dims, partial, rank_in, ranked, same, shaped, tabulated};
pub(crate) use crate::views::{Build, OrFail, maybe, vars};
