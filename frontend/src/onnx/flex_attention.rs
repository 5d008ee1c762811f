//! `FlexAttention` of the preview domain: attention with graphs that modify scores and
//! probabilities.
//!
//! It is written out in standard operators, since operators of the graph cannot hold graphs. As in
//! the specification both queries and keys are multiplied by the square root of the scale, and the
//! softmax is computed in f32 unless the operands are f64 or the node says otherwise.

use std::rc::Rc;
use std::sync::Arc;

use tensorc_ir::TensorData;
use tensorc_ir::scalar::Scalar;

use super::attribute;
use super::error::OnnxError;
use super::import::Importer;
use super::load::Opsets;
use super::proto::{DataType, GraphProto, NodeProto};
use super::tensor::data_type;
use super::upgrade::{ValueFacts, int};
use super::writer::{NodeWriter, ints};

impl Importer<'_> {
    /// Imports the node; the inner error lists what is not supported.
    pub(super) fn flex_attention(
        &mut self,
        mut node: NodeProto,
        opsets: &Rc<Opsets>,
        label: &Arc<str>,
    ) -> Result<Result<(), Vec<String>>, OnnxError> {
        for input in &node.input {
            self.lookup(input)?;
        }
        let mut take = |name: &str| {
            let at = node.attribute.iter().position(|a| a.name() == name)?;
            Some(node.attribute.swap_remove(at))
        };
        let [scale, precision] = ["scale", "softmax_precision"].map(&mut take);
        let scale = scale.as_ref().map(attribute::float).transpose();
        let precision = precision.as_ref().map(attribute::int).transpose();
        let (scale, precision) = match (scale, precision) {
            (Ok(scale), Ok(precision)) => (scale, precision),
            (Err(why), _) | (_, Err(why)) => return Ok(Err(vec![why])),
        };
        let [score_mod, prob_mod] = ["score_mod", "prob_mod"].map(|name| take(name).and_then(|a| a.g));
        let ([q, k, v], [output]) = (node.input.as_slice(), node.output.as_slice()) else {
            return Ok(Err(vec!["it needs three operands and one result".to_owned()]));
        };
        let shape = |dims: Option<Vec<Option<u64>>>| {
            dims.and_then(|d| match d.as_slice() {
                [_, Some(heads), _, Some(size)] => Some((*heads as i64, *size as i64)),
                _ => None,
            })
        };
        let [q_dims, k_dims, v_dims] = [q, k, v].map(|name| shape(self.dims(name)));
        let (Some((q_heads, q_size)), Some(k_dims), Some(v_dims), Some(dtype)) =
            (q_dims, k_dims, v_dims, self.dtype(q))
        else {
            return Ok(Err(vec!["the element type, heads and head sizes must be known".to_owned()]));
        };
        if k_dims.0 < 1 || q_heads % k_dims.0 != 0 {
            return Ok(Err(vec![format!("{q_heads} query heads are no multiple of {} key heads", k_dims.0)]));
        }
        if v_dims.0 != k_dims.0 {
            return Ok(Err(vec![format!("{} value heads for {} key heads", v_dims.0, k_dims.0)]));
        }
        let stored = i64::from(data_type(dtype));
        let double = DataType::Double as i64;
        let softmax = precision.unwrap_or(if stored == double { double } else { DataType::Float as i64 });
        let scale = scale.map_or_else(|| 1.0 / (q_size as f32).sqrt(), |s| s as f32);

        let mut body = NodeWriter { importer: self, label };
        let factor = TensorData::scalar(Scalar::from_f64(dtype, f64::from(scale.sqrt())));
        let factor = body.constant(factor);
        let k = repeat_heads(&mut body, k, k_dims, q_heads)?;
        let v = repeat_heads(&mut body, v, v_dims, q_heads)?;
        let q = body.node("Mul", &[q, &factor], vec![])?;
        let k = body.node("Mul", &[&k, &factor], vec![])?;
        let k = body.node("Transpose", &[&k], vec![ints("perm", &[0, 1, 3, 2])])?;
        let scores = body.node("MatMul", &[&q, &k], vec![])?;
        let scores = body.node("Cast", &[&scores], vec![int("to", softmax)])?;
        let scores = modified(&mut body, opsets, scores, score_mod)?;
        let probabilities = body.node("Softmax", &[&scores], vec![int("axis", -1)])?;
        let probabilities = modified(&mut body, opsets, probabilities, prob_mod)?;
        let v = body.node("Cast", &[&v], vec![int("to", softmax)])?;
        let result = body.node("MatMul", &[&probabilities, &v], vec![])?;
        body.node_to("Cast", &[&result], vec![int("to", stored)], &[output])?;
        Ok(Ok(()))
    }
}

/// The result of a modifier graph, or the value itself without one.
fn modified(
    body: &mut NodeWriter<'_, '_>,
    opsets: &Rc<Opsets>,
    value: String,
    graph: Option<GraphProto>,
) -> Result<String, OnnxError> {
    let Some(graph) = graph else { return Ok(value) };
    let results = body.importer.inline(graph, &[value], opsets, body.label)?;
    Ok(results.into_iter().next().unwrap_or_default())
}

/// Repeats each head of `[batch, heads, sequence, size]` for the query heads that share it.
fn repeat_heads(
    body: &mut NodeWriter<'_, '_>,
    value: &str,
    (heads, size): (i64, i64),
    q_heads: i64,
) -> Result<String, OnnxError> {
    if heads == q_heads {
        return Ok(value.to_owned());
    }
    let axes = body.i64s(&[2]);
    let split = body.node("Unsqueeze", &[value, &axes], vec![])?;
    let repeats = body.i64s(&[1, 1, q_heads / heads, 1, 1]);
    let repeated = body.node("Expand", &[&split, &repeats], vec![])?;
    let merged = body.i64s(&[0, q_heads, -1, size]);
    body.node("Reshape", &[&repeated, &merged], vec![])
}
