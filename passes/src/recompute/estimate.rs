//! The memory a graph will need: fused by the greedy, its clusters ordered as lowering orders steps.

use std::collections::BTreeMap;

use tensorc_abi::Plan;
use tensorc_ir::diag::Result;
use tensorc_ir::graph::{Fused, FusionClass, Graph, NodeKind, Value};
use tensorc_ir::prim::Prim;
use tensorc_ir::schedule::{Task, Tasks};
use tensorc_ir::views::keeps_linear_order;

use crate::fuse::{By, Fuse};
use crate::manager::{Pass, PassCx};

/// Bytes of intermediate tensors live at once, in the best order found.
pub fn peak(mut graph: Graph, cx: &mut PassCx<'_>) -> Result<u64> {
    let by = if cx.options.fuse == By::Off { By::Off } else { By::Greedy };
    Fuse { by: Some(by) }.run(&mut graph, cx)?;
    Ok(tasks(&graph)?.best_order().1)
}

/// A task for every node that becomes steps.
fn tasks(graph: &Graph) -> Result<Tasks> {
    let first = graph.first_phase();
    let mut all = Tasks::default();
    let mut buffers: BTreeMap<Value, u32> = BTreeMap::new();
    for node in graph.order() {
        let args = graph.args(node);
        let kind = &graph.node(node).kind;
        if let (NodeKind::Prim(Prim::View(view)), [v]) = (kind, &args[..])
            && keeps_linear_order(view, &graph.dense(*v)?, &graph.dense(Value { node, port: 0 })?.dims)
        {
            if let Some(id) = buffers.get(v).copied() {
                buffers.insert(Value { node, port: 0 }, id);
            }
            continue;
        }
        if let NodeKind::Input | NodeKind::Const(_) = kind {
            continue;
        }
        let mut task = Task { second: first.as_ref().is_some_and(|first| !first.contains(&node)), ..Task::default() };
        for id in args.iter().filter_map(|v| buffers.get(v)) {
            if !task.reads.contains(id) {
                task.reads.push(*id);
            }
        }
        for port in 0..graph.node(node).types.len() as u16 {
            let v = Value { node, port };
            let bytes = graph.dense(v)?.bytes();
            let id = all.bytes.len() as u32;
            all.bytes.push(bytes.next_multiple_of(Plan::ALIGN));
            buffers.insert(v, id);
            task.writes.push(id);
            if let NodeKind::Fused(fused) = kind {
                let same = |i: &usize| graph.dense(args[*i]).is_ok_and(|t| t.bytes() == bytes);
                let over = (0..args.len()).filter(|i| over_operand(fused, *i) && same(i));
                task.in_place.extend(over.filter_map(|i| buffers.get(&args[i])).map(|from| (*from, id)));
            }
        }
        all.tasks.push(task);
    }
    deliver(graph, &buffers, &mut all);
    Ok(all)
}

/// Whether a cluster may write over an operand: it is a map that reads it element by element.
fn over_operand(fused: &Fused, operand: usize) -> bool {
    let body = &fused.body;
    let Some(input) = body.inputs().get(operand) else { return false };
    fused.class == FusionClass::Map
        && body.uses(*input).iter().all(|(user, ..)| matches!(body.node(*user).kind, NodeKind::Prim(Prim::Map(_))))
}

/// What is computed where it is delivered takes no memory: results that one phase alone uses.
fn deliver(graph: &Graph, buffers: &BTreeMap<Value, u32>, all: &mut Tasks) {
    let mut used = vec![[false; 2]; all.bytes.len()];
    for task in &all.tasks {
        for id in task.reads.iter().chain(&task.writes) {
            used[*id as usize][usize::from(task.second)] = true;
        }
    }
    let first = graph.boundary().unwrap_or(usize::MAX);
    let outputs = graph.outputs().iter().enumerate().map(|(i, (_, v))| (i >= first, *v));
    let updates = graph.updates().iter().map(|(_, v)| (graph.boundary().is_some(), *v));
    for (second, v) in outputs.chain(updates) {
        if let Some(id) = buffers.get(&v).map(|id| *id as usize)
            && !used[id][usize::from(!second)]
        {
            all.bytes[id] = 0;
        }
    }
}
