//! Shapes and element types of a symbol's variables and outputs, from those of some of them.

use std::collections::BTreeMap;

use tensorc_frontend::symbol::{InputType, Lowering, Symbol, SymbolError, SymbolGraph, operators};
use tensorc_ir::graph::Value;
use tensorc_ir::op::Registry;
use tensorc_ir::{DType, Dim, Shape, TensorType};
use tensorc_passes::Options;
use tensorc_passes::infer::infer_graph;

use crate::error::Error;

/// A shape as far as it is known: `None` if the rank is not, an element `None` if that extent is not.
pub type PartialShape = Option<Vec<Option<u64>>>;

/// Something for every argument, output and auxiliary state, in the order of the symbol's lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SymbolTypes<T> {
    /// Of the arguments.
    pub arguments: Vec<T>,
    /// Of the outputs.
    pub outputs: Vec<T>,
    /// Of the auxiliary states.
    pub auxiliary: Vec<T>,
}

impl<T> SymbolTypes<T> {
    fn map<U>(&self, f: impl Fn(&T) -> U) -> SymbolTypes<U> {
        let all = |list: &[T]| list.iter().map(&f).collect();
        SymbolTypes { arguments: all(&self.arguments), outputs: all(&self.outputs), auxiliary: all(&self.auxiliary) }
    }

    /// `None` if one of them is.
    fn complete<U>(&self, f: impl Fn(&T) -> Option<U>) -> Option<SymbolTypes<U>> {
        let all = |list: &[T]| list.iter().map(&f).collect::<Option<Vec<U>>>();
        let (arguments, outputs) = (all(&self.arguments)?, all(&self.outputs)?);
        Some(SymbolTypes { arguments, outputs, auxiliary: all(&self.auxiliary)? })
    }
}

/// The result of inference that asks for everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inferred<T> {
    /// Everything is known.
    All(SymbolTypes<T>),
    /// Not all follows from what was given; the arguments and states that do not.
    Incomplete {
        /// Names of what is not known.
        unknown: Vec<String>,
    },
}

impl<T> Inferred<T> {
    /// What was inferred, if it is complete.
    pub fn all(self) -> Option<SymbolTypes<T>> {
        match self {
            Inferred::All(types) => Some(types),
            Inferred::Incomplete { .. } => None,
        }
    }
}

/// A shape in the notation of MXNet, where 0 is an unknown extent and no extents an unknown rank.
pub fn mxnet_shape(shape: &PartialShape) -> Vec<u64> {
    shape.as_ref().map(|dims| dims.iter().map(|d| d.unwrap_or(0)).collect()).unwrap_or_default()
}

/// Inference of symbols. Facts flow both ways: from operands to results and back.
///
/// Shapes are given by name of a variable, 0 for an unknown extent. What is given takes the place of what a
/// variable says about itself.
pub trait Infer {
    /// Every shape.
    ///
    /// # Errors
    /// What is given contradicts itself or the operators, or names no variable.
    fn infer_shape(&self, given: &[(&str, &[u64])]) -> Result<Inferred<Vec<u64>>, Error>;

    /// Shapes as far as they follow.
    ///
    /// # Errors
    /// As [`Infer::infer_shape`].
    fn infer_shape_partial(&self, given: &[(&str, &[u64])]) -> Result<SymbolTypes<PartialShape>, Error>;

    /// Every element type.
    ///
    /// # Errors
    /// As [`Infer::infer_shape`].
    fn infer_type(&self, given: &[(&str, DType)]) -> Result<Inferred<DType>, Error>;

    /// Element types as far as they follow.
    ///
    /// # Errors
    /// As [`Infer::infer_shape`].
    fn infer_type_partial(&self, given: &[(&str, DType)]) -> Result<SymbolTypes<Option<DType>>, Error>;
}

