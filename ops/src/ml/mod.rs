//! Operators of classical machine learning, domain `ai.onnx.ml`: trees, linear models, support vectors, and what prepares their
//! features.

mod category;
mod coupling;
mod feature;
mod linear;
mod score;
mod svm;
mod tree;

use crate::prelude::*;
use tensorc_ir::op::OnnxName;

/// The domain of all of them.
const DOMAIN: &str = OnnxName::ML;

/// Element types of features.
const NUMBERS_READ: &[DType] = &[DType::F32, DType::F64, DType::I64, DType::I32];

pub fn ops() -> Vec<OpDef> {
    let families = [tree::ops(), linear::ops(), svm::ops(), feature::ops(), category::ops()];
    families.into_iter().flatten().collect()
}

/// A constant of f32.
fn f32s<'g>(g: GraphScope<'g>, dims: &[usize], numbers: &[f64]) -> Result<Tensor<'g>> {
    let dims: Vec<u64> = dims.iter().map(|n| *n as u64).collect();
    let numbers: Vec<f32> = numbers.iter().map(|x| *x as f32).collect();
    let data = TensorData::f32s(&dims, &numbers).ok_or_else(|| g.fail("numbers do not fill a shape"))?;
    Ok(g.constant(data))
}

/// Results of a classifier: a label for each row of the first operand, and scores.
fn labelled(cx: &mut InferCtx<'_>, scores: usize) -> Result<(), OpError> {
    cx.set_output_dtype(0, DType::I64)?;
    let rows = score::row_dims(cx)?.map(|[rows, _]| rows);
    partial(cx, 0, &[rows])?;
    rows_with(cx, 1, scores as i64, Some(DType::F32))
}

/// A result with a row for each row of the first operand.
fn rows_with(cx: &mut InferCtx<'_>, output: usize, columns: i64, dtype: Option<DType>) -> Result<(), OpError> {
    reject_if(columns < 1, || format!("there are {columns} targets"))?;
    match dtype {
        Some(dtype) => cx.set_output_dtype(output, dtype)?,
        None => cx.same_dtype(output, 0)?,
    }
    let rows = score::row_dims(cx)?.map(|[rows, _]| rows);
    partial(cx, output, &[rows, Some(Dim::Const(columns as u64))])
}
