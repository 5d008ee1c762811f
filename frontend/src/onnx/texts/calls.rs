//! Operators on texts that the host computes: calls between graphs. The operands of a call are the outputs of a graph of their own,
//! its results inputs of graphs that follow.

use std::sync::Arc;

use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::op::OpError;
use tensorc_ir::params::Params;
use tensorc_ir::{DType, Dim, Shape, TensorType};
use tensorc_ops::texts::{OperandType, ResultType, TEXTS_OF_NUMBERS, TextOpDef, TextOperator, find};

use super::super::attribute;
use super::super::error::{OnnxError, TensorSite, describe_node};
use super::super::import::Importer;
use super::super::load::canonical_domain;
use super::super::meaning::Meaning;
use super::super::proto::{DataType, NodeProto};

/// An operator on texts in a model.
#[derive(Clone, Debug)]
pub struct TextCall {
    /// The name of the node.
    pub node: String,
    /// The name of the operator.
    pub op: String,
    /// What computes it.
    pub operator: Arc<dyn TextOperator>,
    /// The graph whose outputs are the operands. Its inputs are inputs of the model and results of calls before.
    pub operands: Graph,
    /// Whether operands are texts.
    pub texts: Vec<bool>,
    /// Inputs of the graphs that follow which are the results, if anything uses them, and whether they are texts.
    pub results: Vec<(Option<String>, bool)>,
}

impl TextCall {
    /// The names of the results.
    pub fn result_names(&self) -> impl Iterator<Item = &str> {
        self.results.iter().filter_map(|(name, _)| name.as_deref())
    }
}

/// The operator of the host that computes a node, if one does. Casts of texts to texts move them.
pub(super) fn host_operator(node: &mut NodeProto, of_texts: bool) -> Option<TextOpDef> {
    let found = *find(canonical_domain(node.domain()), node.op_type())?;
    if node.op_type() != "Cast" {
        return Some(found);
    }
    let to_text = node.attribute.iter().any(|a| a.name() == "to" && a.i() == i64::from(DataType::String as i32));
    match (of_texts, to_text) {
        (true, true) => {
            node.op_type = Some("Identity".to_owned());
            node.attribute.clear();
            None
        }
        (true, false) => {
            node.attribute.retain(|a| a.name() == "to");
            Some(found)
        }
        (false, true) => {
            node.attribute.clear();
            Some(TEXTS_OF_NUMBERS)
        }
        (false, false) => None,
    }
}

impl Importer<'_> {
    /// Adds a call of the host; the inner error lists what is not supported.
    pub(in super::super) fn text_call(
        &mut self,
        node: &NodeProto,
        def: TextOpDef,
        label: &Arc<str>,
    ) -> Result<Result<(), Vec<String>>, OnnxError> {
        let inputs = self.operand_names(node)?;
        let operator = match self.operator(node, def, inputs.len())? {
            Ok(operator) => operator,
            Err(reasons) => return Ok(Err(reasons)),
        };
        let (mut operands, mut given) = (vec![], vec![]);
        for input in &inputs {
            if let Some(what) = self.meaning(input)?.other_than_tensor() {
                return Ok(Err(vec![format!("its operand `{input}` is {what}")]));
            }
            let Some(operand) = self.lookup(input)? else {
                self.give_up(node.output.clone());
                return Ok(Ok(()));
            };
            operands.push(operand);
            let ty = self.known_type(input).unwrap_or_default();
            let dtype = ty.dtype.filter(|_| !self.is_text(input));
            given.push(OperandType { dtype, dims: ty.shape.dims().map(<[Dim]>::to_vec) });
        }
        let types = operator.types(&given);
        if node.output.len() > types.len() {
            return Ok(Err(vec![format!("result {} is not supported", types.len() + 1)]));
        }
        self.files.budget.take_analysis(self.graph.node_count() as u64)?;
        let graph = self.graph_of(&operands);
        let texts = inputs.iter().map(|input| self.is_text(input)).collect();
        let mut results = vec![];
        for (at, ty) in types.into_iter().enumerate() {
            let name = node.output.get(at).filter(|name| !name.is_empty()).cloned();
            results.push((name.clone(), ty.dtype.is_none()));
            name.into_iter().for_each(|name| self.call_result(name, ty.clone()));
        }
        let (node, op) = (label.to_string(), node.op_type().to_owned());
        self.texts.calls.push(TextCall { node, op, operator: operator.into(), operands: graph, texts, results });
        Ok(Ok(()))
    }

    /// The names of the operands. A map has two: its keys and its values.
    fn operand_names(&mut self, node: &NodeProto) -> Result<Vec<String>, OnnxError> {
        let mut names = vec![];
        for input in node.input.iter().filter(|name| !name.is_empty()) {
            match self.meaning(input)? {
                Meaning::Map(parts) => names.extend(parts.iter().map(|part| part.to_string())),
                _ => names.push(input.clone()),
            }
        }
        Ok(names)
    }

    /// An operator with the attributes of a node, for so many operands.
    fn operator(
        &mut self,
        node: &NodeProto,
        def: TextOpDef,
        given: usize,
    ) -> Result<Result<Box<dyn TextOperator>, Vec<String>>, OnnxError> {
        let (mut params, mut reasons) = (Params::new(), vec![]);
        for proto in &node.attribute {
            let Some((name, kind)) = def.params.iter().find(|(name, _)| *name == proto.name()) else {
                reasons.push(format!("attribute `{}` is not supported", proto.name()));
                continue;
            };
            let site = TensorSite::Attribute { node: describe_node(node), name: proto.name().to_owned() };
            match attribute::parameter(proto, *kind, site, &mut self.files)? {
                Ok(value) => params.set(name, value),
                Err(reason) => reasons.push(format!("attribute `{name}`: {reason}")),
            }
        }
        if !(def.operands.0..=def.operands.1).contains(&given) {
            reasons.push(format!("it has {given} operands, of which a map is two"));
        }
        if !reasons.is_empty() {
            return Ok(Err(reasons));
        }
        Ok(def.operator(&params).map_err(|OpError(reason)| vec![reason]))
    }

    /// What computes values, in a graph of its own.
    fn graph_of(&self, values: &[Value]) -> Graph {
        let mut graph = self.graph.clone();
        graph.set_outputs(values.iter().enumerate().map(|(at, value)| (at.to_string().into(), *value)));
        graph.remove_dead();
        let inputs = graph.inputs().to_vec();
        // Those that something uses stay.
        inputs.into_iter().for_each(|input| graph.remove_input(input));
        graph
    }

    /// An input of the graph that is a result of a call.
    fn call_result(&mut self, name: String, ty: ResultType) {
        let dims = ty.dims.map(|dims| {
            let fresh = |(axis, dim): (usize, Option<Dim>)| {
                dim.unwrap_or_else(|| self.graph.dims.fresh(Some(&format!("{name}.{axis}"))))
            };
            dims.into_iter().enumerate().map(fresh).collect()
        });
        let shape = dims.map_or(Shape::Unranked, Shape::Ranked);
        let value = self.graph.add_input(name.as_str(), TensorType::new(ty.dtype.unwrap_or(DType::I64), shape));
        if ty.dtype.is_none() {
            self.texts.add_value(&name);
        }
        self.values.insert(name, Meaning::Tensor(value));
    }
}
