//! The memory that a fused graph will need, before it is lowered: its nodes as tasks, in their best order.
//!
//! Values that are computed where a concatenation holds them need no copy, but the whole concatenation is
//! live from the first of them on. [`place`] leaves out those that cost more at the peak than copying them does.

use std::collections::{BTreeMap, BTreeSet};

use tensorc_abi::Plan;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::graph::{FusionClass, Graph, NodeId, NodeKind, Value};
use tensorc_ir::prim::Prim;
use tensorc_ir::views::{keeps_linear_order, run_offset};

use crate::access::Located;
use crate::access::in_place::in_place;
use crate::layout::Layouts;
use crate::tasks::{StepTask, Tasks};

/// Rounds of leaving values out, and wholes looked at in each.
const MAX_ROUNDS: usize = 8;
const MAX_CONCATS_PER_ROUND: usize = 3;

/// Values that are computed in a concatenation, and the result of that: the outermost if it lies in another.
pub type Wholes = BTreeMap<Value, Value>;

/// The steps that a fused graph will be.
#[derive(Default)]
pub struct Estimate {
    tasks: Tasks,
    /// Of each task.
    nodes: Vec<NodeId>,
    /// The buffers of a value: its own, or those of its parts.
    buffers: BTreeMap<Value, Vec<u32>>,
    /// The memory of concatenations that hold values.
    wholes: BTreeMap<Value, u32>,
    /// The values that are parts.
    parts: BTreeMap<u32, Value>,
    order: Vec<usize>,
    /// Bytes of intermediate tensors live at once in the best order found, and where in it.
    peak: (u64, Option<usize>),
}

/// Chooses what is computed in concatenations so that the peak is low. `choose` says what can be, given
/// values that are not to be. Returns those and the estimate without them. Values are left out where that
/// lowers the peak by half of their bytes at least: they are copied then, which takes time.
pub fn place(
    graph: &Graph,
    choose: &dyn Fn(&BTreeSet<Value>) -> Result<Wholes>,
) -> Result<(BTreeSet<Value>, Estimate)> {
    let pairs = pairs(graph)?;
    let mut without = BTreeSet::new();
    let mut wholes = choose(&without)?;
    let mut best = Estimate::of(graph, &wholes, &pairs)?;
    for _ in 0..MAX_ROUNDS {
        let mut found: Option<(u64, BTreeSet<Value>, Wholes, Estimate)> = None;
        let each = best.first_parts().into_iter().map(|v| BTreeSet::from([v]));
        let all = std::iter::once(wholes.keys().copied().collect());
        for more in each.chain(all).filter(|more: &BTreeSet<Value>| !more.is_empty() && best.holds_parts()) {
            let bytes = more.iter().map(|v| Ok(graph.dense(*v)?.bytes())).sum::<Result<u64>>()?;
            if bytes / 2 >= best.peak() {
                continue;
            }
            let less: BTreeSet<Value> = without.union(&more).copied().collect();
            let next = choose(&less)?;
            let estimate = Estimate::of(graph, &next, &pairs)?;
            let cost = estimate.peak() + bytes / 2;
            if cost < found.as_ref().map_or(best.peak(), |(cost, ..)| *cost) {
                found = Some((cost, less, next, estimate));
            }
        }
        match found {
            Some((_, less, next, estimate)) => (without, wholes, best) = (less, next, estimate),
            None => break,
        }
    }
    Ok((without, best))
}

impl Estimate {
    fn of(graph: &Graph, wholes: &Wholes, pairs: &Pairs) -> Result<Estimate> {
        let first = graph.first_phase();
        let mut e = Estimate::default();
        let mut names = BTreeMap::new();
        for node in graph.order() {
            let second = first.as_ref().is_some_and(|first| !first.contains(&node));
            e.node(graph, node, second, (wholes, pairs), &mut names)?;
        }
        e.deliver(graph);
        e.order = e.tasks.best_order().0;
        e.peak = e.tasks.peak_at(&e.order);
        Ok(e)
    }

    /// Bytes of intermediate tensors live at once.
    pub fn peak(&self) -> u64 {
        self.peak.0
    }

    /// Whether a concatenation that holds values is live at the peak.
    fn holds_parts(&self) -> bool {
        !self.live_wholes().is_empty()
    }

    /// The concatenations live at the peak that hold values, the largest first: their memory, and what is
    /// written first there.
    fn live_wholes(&self) -> Vec<(u32, u32)> {
        let Some(at) = self.peak.1 else { return vec![] };
        let mut lives: BTreeMap<u32, (usize, usize, u32)> = BTreeMap::new();
        for (place, task) in self.order.iter().map(|t| &self.tasks.tasks[*t]).enumerate() {
            for b in task.writes.iter().chain(&task.reads) {
                if let Some(whole) = self.tasks.wholes.get(b) {
                    lives.entry(*whole).or_insert((place, place, *b)).1 = place;
                }
            }
        }
        let mut live: Vec<(u32, u32)> = lives
            .into_iter()
            .filter(|(_, (first, last, _))| *first <= at && at <= *last)
            .map(|(w, l)| (w, l.2))
            .collect();
        live.sort_by_key(|(whole, _)| (std::cmp::Reverse(self.tasks.bytes[*whole as usize]), *whole));
        live
    }

    /// Of the largest concatenations live at the peak, the values that are computed there first.
    fn first_parts(&self) -> Vec<Value> {
        let live = self.live_wholes();
        live.into_iter().take(MAX_CONCATS_PER_ROUND).filter_map(|(_, part)| self.parts.get(&part).copied()).collect()
    }

