//! Constant folding of primitives, under a byte and work allowance. `fast` and `bytes` have what whole weights go through, `products`
//! products of large matrices, `scaled` those with one number; `blocked` has weights that stay packed, `gathered` tables that stay narrow.

mod blocked;
mod bytes;
mod fast;
mod gathered;
mod products;
mod scaled;

use tensorc_ir::diag::{Diagnostic, Result};
use tensorc_ir::graph::{Graph, NodeId, NodeKind};
use tensorc_ir::interp::{eval_open, eval_prim};
use tensorc_ir::prim::Prim;
use tensorc_ir::{DenseType, TensorData};

use crate::bodies::sink_constants;
use crate::infer::replace_by_constants;
use crate::manager::{Pass, PassCx};
use crate::options::Options;
use crate::results::result_types;

/// Evaluates primitives over constants.
#[derive(Clone, Copy, Debug, Default)]
pub struct FoldConstants;

/// Elementary steps the interpreter may spend on one node; beyond, the node stays for run time.
const MAX_INTERPRETER_STEPS: u64 = 4 << 20;

impl Pass for FoldConstants {
    fn name(&self) -> &'static str {
        "fold-constants"
    }

    fn run(&self, graph: &mut Graph, cx: &mut PassCx<'_>) -> Result<bool> {
        let mut changed = blocked::pack_weights(graph, cx)?;
        if cx.options.rewrite {
            changed |= gathered::sink_maps(graph)?;
        }
        for node in graph.order() {
            changed |= fold_node(graph, node, cx)?;
        }
        for node in sink_constants(graph)? {
            changed = true;
            graph.change_bodies_of(node, &mut |body| self.run(body, cx))?;
        }
        changed |= graph.remove_dead() > 0;
        Ok(changed)
    }
}

/// Replaces one primitive by its value if all operands are constants and the result stays small.
pub(crate) fn fold_node(graph: &mut Graph, node: NodeId, cx: &PassCx<'_>) -> Result<bool> {
    let NodeKind::Prim(prim) = &graph.node(node).kind else { return Ok(false) };
    let args = graph.args(node);
    let Some(inputs) = args.iter().map(|v| graph.constant(*v)).collect::<Option<Vec<&TensorData>>>() else {
        return Ok(false);
    };
    if blocked::stays_packed(prim, &inputs) {
        return Ok(false);
    }
    let outputs = result_types(graph, node)?;
    let types: Vec<&DenseType> = inputs.iter().map(|d| &d.ty).collect();
    if !folds(prim, &types, &outputs.iter().collect::<Vec<_>>(), &cx.options) {
        return Ok(false);
    }
    let results = match inputs.iter().any(|data| data.is_open()) {
        // What expressions of symbols do not say, such as a float, is computed when there are numbers.
        true => eval_open(prim, &inputs, &outputs),
        false => Some(evaluated(prim, &inputs, &outputs, cx).map_err(|d| d.at(&graph.node(node).name))?),
    };
    let Some(results) = results else { return Ok(false) };
    replace_by_constants(graph, node, &results);
    Ok(true)
}

fn evaluated(prim: &Prim, inputs: &[&TensorData], outputs: &[DenseType], cx: &PassCx<'_>) -> Result<Vec<TensorData>> {
    if let Some(data) = fast::eval(prim, inputs, outputs, cx.threads).or_else(|| bytes::eval(prim, inputs, outputs)) {
        return Ok(vec![data]);
    }
    if let (Prim::Contract(c), [lhs, rhs], [output]) = (prim, inputs, outputs)
        && let Some(data) = scaled::eval(c, lhs, rhs, output)
    {
        return Ok(vec![data]);
    }
    if let Some(one) = single_element(prim, inputs, outputs) {
        let values = eval_prim(prim, inputs, &[one], cx.registry.math())?;
        return Ok(values.iter().zip(outputs).filter_map(|(value, ty)| fast::repeated(value, ty)).collect());
    }
    // What could not be read is no work for the interpreter.
    inputs.iter().try_for_each(|data| data.content().check()).map_err(Diagnostic::unreadable)?;
    eval_prim(prim, inputs, outputs, cx.registry.math())
}

