//! Control flow as users write it: [`foreach`], [`while_loop`] and [`cond`] take closures that make symbols, and
//! their results become graphs of one node.
//!
//! What a closure makes belongs to the graph; what it uses from outside becomes an operand of the node. Both are told
//! apart by the attribute `__subgraph_name__`, as in MXNet's files.

use std::collections::HashMap;
use std::sync::Arc;

use super::Symbol;
use super::compose::apply;
use super::control::definition;
use super::error::SymbolError;
use super::keys::Attrs;
use super::node::{Applied, NodeOutput, SymbolNode, VariableUses, key, post_order};
use super::operator::{NUM_ARGS, Operator};
use super::scope::{attr_scope, node_name, scoped_attrs};

/// The graph that a symbol was made for.
const GRAPH: &str = "__subgraph_name__";

/// What one iteration makes, or a whole loop.
#[derive(Clone, Debug, Default)]
pub struct Loop {
    /// Of an iteration: rows. Of a loop: the rows of all iterations, along a new first axis.
    pub outputs: Vec<Symbol>,
    /// The next values of the states, or their last ones.
    pub states: Vec<Symbol>,
}

/// Where the value of a graph's variable comes from.
#[derive(Clone)]
enum VariableSource {
    /// The variable of this number among those the closure was given.
    Formal(usize),
    Outside(NodeOutput),
}

/// A graph of the node, and what its variables stand for, in their order.
struct FlowPart {
    graph: Symbol,
    sources: Vec<VariableSource>,
}

/// A node being made.
struct Flow {
    op: &'static str,
    name: String,
}

/// Runs `body` on each row of `data` along the first axis, with states handed from one iteration to the next. The
/// closure gets the rows and the states, and returns outputs and next states, as many as there are states.
///
/// # Errors
/// The closure fails; it does not use a row or state, returns another number of states, or uses random numbers or
/// auxiliary states.
pub fn foreach(
    data: &[&Symbol],
    states: &[&Symbol],
    body: impl FnOnce(&[Symbol], &[Symbol]) -> Result<Loop, SymbolError>,
) -> Result<Loop, SymbolError> {
    let flow = Flow::new("_foreach", "foreach");
    if data.is_empty() {
        return Err(flow.wrong("there is no data to iterate over".into()));
    }
    let mut given = flow.entries(data)?;
    given.extend(flow.entries(states)?);
    let (formals, made) = flow.traced(|flow| {
        let formals = [flow.formals("data", data.len()), flow.formals("state", states.len())].concat();
        let (rows, held) = formals.split_at(data.len());
        let made = body(rows, held)?;
        Ok((formals, made))
    })?;
    let outputs = flow.results(&made, states.len())?;
    let part = flow.cut(&made, &formals)?;
    let places = flow.places(&part, 0..formals.len())?;
    let (rows, held) = places.split_at(data.len());
    let rest: Vec<usize> =
        (0..part.sources.len()).filter(|i| matches!(part.sources[*i], VariableSource::Outside(_))).collect();
    given.extend(rest.iter().filter_map(|i| match &part.sources[*i] {
        VariableSource::Outside(entry) => Some(entry.clone()),
        VariableSource::Formal(_) => None,
    }));
    let params = [
        ("in_data_locs", list(rows)),
        ("in_state_locs", list(held)),
        ("remain_locs", list(&rest)),
        ("num_outputs", (outputs + states.len()).to_string()),
        ("num_out_data", outputs.to_string()),
    ];
    flow.node(vec![part.graph], given, &params).map(|whole| divided(&whole, outputs))
}

/// Runs `body` on loop variables as long as `condition` holds of them, at most `max_iterations` times. Rows of the
/// outputs that no iteration made are zeros.
///
/// # Errors
/// A closure fails; `body` does not use a loop variable, returns another number of them, or uses random numbers or
/// auxiliary states.
pub fn while_loop(
    variables: &[&Symbol],
    max_iterations: u32,
    condition: impl FnOnce(&[Symbol]) -> Result<Symbol, SymbolError>,
    body: impl FnOnce(&[Symbol]) -> Result<Loop, SymbolError>,
) -> Result<Loop, SymbolError> {
    let flow = Flow::new("_while_loop", "while_loop");
    let given = flow.entries(variables)?;
    let (formals, holds, made) = flow.traced(|flow| {
        let formals = flow.formals("var", variables.len());
        let (holds, made) = (condition(&formals)?, body(&formals)?);
        Ok((formals, holds, made))
    })?;
    let outputs = flow.results(&made, variables.len())?;
    let parts = [flow.cut(&Loop { outputs: vec![holds], states: vec![] }, &formals)?, flow.cut(&made, &formals)?];
    let places = flow.places(&parts[1], 0..formals.len())?;
    let mut operands = SharedOperands { list: given };
    let [of_condition, of_body] = [&parts[0], &parts[1]].map(|part| operands.places(part));
    let params = [
        ("cond_input_locs", list(&of_condition)),
        ("func_input_locs", list(&of_body)),
        ("func_var_locs", list(&places)),
        ("max_iterations", max_iterations.to_string()),
        ("num_outputs", (outputs + variables.len()).to_string()),
        ("num_out_data", outputs.to_string()),
    ];
    let whole = flow.node(parts.map(|part| part.graph).into(), operands.list, &params)?;
    Ok(divided(&whole, outputs))
}

