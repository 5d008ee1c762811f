//! Values that operators demand of their operands: known ones are confirmed, of the others the graph computes what the run
//! confirms ([`Graph::checks`]).

use std::sync::Arc;

use tensorc_abi::DType;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::expand::OpFacts;
use tensorc_ir::extent::Axes;
use tensorc_ir::graph::{Check, Graph, NodeId, NodeKind, Value};
use tensorc_ir::interp::{confirm, eval_prim};
use tensorc_ir::op::{Grain, OpError, Registry};
use tensorc_ir::prim::{Prim, Reduction};
use tensorc_ir::scalar::ScalarFn;
use tensorc_ir::{Allowed, DenseType, Extents, TensorData, greatest_word};

use crate::bodies::lift_checks;
use crate::manager::{Pass, PassCx};
use crate::values::StaticValues;

/// Adds the checks of all operators; with [`crate::Options::clamp_indices`], takes all checks out of the graph. Requires all types
/// known.
///
/// Operators that others are composed of are trusted: the pass runs before decomposition.
#[derive(Clone, Copy, Debug, Default)]
pub struct InsertChecks;

impl Pass for InsertChecks {
    fn name(&self) -> &'static str {
        "insert-checks"
    }

    fn run(&self, graph: &mut Graph, cx: &mut PassCx<'_>) -> Result<bool> {
        if cx.options.clamp_indices {
            let had = !graph.checks().is_empty();
            graph.clear_checks();
            return Ok(had);
        }
        let changed = add_to_bodies(graph, cx.registry, cx.options.static_bytes)?;
        Ok(add_checks(graph, cx.registry, cx.options.static_bytes)? | changed)
    }

    fn visits_bodies(&self) -> bool {
        false
    }
}

/// Adds the checks of the bodies of branches and loops, and confirms them behind these.
fn add_to_bodies(graph: &mut Graph, registry: &Registry, static_bytes: u64) -> Result<bool> {
    let changed = graph.change_bodies(&mut |body| {
        let inner = add_to_bodies(body, registry, static_bytes)?;
        // A body need not run: what is known of its values is no error yet.
        Ok::<bool, Diagnostic>(add_some(body, registry, static_bytes, false)? | inner)
    })?;
    Ok(lift_checks(graph)? | changed)
}

/// Adds the checks of every operator that has none yet; returns whether there were some.
///
/// # Errors
/// [`DiagnosticCode::Value`]: a value is known, and none that its operator takes.
pub(crate) fn add_checks(graph: &mut Graph, registry: &Registry, static_bytes: u64) -> Result<bool> {
    add_some(graph, registry, static_bytes, true)
}

/// As [`add_checks`]; `certain` says that the graph runs, so that what is known can be confirmed now.
fn add_some(graph: &mut Graph, registry: &Registry, static_bytes: u64, certain: bool) -> Result<bool> {
    let values = StaticValues::new(registry, static_bytes);
    let demanding = |graph: &Graph, node: &NodeId| matches!(&graph.node(*node).kind, NodeKind::Op(op) if !op.unchecked && !op.def.demands.is_empty());
    let nodes: Vec<NodeId> = graph.order().into_iter().filter(|node| demanding(graph, node)).collect();
    for node in &nodes {
        let facts = OpFacts::of(graph, *node, &|g, v| values.get(g, v), Grain::Coarse)?;
        for (operand, rule) in &facts.def.demands {
            let Some(value) = facts.operands.get(*operand).copied().flatten() else { continue };
            let wrong = |OpError(why)| {
                Diagnostic::new(DiagnosticCode::Operands, format!("{}: {why}", facts.def.name)).at(&facts.name)
            };
            let Some(allowed) = rule(&facts.cx()).map_err(wrong)? else { continue };
            let name = facts.def.input_spec(*operand).map_or("?", |spec| spec.name);
            let known = if certain { values.get(graph, value) } else { None };
            check(graph, registry, known, value, &allowed, (&facts.name, name))?;
        }
        graph.set_unchecked(*node);
    }
    Ok(!nodes.is_empty())
}

/// Confirms what is demanded of a value, or adds the check.
fn check(
    graph: &mut Graph,
    registry: &Registry,
    known: Option<TensorData>,
    of: Value,
    allowed: &Allowed,
    (node, operand): (&Arc<str>, &str),
) -> Result<()> {
    let ty = graph.dense(of)?;
    let word = DenseType::new(DType::I64, []);
    let internal = |why| Diagnostic::new(DiagnosticCode::Internal, why).at(node);
    if let Some(data) = known {
        let values = data.to_i64s();
        let ends = values.iter().min().zip(values.iter().max());
        if ends.is_some_and(|(least, greatest)| allowed.admits(*least, *greatest)) {
            return Ok(());
        }
        let allowed = allowed.fixed();
        let prim = allowed.word(&ty).map_err(internal)?;
        let found = eval_prim(&prim, &[&data], std::slice::from_ref(&word), registry.math())?;
        return found.first().map_or(Ok(()), |word| confirm(&allowed.requirement(node, operand), word));
    }
    let (limits, name, mut codes) = (allowed.open_limits(), format!("{node}_check"), of);
    if !limits.is_empty() {
        let mut operands = vec![of];
        for limit in limits {
            let data = TensorData::of_extents(word.clone(), vec![limit]);
            let data = data.ok_or_else(|| internal("a limit is no number".to_owned()))?;
            operands.push(graph.add_const(format!("{name}_limit"), data));
        }
        let map = Prim::Map(allowed.code(&ty).map_err(internal)?.into());
        let types = [DenseType::new(DType::I64, &ty.dims)];
        codes = Value { node: graph.add_prim(format!("{name}_codes"), map, &operands, &types), port: 0 };
    }
    let (mut prim, requirement) = (allowed.word(&ty).map_err(internal)?, allowed.requirement(node, operand));
    if let Some([of_rows, of_all]) = by_rows(&prim, &ty).map_err(internal)? {
        let words = DenseType::new(DType::I64, [ty.dims.at(0)].into_iter().collect::<Extents>());
        codes = Value { node: graph.add_prim(format!("{name}_rows"), of_rows, &[codes], &[words]), port: 0 };
        prim = of_all;
    }
    let value = Value { node: graph.add_prim(name, prim, &[codes], &[word]), port: 0 };
    graph.add_check(Check { value, requirement });
    Ok(())
}

/// Fewest elements, and fewest of a row, that are checked row by row: threads share the rows.
const MANY_ELEMENTS: i64 = 1 << 16;
const LONG_ROW: i64 = 256;

/// The reduction of each row of an operand, and that of its results; none for a small operand and for short rows.
fn by_rows(prim: &Prim, ty: &DenseType) -> std::result::Result<Option<[Prim; 2]>, String> {
    let Prim::Reduce(all) = prim else { return Ok(None) };
    let (Some(count), true) = (ty.dims.count().known(), ty.rank() > 1) else { return Ok(None) };
    let rows = ty.dims.at(0).known().filter(|rows| (2..=count / LONG_ROW).contains(rows));
    if count < MANY_ELEMENTS || rows.is_none() {
        return Ok(None);
    }
    let of_rows = Reduction { axes: (1..ty.rank()).collect(), ..(**all).clone() };
    let of_all = greatest_word(vec![0], ScalarFn::identity(DType::I64))?;
    Ok(Some([Prim::Reduce(of_rows.into()), of_all]))
}
