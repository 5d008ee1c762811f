//! Models with operators on texts, which the host computes between runs of graphs.

use std::collections::BTreeMap;
use std::sync::Arc;

use tensorc_frontend::onnx::TextCall;
use tensorc_ir::graph::{Graph, NodeKind};
use tensorc_ir::op::OpError;
use tensorc_ops::texts::{HostValue, TextOperator};

use super::Numbering;
use crate::compiler::Compiler;
use crate::error::Error;
use crate::model::Model;
use crate::tensor::Tensor;

/// Values of inputs and of results of calls, by name.
type Values = BTreeMap<String, Tensor>;

/// Where an operand comes from.
enum Source {
    Input(String),
    Constant(Tensor),
    /// An output of the graph before the call.
    Computed(usize),
}

/// An operator, and the graph that computes its operands.
struct Call {
    node: String,
    op: String,
    operator: Arc<dyn TextOperator>,
    /// With the names of its inputs, if any operand is computed.
    before: Option<(Model, Vec<String>)>,
    /// By operand, and whether it is texts.
    operands: Vec<(Source, bool)>,
    results: Vec<Option<String>>,
}

/// The calls of a model, and the graph behind them.
pub(crate) struct TextCalls {
    calls: Vec<Call>,
    behind: Box<Model>,
    names: Vec<String>,
}

fn input_names(graph: &Graph) -> Vec<String> {
    graph.inputs().iter().map(|node| graph.node(*node).name.to_string()).collect()
}

impl Call {
    fn of(compiler: &Compiler, call: &TextCall) -> Call {
        let mut graph = call.operands.clone();
        let (mut computed, mut operands) = (vec![], vec![]);
        for ((_, value), is_text) in call.operands.outputs().iter().zip(&call.texts) {
            let node = graph.node(value.node);
            let source = match (&node.kind, graph.constant(*value)) {
                (NodeKind::Input, _) => Source::Input(node.name.to_string()),
                (_, Some(data)) => Source::Constant(data.clone().into()),
                _ => {
                    computed.push((computed.len().to_string().into(), *value));
                    Source::Computed(computed.len() - 1)
                }
            };
            operands.push((source, *is_text));
        }
        let before = (!computed.is_empty()).then(|| {
            graph.set_outputs(computed);
            let (graph, names) = used(graph);
            (Model::new(compiler.clone(), graph), names)
        });
        let (node, op, operator) = (call.node.clone(), call.op.clone(), call.operator.clone());
        let results = call.results.iter().map(|(name, _)| name.clone()).collect();
        Call { node, op, operator, before, operands, results }
    }

    /// Adds the results.
    fn run(&self, numbering: &mut Numbering<'_>, values: &mut Values) -> Result<(), Error> {
        let computed = match &self.before {
            Some((model, names)) => model.run(&chosen(values, names))?,
            None => vec![],
        };
        let mut operands = vec![];
        for (source, is_text) in &self.operands {
            let found = match source {
                Source::Input(name) => values.get(name),
                Source::Constant(tensor) => Some(tensor),
                Source::Computed(at) => computed.get(*at).map(|(_, tensor)| tensor),
            };
            let tensor = found.ok_or_else(|| self.error("an operand is missing".to_owned()))?;
            operands.push(match is_text {
                true => HostValue::Texts(numbering.texts(tensor)?),
                false => HostValue::Numbers(tensor.data().clone()),
            });
        }
        let results = self.operator.apply(&operands).map_err(|OpError(why)| self.error(why))?;
        for (name, result) in self.results.iter().zip(results) {
            let Some(name) = name else { continue };
            let tensor = match result {
                HostValue::Texts(texts) => numbering.numbers(&texts)?,
                HostValue::Numbers(data) => data.into(),
            };
            values.insert(name.clone(), tensor);
        }
        Ok(())
    }

    fn error(&self, why: String) -> Error {
        Error::TextOperator { node: self.node.clone(), op: self.op.clone(), why }
    }
}

/// A graph without inputs that nothing uses, and the names of the others.
fn used(mut graph: Graph) -> (Graph, Vec<String>) {
    graph.remove_dead();
    graph.inputs().to_vec().into_iter().for_each(|input| graph.remove_input(input));
    let names = input_names(&graph);
    (graph, names)
}

/// The values of some names.
fn chosen<'n>(values: &Values, names: &'n [String]) -> Vec<(&'n str, Tensor)> {
    names.iter().filter_map(|name| Some((name.as_str(), values.get(name)?.clone()))).collect()
}

impl TextCalls {
    /// The calls before a model whose inputs are inputs of the file and results of calls, and the inputs of the file in a graph.
    pub fn of(model: Model, calls: &[TextCall]) -> (TextCalls, Graph) {
        let compiler = model.compiler().clone();
        let mut inputs = model.graph().clone();
        inputs.set_outputs([]);
        inputs.remove_dead();
        let made = |name: &str| calls.iter().flat_map(TextCall::result_names).any(|result| result == name);
        for input in inputs.inputs().to_vec() {
            if made(&inputs.node(input).name) {
                inputs.remove_input(input);
            }
        }
        let calls = calls.iter().map(|call| Call::of(&compiler, call)).collect();
        let (graph, names) = used(model.graph().clone());
        (TextCalls { calls, behind: Box::new(Model::new(compiler, graph)), names }, inputs)
    }

    pub fn compiler(&self) -> &Compiler {
        self.behind.compiler()
    }

    /// That a model is several graphs.
    pub fn divided(&self) -> Error {
        let operators = self.calls.iter().map(|call| format!("{} of node `{}`", call.op, call.node));
        Error::TextOperators { operators: operators.collect::<Vec<_>>().join(", ") }
    }

    /// Compiles before the first run what all runs share.
    ///
    /// # Errors
    /// As [`Model::prepare`].
    pub fn prepare(&self) -> Result<(), Error> {
        let before = self.calls.iter().filter_map(|call| call.before.as_ref());
        before.map(|(model, _)| model).chain([&*self.behind]).try_for_each(Model::prepare)
    }

    /// The outputs by name.
    ///
    /// # Errors
    /// As [`Model::run`]; or an operator does not take its operands.
    pub fn run(
        &self,
        numbering: &mut Numbering<'_>,
        given: Vec<(&str, Tensor)>,
    ) -> Result<Vec<(String, Tensor)>, Error> {
        let mut values: Values = given.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect();
        self.calls.iter().try_for_each(|call| call.run(numbering, &mut values))?;
        self.behind.run(&chosen(&values, &self.names))
    }
}
