//! StaticValues known at compile time: constant evaluation of the part of the graph behind a value.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use tensorc_ir::expand::{Expanded, expand_node};
use tensorc_ir::graph::{Graph, NodeId, NodeKind, Value};
use tensorc_ir::interp::{eval_node, eval_prim};
use tensorc_ir::interrupt::PassLimits;
use tensorc_ir::op::{Compute, Grain, Registry};
use tensorc_ir::{DenseType, TensorData, TensorType};

use crate::results::results;

#[derive(Clone)]
enum KnownValues {
    Value(TensorData),
    /// It depends on run-time data.
    Never,
    /// Not with what was known at that count of facts.
    NotYet(u64),
}

/// A memoised answer to "what is the value of this value?".
///
/// Operators whose result follows from operand *types* alone have a value as soon as these types
/// are known. The memo stays valid while no node is removed from the graph.
pub struct StaticValues<'r> {
    registry: &'r Registry,
    limit: u64,
    facts: Cell<u64>,
    memo: RefCell<BTreeMap<Value, KnownValues>>,
    assumed: BTreeMap<Value, TensorData>,
    withheld: BTreeSet<Value>,
}

impl<'r> StaticValues<'r> {
    /// `limit` bounds the bytes of each tensor that is evaluated.
    pub fn new(registry: &'r Registry, limit: u64) -> StaticValues<'r> {
        let (assumed, withheld) = (BTreeMap::new(), BTreeSet::new());
        StaticValues { registry, limit, facts: Cell::new(0), memo: RefCell::default(), assumed, withheld }
    }

    /// With values that nothing in the graph tells.
    #[must_use]
    pub fn assuming(self, assumed: &BTreeMap<Value, TensorData>) -> StaticValues<'r> {
        StaticValues { assumed: assumed.clone(), ..self }
    }

