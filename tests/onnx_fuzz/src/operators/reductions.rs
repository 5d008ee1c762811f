//! Reductions, scans, sorting, and normalisations along axes.

use tensorc::DType;
use tensorc::ir::TensorData;
use tensorc::ir::scalar::Scalar;

use super::{Draw, types};
use crate::draw::Elements;
use crate::model::{NodeSpec, Value, Writer};

pub(super) const DRAWS: &[(&str, Draw)] = &[
    ("ArgMax", position),
    ("ArgMin", position),
    ("CumProd", scan),
    ("CumSum", scan),
    ("Hardmax", along_axis),
    ("LayerNormalization", layer_norm),
    ("LogSoftmax", along_axis),
    ("LpNormalization", lp_norm),
    ("MeanVarianceNormalization", mean_variance),
    ("NegativeLogLikelihoodLoss", loss),
    ("RMSNormalization", layer_norm),
    ("ReduceL1", reduce),
    ("ReduceL2", reduce),
    ("ReduceLogSum", reduce),
    ("ReduceLogSumExp", reduce),
    ("ReduceMax", reduce),
    ("ReduceMean", reduce),
    ("ReduceMin", reduce),
    ("ReduceProd", reduce),
    ("ReduceSum", reduce),
    ("ReduceSumSquare", reduce),
    ("SimplifiedLayerNormalization", layer_norm),
    ("Softmax", along_axis),
    ("SoftmaxCrossEntropyLoss", loss),
    ("TopK", top_k),
];

fn flag(w: &mut Writer<'_>, spec: NodeSpec, name: &str) -> NodeSpec {
    if w.one_in(2) { spec } else { spec.int(name, w.rng.below(2) as i64) }
}

fn reduce(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = w.any(&types(w, op, 0), 0, 6);
    let rank = x.rank();
    let axes = match w.choice(5) {
        0 => None,
        1 => Some(vec![]),
        _ => {
            let mut chosen: Vec<i64> = (0..rank as i64).filter(|_| w.one_in(2)).collect();
            chosen.iter_mut().for_each(|a| *a -= if w.one_in(3) { rank as i64 } else { 0 });
            Some(chosen)
        }
    };
    let axes = match axes {
        Some(axes) => Some(w.ints(&axes)?),
        None => None,
    };
    let spec = NodeSpec::new(op, vec![Some(x), axes]);
    let spec = flag(w, spec, "keepdims");
    Some(flag(w, spec, "noop_with_empty_axes"))
}

fn position(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = w.any(&types(w, op, 0), 1, 5);
    let spec = NodeSpec::new(op, vec![Some(x.clone())]);
    let spec = if w.one_in(4) { spec } else { spec.int("axis", w.axis(x.rank())) };
    let spec = flag(w, spec, "keepdims");
    Some(flag(w, spec, "select_last_index"))
}

fn scan(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = w.any(&types(w, op, 0), 1, 5);
    let axis = w.axis(x.rank());
    let axis = match w.one_in(2) {
        true => TensorData::scalar(Scalar::i64(axis)),
        false => TensorData::scalar(Scalar::from_i64(DType::I32, axis)),
    };
    let axis = w.fixed(axis);
    let spec = NodeSpec::new(op, vec![Some(x), Some(axis)]);
    let spec = flag(w, spec, "exclusive");
    Some(flag(w, spec, "reverse"))
}

fn along_axis(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = w.any(&types(w, op, 0), 1, 5);
    let spec = NodeSpec::new(op, vec![Some(x.clone())]);
    Some(if w.one_in(4) { spec } else { spec.int("axis", w.axis(x.rank())) })
}

fn lp_norm(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let spec = along_axis(w, op)?;
    Some(if w.one_in(3) { spec } else { spec.int("p", 1 + w.choice(2) as i64) })
}

fn mean_variance(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = w.any(&types(w, op, 0), 4, 4);
    let spec = NodeSpec::new(op, vec![Some(x)]);
    let axes: Vec<i64> = (0..4).filter(|_| w.one_in(2)).collect();
    Some(if w.one_in(2) || axes.is_empty() { spec } else { spec.ints("axes", &axes) })
}

fn layer_norm(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = w.any(&types(w, op, 0), 1, 5);
    let axis = w.axis(x.rank());
    let at = if axis < 0 { axis + x.rank() as i64 } else { axis } as usize;
    let dims = x.dims()[at..].to_vec();
    let scale = w.operand(x.dtype(), &dims, Elements::Any);
    let bias = (op == "LayerNormalization" && w.one_in(2)).then(|| w.operand(x.dtype(), &dims, Elements::Any));
    let outputs = if op == "LayerNormalization" { 1 + w.choice(3) as usize } else { 1 };
    let spec = NodeSpec::new(op, vec![Some(x), Some(scale), bias]).results(outputs).int("axis", axis);
    Some(if w.one_in(3) { spec.float("epsilon", 0.01) } else { spec })
}

fn top_k(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = w.any(&types(w, op, 0), 1, 4);
    let axis = w.axis(x.rank());
    let at = if axis < 0 { axis + x.rank() as i64 } else { axis } as usize;
    let k = w.rng.below(x.dims()[at] + 1) as i64;
    let k = w.ints(&[k])?;
    let spec = NodeSpec::new(op, vec![Some(x), Some(k)]).results(2).int("axis", axis);
    Some(flag(w, spec, "largest"))
}

fn loss(w: &mut Writer<'_>, op: &str) -> Option<NodeSpec> {
    let x = w.any(&types(w, op, 0), 2, 5);
    let classes = x.dims()[1];
    if classes == 0 {
        return None;
    }
    let mut dims = x.dims().to_vec();
    dims.remove(1);
    let index = if w.one_in(3) { DType::I32 } else { DType::I64 };
    let target = w.operand(index, &dims, Elements::Index(classes, false));
    let weight: Option<Value> = w.one_in(2).then(|| w.operand(x.dtype(), &[classes], Elements::Positive));
    let spec = NodeSpec::new(op, vec![Some(x), Some(target), weight]);
    let spec = if w.one_in(4) { spec } else { spec.text("reduction", w.word(&["none", "mean", "sum"])) };
    let spec = if w.one_in(2) { spec } else { spec.int("ignore_index", w.rng.below(classes + 1) as i64 - 1) };
    let outputs = if op == "SoftmaxCrossEntropyLoss" { 1 + w.choice(2) as usize } else { 1 };
    Some(spec.results(outputs))
}