    fn buffer(&mut self, bytes: u64) -> u32 {
        self.tasks.bytes.push(bytes.next_multiple_of(Plan::ALIGN));
        self.tasks.bytes.len() as u32 - 1
    }

    /// The buffer of a concatenation that has parts.
    fn whole(&mut self, graph: &Graph, v: Value) -> Result<u32> {
        if let Some(id) = self.wholes.get(&v) {
            return Ok(*id);
        }
        let id = self.buffer(graph.dense(v)?.bytes());
        self.wholes.insert(v, id);
        Ok(id)
    }

    fn node(
        &mut self,
        graph: &Graph,
        node: NodeId,
        second: bool,
        (wholes, pairs): (&Wholes, &Pairs),
        names: &mut BTreeMap<Value, Value>,
    ) -> Result<()> {
        let (args, kind) = (graph.args(node), &graph.node(node).kind);
        if let (NodeKind::Prim(Prim::View(view)), [v]) = (kind, &args[..]) {
            let (from, to) = (graph.dense(*v)?, graph.dense(Value { node, port: 0 })?.dims);
            let same = keeps_linear_order(view, &from, &to);
            if same || run_offset(view, &from, &to).is_some() {
                if same {
                    names.insert(Value { node, port: 0 }, names.get(v).copied().unwrap_or(*v));
                }
                if let Some(ids) = self.buffers.get(v).cloned() {
                    self.buffers.insert(Value { node, port: 0 }, ids);
                }
                return Ok(());
            }
        }
        match kind {
            NodeKind::Input | NodeKind::Const(_) => return Ok(()),
            NodeKind::Prim(Prim::Concat { .. }) => return self.concat(graph, node, second, wholes, names),
            _ => {}
        }
        let mut task = StepTask { second, reads: self.read(&args), ..StepTask::default() };
        for port in 0..graph.node(node).types.len() as u16 {
            let v = Value { node, port };
            let bytes = graph.dense(v)?.bytes();
            let id = match wholes.get(&v) {
                Some(whole) => {
                    let whole = self.whole(graph, *whole)?;
                    let id = self.buffer(0);
                    self.tasks.wholes.insert(id, whole);
                    self.parts.insert(id, v);
                    id
                }
                None => self.buffer(bytes),
            };
            self.buffers.insert(v, vec![id]);
            task.writes.push(id);
            if let Some(pairs) = pairs.get(&node) {
                let over = pairs.iter().filter(|(_, o)| *o == usize::from(port)).map(|(i, _)| *i);
                let own = |i: usize| match self.buffers.get(&args[i]).map(Vec::as_slice) {
                    Some([from]) if !self.tasks.wholes.contains_key(from) => Some((*from, id)),
                    _ => None,
                };
                task.in_place.extend(over.filter_map(own));
            }
        }
        self.tasks.tasks.push(task);
        self.nodes.push(node);
        Ok(())
    }

    /// The buffers of some values, each once.
    fn read(&self, args: &[Value]) -> Vec<u32> {
        let mut reads = vec![];
        for id in args.iter().filter_map(|v| self.buffers.get(v)).flatten() {
            if !reads.contains(id) {
                reads.push(*id);
            }
        }
        reads
    }

    /// Operands that are not computed in their place are copied there.
    fn concat(
        &mut self,
        graph: &Graph,
        node: NodeId,
        second: bool,
        wholes: &Wholes,
        names: &BTreeMap<Value, Value>,
    ) -> Result<()> {
        let v = Value { node, port: 0 };
        let outermost = wholes.get(&v).copied().unwrap_or(v);
        let whole = self.whole(graph, outermost)?;
        let mut parts = vec![];
        for arg in graph.args(node) {
            let origin = names.get(&arg).copied().unwrap_or(arg);
            if wholes.get(&origin) == Some(&outermost) {
                let computed = self.buffers.get(&arg).ok_or_else(|| {
                    let why = "a value that lies in a concatenation was not computed";
                    Diagnostic::new(DiagnosticCode::Internal, why).at(&graph.node(arg.node).name)
                })?;
                parts.extend(computed);
                continue;
            }
            let part = self.buffer(0);
            self.tasks.wholes.insert(part, whole);
            self.tasks.tasks.push(StepTask {
                second,
                reads: self.read(&[arg]),
                writes: vec![part],
                ..StepTask::default()
            });
            self.nodes.push(node);
            parts.push(part);
        }
        self.buffers.insert(v, parts);
        Ok(())
    }

    /// What is computed where it is delivered takes no memory: results that one phase alone uses.
    fn deliver(&mut self, graph: &Graph) {
        let all = &mut self.tasks;
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
            for id in self.buffers.get(&v).into_iter().flatten() {
                if !used[*id as usize][usize::from(!second)] {
                    let whole = all.wholes.get(id).unwrap_or(id);
                    all.bytes[*whole as usize] = 0;
                }
            }
        }
    }
}

/// Which results of each generated kernel may be written over operands, as positions.
type Pairs = BTreeMap<NodeId, Vec<(usize, usize)>>;

fn pairs(graph: &Graph) -> Result<Pairs> {
    let dense = Layouts::default();
    let mut found = Pairs::new();
    for node in graph.node_ids() {
        if let NodeKind::Fused(fused) = &graph.node(node).kind
            && matches!(fused.class, FusionClass::Map | FusionClass::Reduce)
        {
            found.insert(node, in_place(fused.class, &Located { body: &fused.body, layouts: &dense })?);
        }
    }
    Ok(found)
}