    /// Without values of which nothing is told but what is assumed.
    #[must_use]
    pub fn withholding(self, withheld: &BTreeSet<Value>) -> StaticValues<'r> {
        StaticValues { withheld: withheld.clone(), ..self }
    }

    /// Whether nothing is told of a value.
    pub fn withholds(&self, v: Value) -> bool {
        self.withheld.contains(&v) && !self.assumed.contains_key(&v)
    }

    /// Tells that types became better known, so that open questions are worth asking again.
    pub fn learned(&self) {
        self.facts.set(self.facts.get() + 1);
    }

    /// The value, if it is known at compile time and within the size limit.
    pub fn get(&self, graph: &Graph, v: Value) -> Option<TensorData> {
        if let Some(data) = self.stated(graph, v) {
            return Some(data.clone());
        }
        if self.withholds(v) {
            return None;
        }
        let mut stack = vec![(v.node, false)];
        let mut entered = BTreeSet::new();
        while let Some((node, operands_done)) = stack.pop() {
            if self.settled(node) {
                continue;
            }
            if operands_done {
                self.evaluate(graph, node);
            } else if entered.insert(node) && !self.counts(graph, node) {
                stack.push((node, true));
                let small = graph.args(node).into_iter().filter(|a| self.small(graph, *a));
                stack.extend(small.filter(|a| self.stated(graph, *a).is_none()).map(|a| (a.node, false)));
            }
        }
        self.known(graph, v)
    }

    /// The value of a constant, or one that is assumed.
    fn stated<'a>(&'a self, graph: &'a Graph, v: Value) -> Option<&'a TensorData> {
        graph.constant(v).or_else(|| self.assumed.get(&v))
    }

    fn settled(&self, node: NodeId) -> bool {
        match self.memo.borrow().get(&Value { node, port: 0 }) {
            Some(KnownValues::NotYet(at)) => *at == self.facts.get(),
            Some(_) => true,
            None => false,
        }
    }

    fn known(&self, graph: &Graph, v: Value) -> Option<TensorData> {
        if let Some(data) = self.stated(graph, v) {
            return Some(data.clone());
        }
        match self.memo.borrow().get(&v).filter(|_| !self.withholds(v)) {
            Some(KnownValues::Value(data)) => Some(data.clone()),
            _ => None,
        }
    }

    /// Whether a tensor is small enough to be evaluated, as far as its type is known. How many elements there are, must not depend
    /// on symbols.
    fn small(&self, graph: &Graph, v: Value) -> bool {
        graph.resolved(v).dense().is_none_or(|t| self.fits(&[t]))
    }

    /// Whether an operator gives integers that follow from the types of other operands, as extents do: what computes these
    /// operands, weights of a whole model perhaps, is not evaluated then.
    fn counts(&self, graph: &Graph, node: NodeId) -> bool {
        let NodeKind::Op(_) = &graph.node(node).kind else { return false };
        let outputs: Option<Vec<DenseType>> = results(graph, node).map(|v| graph.resolved(v).dense()).collect();
        let Some(outputs) = outputs.filter(|all| all.iter().all(|t| t.dtype.is_int()) && self.fits(all)) else {
            return false;
        };
        let operands = graph.operands(node);
        let is_float = |v: &Value| graph.resolved(*v).dense().is_some_and(|t| t.dtype.is_float());
        if !operands.iter().flatten().any(is_float) {
            return false;
        }
        let values: Vec<Option<TensorData>> = operands.iter().map(|v| v.and_then(|v| self.known(graph, v))).collect();
        let Some(data) = self.evaluate_from_types(graph, node, &outputs, &values) else { return false };
        let mut memo = self.memo.borrow_mut();
        memo.extend(results(graph, node).zip(data).map(|(v, data)| (v, KnownValues::Value(data))));
        true
    }

    fn evaluate(&self, graph: &Graph, node: NodeId) {
        let args = graph.args(node);
        let never = |v: &Value| {
            let known = matches!(self.memo.borrow().get(v), Some(KnownValues::Never));
            known || self.withholds(*v) || !self.small(graph, *v)
        };
        let settled = |v: &Value| never(v) || self.known(graph, *v).is_some();
        let outputs: Option<Vec<DenseType>> = results(graph, node).map(|v| graph.resolved(v).dense()).collect();
        let computed = match &graph.node(node).kind {
            NodeKind::Op(_) => self.evaluate_op(graph, node, outputs.as_deref()),
            NodeKind::Prim(prim) => outputs.as_deref().filter(|o| self.fits(o)).and_then(|outputs| {
                let values: Vec<TensorData> = args.iter().map(|v| self.known(graph, *v)).collect::<Option<_>>()?;
                let refs: Vec<&TensorData> = values.iter().collect();
                eval_prim(prim, &refs, outputs, self.registry.math()).ok()
            }),
            _ => None,
        };
        let final_answer = match &graph.node(node).kind {
            NodeKind::Op(_) | NodeKind::Prim(_) => outputs.is_some() && args.iter().all(settled),
            _ => true,
        };
        let mut memo = self.memo.borrow_mut();
        for v in results(graph, node) {
            let answer = match computed.as_ref().and_then(|data| data.get(v.port as usize)) {
                Some(data) => KnownValues::Value(data.clone()),
                None if final_answer => KnownValues::Never,
                None => KnownValues::NotYet(self.facts.get()),
            };
            memo.insert(v, answer);
        }
    }

    fn fits(&self, types: &[DenseType]) -> bool {
        types.iter().all(|t| !t.dims.is_open() && t.bytes() <= self.limit)
    }

    fn evaluate_op(&self, graph: &Graph, node: NodeId, outputs: Option<&[DenseType]>) -> Option<Vec<TensorData>> {
        if outputs.is_some_and(|o| !self.fits(o)) {
            return None;
        }
        let operands = graph.operands(node);
        let values: Vec<Option<TensorData>> = operands.iter().map(|v| v.and_then(|v| self.known(graph, v))).collect();
        if operands.iter().zip(&values).all(|(v, value)| v.is_some() == value.is_some()) {
            return eval_node(graph, node, self.registry, &values).ok();
        }
        self.evaluate_from_types(graph, node, outputs?, &values)
    }

    /// Expands the operator by itself, over operands of known type but unknown value, and sees
    /// whether its results are constant.
    fn evaluate_from_types(
        &self,
        graph: &Graph,
        node: NodeId,
        outputs: &[DenseType],
        values: &[Option<TensorData>],
    ) -> Option<Vec<TensorData>> {
        let n = graph.node(node);
        let NodeKind::Op(op) = &n.kind else { return None };
        if matches!(op.def.compute, Compute::Host(_) | Compute::Scalar(_)) {
            return None;
        }
        let mut alone = Graph::new("");
        let mut operands = vec![];
        for (v, value) in graph.operands(node).into_iter().zip(values) {
            operands.push(match (v, value) {
                (None, _) => None,
                (Some(_), Some(data)) => Some(alone.add_const(n.name.clone(), data.clone())),
                (Some(v), None) => {
                    let ty = graph.resolved(v).dense()?;
                    Some(alone.add_input(n.name.clone(), ty.into()))
                }
            });
        }
        let copy = alone.add_op(n.name.clone(), &op.def, &operands, op.params.clone(), outputs.len()).ok()?;
        alone.node_mut(copy).types = outputs.iter().cloned().map(TensorType::from).collect();
        let inner = StaticValues::new(self.registry, self.limit);
        let value_of = |g: &Graph, v: Value| inner.get(g, v);
        match expand_node(&mut alone, copy, self.registry, &value_of, Grain::Coarse, PassLimits::default()).ok()? {
            Expanded::Host => None,
            Expanded::Replaced(results) => results.iter().map(|v| inner.get(&alone, *v)).collect(),
        }
    }
}
