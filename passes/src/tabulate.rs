//! Tables: maps from a tensor of bytes to one of bytes, by way of floats, have 256 results.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_abi::DType;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::interp::eval_prim;
use tensorc_ir::prim::{Gather, Prim};
use tensorc_ir::scalar::{Scalar, ScalarFn};
use tensorc_ir::{DenseType, TensorData};
use tensorc_schedule::cost::scalar;
use tensorc_schedule::target::{Cpu, Processor, VectorLevel};

use crate::manager::{Pass, PassCx};

/// Numbers that a byte can be.
const NUMBERS: u64 = 256;
/// Least cost of the maps that a table replaces, in half cycles ([`scalar::of_body`]); an exponential costs as much.
const LEAST_COST: u64 = 100;
/// Most maps of a table.
const MAX_MAPS: usize = 64;

/// Replaces maps from bytes to bytes by reading a table of their results, where the processor looks up a vector of bytes at once
/// and computing them takes longer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tabulate;

impl Pass for Tabulate {
    fn name(&self) -> &'static str {
        "tabulate"
    }

    fn run(&self, graph: &mut Graph, cx: &mut PassCx<'_>) -> Result<bool> {
        let wide = matches!(cx.options.target.processor, Processor::Cpu(Cpu { loops: Some(VectorLevel::Avx512), .. }));
        if !wide {
            return Ok(false);
        }
        let chains = Chains::of(graph)?;
        let mut inside = BTreeSet::new();
        let mut changed = false;
        for (value, chain) in chains.0.iter().rev() {
            // Maps that only others of a longer chain need are gone.
            if inside.contains(&value.node) || !graph.contains(value.node) {
                continue;
            }
            if !is_byte(graph.dense(*value)?.dtype) || chain.cost(graph) < LEAST_COST {
                continue;
            }
            let table = chain.table(graph, *value, cx)?;
            replace(graph, *value, chain.source, table)?;
            inside.extend(chain.nodes.iter().copied());
            changed = true;
        }
        Ok(changed)
    }
}

fn is_byte(dtype: DType) -> bool {
    matches!(dtype, DType::U8 | DType::I8)
}

/// Maps that compute each element from the same element of one tensor of bytes.
#[derive(Clone)]
struct Chain {
    source: Value,
    nodes: BTreeSet<NodeId>,
}

/// The values that chains compute, in the order of the graph.
struct Chains(Vec<(Value, Chain)>);

impl Chains {
    fn of(graph: &Graph) -> Result<Chains> {
        let mut known: BTreeMap<Value, Chain> = BTreeMap::new();
        let mut all = vec![];
        for node in graph.order() {
            let value = Value { node, port: 0 };
            if map_of(graph, node).is_none() {
                continue;
            }
            if let Some(chain) = chain_of(graph, value, &known)? {
                known.insert(value, chain.clone());
                all.push((value, chain));
            }
        }
        Ok(Chains(all))
    }
}

/// The body of a map with one result that depends on operands alone.
fn map_of(graph: &Graph, node: NodeId) -> Option<&ScalarFn> {
    match &graph.node(node).kind {
        NodeKind::Prim(Prim::Map(f)) if f.outputs.len() == 1 && !f.uses_coord() => Some(f),
        _ => None,
    }
}

fn chain_of(graph: &Graph, value: Value, known: &BTreeMap<Value, Chain>) -> Result<Option<Chain>> {
    let dims = graph.dense(value)?.dims;
    let mut chain: Option<Chain> = None;
    for arg in graph.args(value.node) {
        let ty = graph.dense(arg)?;
        let of_arg = match known.get(&arg) {
            Some(chain) => chain.clone(),
            None if is_byte(ty.dtype) && graph.constant(arg).is_none() => Chain { source: arg, nodes: BTreeSet::new() },
            None => return Ok(None),
        };
        let same = chain.as_ref().is_none_or(|chain| chain.source == of_arg.source);
        if ty.dims != dims || !same {
            return Ok(None);
        }
        chain.get_or_insert_with(|| of_arg.clone()).nodes.extend(of_arg.nodes);
    }
    Ok(chain.filter(|chain| chain.nodes.len() < MAX_MAPS).map(|mut chain| {
        chain.nodes.insert(value.node);
        chain
    }))
}

impl Chain {
    fn cost(&self, graph: &Graph) -> u64 {
        self.nodes.iter().filter_map(|node| map_of(graph, *node)).map(scalar::of_body).sum()
    }

    /// What the end of the chain is for each byte, signed ones from 0 up and then from the least one up.
    fn table(&self, graph: &Graph, end: Value, cx: &PassCx<'_>) -> Result<TensorData> {
        let dtype = graph.dense(self.source)?.dtype;
        let bytes = DenseType::new(dtype, [NUMBERS]);
        let all = TensorData::from_fn(bytes, |i| Scalar::from_i64(dtype, i as i64));
        let mut values: BTreeMap<Value, TensorData> = BTreeMap::from([(self.source, all)]);
        for node in graph.order().into_iter().filter(|node| self.nodes.contains(node)) {
            let NodeKind::Prim(prim) = &graph.node(node).kind else { continue };
            let value = Value { node, port: 0 };
            let args = graph.args(node);
            let inputs: Vec<&TensorData> = args.iter().filter_map(|arg| values.get(arg)).collect();
            let ty = DenseType::new(graph.dense(value)?.dtype, [NUMBERS]);
            let result = eval_prim(prim, &inputs, &[ty], cx.registry.math())?;
            values.extend(result.into_iter().next().map(|data| (value, data)));
        }
        let missing = || Diagnostic::new(DiagnosticCode::Internal, "a chain of maps does not reach its end");
        values.remove(&end).ok_or_else(|| missing().at(&graph.node(end.node).name))
    }
}

/// Reads a table in place of a value.
fn replace(graph: &mut Graph, value: Value, source: Value, table: TensorData) -> Result<()> {
    let (name, ty) = (graph.node(value.node).name.clone(), graph.dense(value)?);
    let mut patch = graph.patch("tabulate");
    let table = patch.graph.add_const(&*name, table);
    let read = patch.graph.add_prim(name, Prim::Gather(Gather { axis: 0 }), &[table, source], &[ty]);
    patch.replace(value, Value { node: read, port: 0 });
    patch.commit();
    Ok(())
}