impl Infer for Symbol {
    fn infer_shape(&self, given: &[(&str, &[u64])]) -> Result<Inferred<Vec<u64>>, Error> {
        let partial = self.infer_shape_partial(given)?;
        let full = partial.complete(|shape| shape.as_ref()?.iter().copied().collect::<Option<Vec<u64>>>());
        Ok(full.map_or_else(
            || incomplete(self, &partial, |s| s.as_ref().is_some_and(|d| !d.contains(&None))),
            Inferred::All,
        ))
    }

    fn infer_shape_partial(&self, given: &[(&str, &[u64])]) -> Result<SymbolTypes<PartialShape>, Error> {
        let known = given.iter().map(|(name, dims)| {
            let dims = (!dims.is_empty()).then(|| dims.iter().map(|d| Some(*d).filter(|d| *d > 0)).collect());
            ((*name).to_owned(), InputType { dims, ..InputType::default() })
        });
        let types = infer(self, known.collect())?;
        Ok(types.map(|ty| match &ty.shape {
            Shape::Unranked => None,
            Shape::Ranked(dims) => Some(dims.iter().map(|d: &Dim| d.as_const()).collect()),
        }))
    }

    fn infer_type(&self, given: &[(&str, DType)]) -> Result<Inferred<DType>, Error> {
        let partial = self.infer_type_partial(given)?;
        let full = partial.complete(|dtype| *dtype);
        Ok(full.map_or_else(|| incomplete(self, &partial, Option::is_some), Inferred::All))
    }

    fn infer_type_partial(&self, given: &[(&str, DType)]) -> Result<SymbolTypes<Option<DType>>, Error> {
        let known = given
            .iter()
            .map(|(name, dtype)| ((*name).to_owned(), InputType { dtype: Some(*dtype), ..InputType::default() }));
        Ok(infer(self, known.collect())?.map(|ty| ty.dtype))
    }
}

fn incomplete<T, U>(symbol: &Symbol, partial: &SymbolTypes<T>, known: impl Fn(&T) -> bool) -> Inferred<U> {
    let open = |names: Vec<String>, list: &[T]| -> Vec<String> {
        names.into_iter().zip(list).filter(|(_, t)| !known(t)).map(|(name, _)| name).collect()
    };
    let mut unknown = open(symbol.list_arguments(), &partial.arguments);
    unknown.extend(open(symbol.list_auxiliary_states(), &partial.auxiliary));
    Inferred::Incomplete { unknown }
}

fn infer(symbol: &Symbol, types: BTreeMap<String, InputType>) -> Result<SymbolTypes<TensorType>, Error> {
    infer_with(operators()?, Options::default().static_bytes, symbol, types, None)
}

/// SymbolTypes as far as they follow, with the operators of a registry. Variables whose element type nothing decides
/// take `fallback`.
pub fn infer_with(
    registry: &Registry,
    static_bytes: u64,
    symbol: &Symbol,
    types: BTreeMap<String, InputType>,
    fallback: Option<DType>,
) -> Result<SymbolTypes<TensorType>, Error> {
    let inputs = symbol.list_inputs();
    if let Some(name) = types.keys().find(|name| !inputs.contains(name)) {
        let (symbol, candidates) = (symbol.to_string(), inputs.join(", "));
        return Err(SymbolError::UnknownArgument { symbol, name: name.clone(), candidates }.into());
    }
    let how = Lowering { types, ..Lowering::default() };
    let SymbolGraph { mut graph, arguments, aux, .. } = symbol.to_graph(registry, &how)?;
    infer_graph(&mut graph, registry, static_bytes)?;
    let variables = arguments.len() + aux.len();
    if fallback.is_some() {
        for i in 0..variables {
            let node = graph.inputs()[i];
            let ty = &mut graph.node_mut(node).types[0];
            ty.dtype = ty.dtype.or(fallback);
        }
        infer_graph(&mut graph, registry, static_bytes)?;
    }
    let input = |i: usize| graph.resolved(Value { node: graph.inputs()[i], port: 0 });
    Ok(SymbolTypes {
        arguments: (0..arguments.len()).map(input).collect(),
        outputs: graph.outputs().iter().map(|(_, v)| graph.resolved(*v)).collect(),
        auxiliary: (arguments.len()..variables).map(input).collect(),
    })
}