/// The type of one element of the result, if all are the same: a map of single numbers.
fn single_element(prim: &Prim, inputs: &[&TensorData], outputs: &[DenseType]) -> Option<DenseType> {
    let (Prim::Map(f), [output]) = (prim, outputs) else { return None };
    let same = !f.uses_coord() && inputs.iter().all(|data| data.len() == 1);
    (same && output.len() > 1).then(|| DenseType::new(output.dtype, vec![1; output.rank()]))
}

/// Whether a primitive of constants of these types is computed: it is not too much work, and the results are not
/// much larger than the operands.
pub(crate) fn folds(prim: &Prim, inputs: &[&DenseType], outputs: &[&DenseType], options: &Options) -> bool {
    let size = |types: &[&DenseType]| types.iter().map(|t| t.bytes()).fold(0, u64::saturating_add);
    let opaque = matches!(prim, Prim::Flow(_) | Prim::Extern(_));
    if inputs.iter().chain(outputs).any(|ty| ty.dims.is_open()) {
        return false;
    }
    // Weights of bytes would be widened in every run.
    let fits =
        size(outputs) <= size(inputs).saturating_add(options.fold_bytes) || bytes::is_fast(prim, inputs, outputs);
    !opaque && fits && (work(prim, inputs, outputs) <= MAX_INTERPRETER_STEPS || is_fast(prim, inputs, outputs))
}

fn is_fast(prim: &Prim, inputs: &[&DenseType], outputs: &[&DenseType]) -> bool {
    fast::is_fast(prim, inputs, outputs) || bytes::is_fast(prim, inputs, outputs)
}

/// About how many scalar steps the interpreter takes.
fn work(prim: &Prim, inputs: &[&DenseType], outputs: &[&DenseType]) -> u64 {
    let out: u64 = outputs.iter().map(|t| t.len()).sum();
    match prim {
        Prim::Map(f) => out.saturating_mul(f.nodes.len() as u64),
        Prim::Reduce(r) => {
            let elements: u64 = inputs.first().map_or(0, |t| t.len());
            elements.saturating_mul((r.map.nodes.len() + r.combine.nodes.len()) as u64)
        }
        Prim::Contract(c) => c.extents.iter().fold(1u64, |a, &e| a.saturating_mul(e)).saturating_mul(4),
        Prim::View(_) | Prim::Gather(_) | Prim::Concat { .. } => out.saturating_mul(2),
        Prim::Kernel(_) | Prim::Flow(_) | Prim::Extern(_) => out.saturating_mul(64),
    }
}

#[cfg(test)]
mod tests {
    use tensorc_ir::DType;
    use tensorc_ir::scalar::{Scalar, ScalarFn};

    use super::*;

    #[test]
    fn maps_of_single_numbers_have_the_values_of_the_interpreter() {
        let registry = tensorc_ops::registry().expect("the operators agree with each other");
        let cx = PassCx::new(&registry);
        let number = TensorData::scalar(Scalar::f32(0.3));
        for dtype in [DType::U8, DType::F16, DType::I32, DType::F32, DType::F64] {
            let f = ScalarFn::build(&[DType::F32], |_, x| vec![(&x[0] * 7.0).cast(dtype)]).expect("a function");
            let literal = ScalarFn::build(&[], |b, _| vec![b.number(dtype, 3.0)]).expect("a function");
            for (f, inputs) in [(f, vec![&number]), (literal, vec![])] {
                let (prim, output) = (Prim::Map(f.into()), DenseType::new(dtype, [3, 1, 5]));
                let one = single_element(&prim, &inputs, std::slice::from_ref(&output));
                assert_eq!(one, Some(DenseType::new(dtype, [1, 1, 1])));
                let slow = eval_prim(&prim, &inputs, std::slice::from_ref(&output), registry.math());
                assert_eq!(evaluated(&prim, &inputs, &[output], &cx).ok(), slow.ok(), "{dtype}");
            }
        }
    }
}