/// What `then` makes where the one element of `condition` is not zero, else what `otherwise` makes: as many values,
/// of the same types.
///
/// # Errors
/// A closure fails; they make different numbers of values, or use random numbers or auxiliary states.
pub fn cond(
    condition: &Symbol,
    then: impl FnOnce() -> Result<Vec<Symbol>, SymbolError>,
    otherwise: impl FnOnce() -> Result<Vec<Symbol>, SymbolError>,
) -> Result<Vec<Symbol>, SymbolError> {
    let flow = Flow::new("_cond", "cond");
    let given = flow.entries(&[condition])?;
    let (holds, yes, no) = flow.traced(|flow| Ok((flow.formals("condition", 1), then()?, otherwise()?)))?;
    if yes.len() != no.len() {
        return Err(flow.wrong(format!("one branch makes {} values, the other {}", yes.len(), no.len())));
    }
    let count = yes.len();
    let part = |outputs: Vec<Symbol>| flow.cut(&Loop { outputs, states: vec![] }, &holds);
    let parts = [part(holds.clone())?, part(yes)?, part(no)?];
    let mut operands = SharedOperands { list: given };
    let [of_condition, of_yes, of_no] = [&parts[0], &parts[1], &parts[2]].map(|part| operands.places(part));
    let params = [
        ("cond_input_locs", list(&of_condition)),
        ("then_input_locs", list(&of_yes)),
        ("else_input_locs", list(&of_no)),
        ("num_outputs", count.to_string()),
    ];
    let whole = flow.node(parts.map(|part| part.graph).into(), operands.list, &params)?;
    Ok(whole.outputs().collect())
}

fn list(places: &[usize]) -> String {
    format!("{places:?}")
}

fn divided(whole: &Symbol, outputs: usize) -> Loop {
    let mut all: Vec<Symbol> = whole.outputs().collect();
    let states = all.split_off(outputs.min(all.len()));
    Loop { outputs: all, states }
}

/// Operands of a node whose graphs share them: those given first, then what is used from outside, each once.
struct SharedOperands {
    list: Vec<NodeOutput>,
}

impl SharedOperands {
    /// By variable of a graph, its operand of the node.
    fn places(&mut self, part: &FlowPart) -> Vec<usize> {
        let mut place = |source: &VariableSource| match source {
            VariableSource::Formal(i) => *i,
            VariableSource::Outside(entry) => {
                let same = |e: &NodeOutput| key(&e.node) == key(&entry.node) && e.index == entry.index;
                self.list.iter().position(same).unwrap_or_else(|| {
                    self.list.push(entry.clone());
                    self.list.len() - 1
                })
            }
        };
        part.sources.iter().map(&mut place).collect()
    }
}

impl Flow {
    fn new(op: &'static str, hint: &str) -> Flow {
        Flow { op, name: node_name(None, hint) }
    }

    fn wrong(&self, problem: String) -> SymbolError {
        SymbolError::ControlFlow { op: self.op, node: self.name.clone(), problem }
    }

    fn entries(&self, symbols: &[&Symbol]) -> Result<Vec<NodeOutput>, SymbolError> {
        symbols.iter().map(|s| s.single(&self.name, "data").cloned()).collect()
    }

    /// Calls closures so that what they make carries the name of the node.
    fn traced<T>(&self, make: impl FnOnce(&Flow) -> Result<T, SymbolError>) -> Result<T, SymbolError> {
        let _scope = attr_scope([(GRAPH, self.name.as_str())]);
        make(self)
    }

    /// Variables that a closure is given.
    fn formals(&self, what: &str, count: usize) -> Vec<Symbol> {
        (0..count).map(|i| Symbol::variable(&format!("{}_{what}{i}", self.name))).collect()
    }

