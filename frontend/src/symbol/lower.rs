//! From a symbol to a graph for the compiler.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use tensorc_abi::DType;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode};
use tensorc_ir::graph::{Graph, NodeId, Value};
use tensorc_ir::op::{OpDef, OpRef, Registry};
use tensorc_ir::params::{ParamValue, Params};
use tensorc_ir::scalar::Scalar;
use tensorc_ir::{DenseType, Dim, Shape, TensorData, TensorType};

use super::Symbol;
use super::error::SymbolError;
use super::list::{Variable, variables};
use super::node::{Applied, SymbolNode, key};
use super::variable::{declared_dtype, declared_shape};

/// Name of the graph's input that holds a key for every random node.
pub(crate) const RANDOM_KEY: &str = "random_key";

/// Where random nodes get their keys from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Random {
    /// An input [`RANDOM_KEY`]`: u32[n, 2]` with a row for each of them.
    #[default]
    Input,
    /// Constants made from a seed: every run draws the same numbers.
    Seed(u32),
}

/// What is known of a variable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InputType {
    /// The element type, `None` if it is to be inferred.
    pub dtype: Option<DType>,
    /// Extents, `None` for an unknown one; `None` as a whole if the rank is unknown.
    pub dims: Option<Vec<Option<u64>>>,
}

/// How a symbol becomes a graph.
#[derive(Clone, Debug, Default)]
pub struct Lowering {
    /// Whether operators behave as in training, and state is updated.
    pub training: bool,
    /// Where random operators get their keys.
    pub random: Random,
    /// Leaves out the operands of losses that only training needs: their labels.
    pub without_labels: bool,
    /// Types of variables, by name. What they state takes the place of what the variables say about
    /// themselves.
    pub types: BTreeMap<String, InputType>,
}

/// A symbol as a graph. The graph's inputs are the arguments, then the auxiliary states, then the random
/// keys if there are any; its outputs are called as in [`Symbol::list_outputs`].
#[derive(Clone, Debug)]
pub struct SymbolGraph {
    /// The graph.
    pub graph: Graph,
    /// The arguments, in the order of the graph's inputs.
    pub arguments: Vec<String>,
    /// The auxiliary states, in the order of the graph's inputs behind the arguments.
    pub aux: Vec<String>,
    /// Nodes that draw random numbers: rows of the input [`RANDOM_KEY`].
    pub random_nodes: usize,
}

impl Symbol {
    /// The graph of this symbol, types as far as the variables state them.
    ///
    /// # Errors
    /// Two variables have one name, a variable's own type cannot be read, or operands or parameters do not
    /// fit an operator.
    pub fn to_graph(&self, registry: &Registry, how: &Lowering) -> Result<SymbolGraph, SymbolError> {
        let nodes = self.nodes();
        let variables = variables(&nodes);
        let mut names = BTreeSet::new();
        if let Some(twice) = variables.iter().find(|v| !names.insert(&*v.node.name)) {
            return Err(SymbolError::DuplicateVariable(twice.node.name.to_string()));
        }
        let graph = Graph::new(self.name().unwrap_or("symbol"));
        let mut work =
            LoweringWork { registry, how, graph, nodes: HashMap::new(), states: vec![], keys: None, random: 0 };
        let (aux, arguments): (Vec<Variable>, Vec<Variable>) = variables.into_iter().partition(|v| v.auxiliary);
        for variable in arguments.iter().chain(&aux) {
            work.variable(&variable.node)?;
        }
        let random_nodes = nodes.iter().filter(|n| is_random(n)).count();
        work.prepare_keys(random_nodes);
        for node in nodes.iter().filter(|n| !n.is_variable()) {
            if let Some(op) = &node.op {
                work.node(node, op)?;
            }
        }
        for (head, name) in self.heads.iter().zip(self.list_outputs()) {
            let value = work.value(&head.node, head.index)?;
            work.graph.add_output(name, value);
        }
        for (variable, value) in &work.states {
            if variable != value {
                work.graph.add_update(variable.node, *value);
            }
        }
        let names = |list: &[Variable]| list.iter().map(|v| v.node.name.to_string()).collect();
        Ok(SymbolGraph { arguments: names(&arguments), aux: names(&aux), graph: work.graph, random_nodes })
    }
}

fn is_random(node: &SymbolNode) -> bool {
    node.op.as_ref().is_some_and(|op| op.operator.def().key_input.is_some())
}

struct LoweringWork<'a> {
    registry: &'a Registry,
    how: &'a Lowering,
    graph: Graph,
    /// The graph's node for each node.
    nodes: HashMap<usize, NodeId>,
    /// Variables that operators write, with the value they have after the nodes so far.
    states: Vec<(Value, Value)>,
    keys: Option<Value>,
    /// Random nodes so far.
    random: usize,
}