    /// The number of outputs, if that of states is right.
    fn results(&self, made: &Loop, states: usize) -> Result<usize, SymbolError> {
        match made.states.len() == states {
            true => Ok(made.outputs.len()),
            false => Err(self.wrong(format!("the body returns {} states, expected {states}", made.states.len()))),
        }
    }

    fn is_inside(&self, node: &SymbolNode) -> bool {
        !node.is_variable() && node.attrs.get(GRAPH) == Some(&self.name)
    }

    /// The graph of what a closure made.
    fn cut(&self, made: &Loop, formals: &[Symbol]) -> Result<FlowPart, SymbolError> {
        let results: Vec<&Symbol> = made.outputs.iter().chain(&made.states).collect();
        let heads = self.entries(&results)?;
        let mut copies: HashMap<usize, Arc<SymbolNode>> = HashMap::new();
        let mut outside: HashMap<(usize, u32), Arc<SymbolNode>> = HashMap::new();
        let mut taken: Vec<(Arc<SymbolNode>, NodeOutput)> = vec![];
        let mut within = |e: &NodeOutput, copies: &HashMap<usize, Arc<SymbolNode>>| -> NodeOutput {
            if let Some(copy) = copies.get(&key(&e.node)) {
                return NodeOutput { node: copy.clone(), ..e.clone() };
            }
            if e.node.is_variable() {
                return e.clone();
            }
            let stand_in = outside.entry((key(&e.node), e.index)).or_insert_with(|| {
                let variable = SymbolNode::variable(e.node.output_name(e.index), Attrs::new());
                taken.push((variable.clone(), e.clone()));
                variable
            });
            NodeOutput::first(stand_in.clone())
        };
        for node in post_order(&heads).iter().filter(|n| self.is_inside(n)) {
            let inputs = node.inputs.iter().map(|e| within(e, &copies)).collect();
            let control = node.control.iter().filter_map(|n| copies.get(&key(n)).cloned()).collect();
            let (name, attrs, op) = (node.name.clone(), node.attrs.clone(), node.op.clone());
            copies.insert(
                key(node),
                Arc::new(SymbolNode { name, attrs, op, inputs, control, uses: VariableUses::default() }),
            );
        }
        let graph = Symbol::of(heads.iter().map(|e| within(e, &copies)).collect());
        let formal =
            |node: &Arc<SymbolNode>| formals.iter().position(|f| f.heads.iter().any(|e| Arc::ptr_eq(&e.node, node)));
        let leaked = post_order(&taken.iter().map(|(_, e)| e.clone()).collect::<Vec<_>>());
        if let Some(node) = leaked.iter().find(|n| formal(n).is_some()) {
            return Err(self.wrong(format!("`{}` is used by a symbol whose attribute `{GRAPH}` is another", node.name)));
        }
        let sources = graph.nodes().into_iter().filter(|n| n.is_variable()).map(|node| match formal(&node) {
            Some(i) => VariableSource::Formal(i),
            None => match taken.iter().find(|(variable, _)| Arc::ptr_eq(variable, &node)) {
                Some((_, entry)) => VariableSource::Outside(entry.clone()),
                None => VariableSource::Outside(NodeOutput { version: node.version(), node, index: 0 }),
            },
        });
        Ok(FlowPart { sources: sources.collect(), graph })
    }

    /// The places of the closure's variables among those of the graph.
    fn places(&self, part: &FlowPart, formals: std::ops::Range<usize>) -> Result<Vec<usize>, SymbolError> {
        let place = |i: usize| {
            let found = part.sources.iter().position(|s| matches!(s, VariableSource::Formal(j) if *j == i));
            found.ok_or_else(|| self.wrong(format!("the body does not use operand {i} of the loop")))
        };
        formals.map(place).collect()
    }

    fn node(
        &self,
        graphs: Vec<Symbol>,
        operands: Vec<NodeOutput>,
        params: &[(&str, String)],
    ) -> Result<Symbol, SymbolError> {
        let Some(def) = definition(self.op, &self.name, &graphs)? else {
            return Err(SymbolError::Operators(format!("`{}` runs no graphs", self.op)));
        };
        let own = params.iter().map(|(name, text)| ((*name).to_owned(), text.clone()));
        let mut attrs: Attrs = scoped_attrs(own.collect());
        attrs.insert(NUM_ARGS.to_owned(), operands.len().to_string());
        let operator = Operator::own(def);
        let wrong = |problem| SymbolError::param(self.op, &self.name, problem);
        let params = operator.params(&attrs, true).map_err(wrong)?;
        let op = Applied { operator, params, subgraphs: graphs };
        apply(self.name.as_str().into(), attrs, op, operands).map(Symbol::of_node)
    }
}