impl LoweringWork<'_> {
    fn variable(&mut self, node: &Arc<SymbolNode>) -> Result<(), SymbolError> {
        let given = self.how.types.get(&*node.name).cloned().unwrap_or_default();
        let dtype = match given.dtype {
            Some(dtype) => Some(dtype),
            None => declared_dtype(&node.name, &node.attrs)?,
        };
        let dims = match given.dims {
            Some(dims) => Some(dims),
            None => declared_shape(&node.name, &node.attrs)?,
        };
        let graph = &mut self.graph;
        let shape = dims.map_or(Shape::Unranked, |dims| {
            Shape::Ranked(dims.into_iter().map(|d| d.map_or_else(|| graph.dims.fresh(None), Dim::Const)).collect())
        });
        let ty = TensorType { dtype, shape };
        let value = self.graph.add_input(node.name.clone(), ty);
        self.nodes.insert(key(node), value.node);
        Ok(())
    }

    fn prepare_keys(&mut self, random_nodes: usize) {
        if random_nodes > 0 && self.how.random == Random::Input {
            let ty = DenseType::new(DType::U32, [random_nodes as u64, 2]);
            self.keys = Some(self.graph.add_input(RANDOM_KEY, ty.into()));
        }
    }

    fn value(&self, node: &Arc<SymbolNode>, index: u32) -> Result<Value, SymbolError> {
        let missing = || SymbolError::Operators(format!("node `{}` is used before it is made", node.name));
        let id = *self.nodes.get(&key(node)).ok_or_else(missing)?;
        Ok(Value { node: id, port: index as u16 })
    }

    fn node(&mut self, node: &Arc<SymbolNode>, op: &Applied) -> Result<(), SymbolError> {
        let def = op.operator.def_in(self.registry);
        let mut params = op.params.clone();
        let has_mode = def.params.iter().any(|s| s.name == OpDef::TRAINING);
        if has_mode {
            params.set(OpDef::TRAINING, ParamValue::Bool(self.how.training));
        }
        let mut operands: Vec<Option<Value>> = vec![];
        for (operand, entry) in op.operator.operands(&op.params, node.inputs.len()).iter().zip(&node.inputs) {
            let label = def.is_loss && def.input_spec(operand.slot).is_some_and(|s| s.optional);
            if label && self.how.without_labels {
                continue;
            }
            let read = self.value(&entry.node, entry.index)?;
            // After an operator wrote a state, the next one reads what it wrote.
            let now = self.states.iter().find(|(variable, _)| *variable == read).map_or(read, |(_, value)| *value);
            set(&mut operands, operand.slot, now);
        }
        if let Some(slot) = def.key_input {
            let row = self.random_key(&node.name)?;
            set(&mut operands, slot, row);
        }
        let listed = def.result_count(&op.params).listed;
        let states = def.states(&op.params);
        let results = states.iter().map(|(_, result)| result + 1).fold(listed.max(def.outputs.0), usize::max);
        let id = self.graph.add_op(node.name.clone(), &def, &operands, params, results)?;
        self.nodes.insert(key(node), id);
        if !has_mode || self.how.training {
            self.write_states(node, op, &def, id)?;
        }
        Ok(())
    }

    fn write_states(&mut self, node: &SymbolNode, op: &Applied, def: &OpDef, id: NodeId) -> Result<(), SymbolError> {
        let operands = op.operator.operands(&op.params, node.inputs.len());
        for (slot, result) in def.states(&op.params).iter() {
            let Some(position) = operands.iter().position(|o| o.slot == *slot) else { continue };
            let Some(entry) = node.inputs.get(position) else { continue };
            let variable = self.value(&entry.node, entry.index)?;
            let next = Value { node: id, port: *result as u16 };
            match self.states.iter_mut().find(|(of, _)| *of == variable) {
                Some((_, value)) => *value = next,
                None => self.states.push((variable, next)),
            }
        }
        Ok(())
    }

    /// The key of the next random node.
    fn random_key(&mut self, name: &Arc<str>) -> Result<Value, SymbolError> {
        let row = self.random;
        self.random += 1;
        let Some(keys) = self.keys else {
            let Random::Seed(seed) = self.how.random else {
                return Err(SymbolError::Operators("random keys are used before they are made".into()));
            };
            let words = [u64::from(seed), row as u64];
            let ty = DenseType::new(DType::U32, [2]);
            let word = |i: u64| Scalar { dtype: DType::U32, bits: words[i as usize % 2] & u64::from(u32::MAX) };
            return Ok(self.graph.add_const(name.clone(), TensorData::from_fn(ty, word)));
        };
        let at = row as i64;
        let mut list = |values: i64| {
            let constant = TensorData::from_fn(DenseType::new(DType::I64, [1]), |_| Scalar::i64(values));
            self.graph.add_const(name.clone(), constant)
        };
        let (from, to, axis) = (list(at), list(at + 1), list(0));
        let slice = self.helper(name, "slice", &[keys, from, to, axis])?;
        self.helper(name, "squeeze", &[slice, axis])
    }

    fn helper(&mut self, name: &Arc<str>, op: &str, operands: &[Value]) -> Result<Value, SymbolError> {
        let unknown = || Diagnostic::new(DiagnosticCode::UnknownOperator, format!("operator `{op}` is not registered"));
        let def: OpRef = self.registry.get(op).ok_or_else(unknown)?.clone();
        let operands: Vec<Option<Value>> = operands.iter().copied().map(Some).collect();
        let node = self.graph.add_op(name.clone(), &def, &operands, Params::new(), 1)?;
        Ok(Value { node, port: 0 })
    }
}

fn set(operands: &mut Vec<Option<Value>>, slot: usize, value: Value) {
    if operands.len() <= slot {
        operands.resize(slot + 1, None);
    }
    operands[slot] = Some(value);
}
