//! `Symbol`: networks that are written down before they are run.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pyo3::prelude::*;
use tensorc::symbol::{self, Infer, Inferred, SymbolError, SymbolTypes};

use super::array::dtype_named;
use crate::{element, errors};

/// A symbol.
#[pyclass(frozen, subclass, module = "tensorc._tensorc")]
pub struct Symbol(symbol::Symbol);

impl Symbol {
    /// A handle of a symbol.
    pub fn of(symbol: symbol::Symbol) -> Symbol {
        Symbol(symbol)
    }

    /// The symbol.
    pub fn symbol(&self) -> &symbol::Symbol {
        &self.0
    }
}

fn made(py: Python<'_>, result: Result<symbol::Symbol, SymbolError>) -> PyResult<Symbol> {
    result.map(Symbol).map_err(|error| errors::mxnet(py, &error))
}

/// Of arguments, outputs and auxiliary states, in order.
type InferredLists<T> = (Vec<T>, Vec<T>, Vec<T>);

fn lists<T>(inferred: Inferred<T>) -> Option<InferredLists<T>> {
    inferred.all().map(|SymbolTypes { arguments, outputs, auxiliary }| (arguments, outputs, auxiliary))
}

#[pymethods]
impl Symbol {
    /// A variable with attributes, whose keys are those of MXNet's files.
    #[staticmethod]
    fn variable(py: Python<'_>, name: &str, attributes: BTreeMap<String, String>) -> PyResult<Symbol> {
        let builder =
            attributes.into_iter().fold(symbol::variable(name), |builder, (key, value)| builder.attr(&key, value));
        made(py, builder.build())
    }

    /// An operator on operands in their order, and others by name, with parameters as MXNet writes them.
    #[staticmethod]
    #[pyo3(signature = (operator, name, operands, named, parameters, attributes))]
    fn apply(
        py: Python<'_>,
        operator: &str,
        name: Option<&str>,
        operands: Vec<PyRef<'_, Symbol>>,
        named: BTreeMap<String, PyRef<'_, Symbol>>,
        parameters: BTreeMap<String, String>,
        attributes: BTreeMap<String, String>,
    ) -> PyResult<Symbol> {
        let mut builder = symbol::op(operator);
        if let Some(name) = name {
            builder = builder.name(name);
        }
        for operand in &operands {
            builder = builder.input(operand.symbol());
        }
        for (name, operand) in &named {
            builder = builder.arg(name, operand.symbol());
        }
        for (name, value) in parameters {
            builder = builder.param(&name, value);
        }
        for (name, value) in attributes {
            builder = builder.attr(&name, value);
        }
        made(py, builder.build())
    }

    #[getter]
    fn name(&self) -> Option<&str> {
        self.0.name()
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn output(&self, py: Python<'_>, index: usize) -> PyResult<Symbol> {
        made(py, self.0.output(index))
    }

    fn output_named(&self, py: Python<'_>, name: &str) -> PyResult<Symbol> {
        made(py, self.0.get(name))
    }

    fn internals(&self) -> Symbol {
        Symbol(self.0.internals())
    }

    fn children(&self) -> Option<Symbol> {
        self.0.children().map(Symbol)
    }

    fn list_arguments(&self) -> Vec<String> {
        self.0.list_arguments()
    }

    fn list_outputs(&self) -> Vec<String> {
        self.0.list_outputs()
    }

    fn list_auxiliary_states(&self) -> Vec<String> {
        self.0.list_auxiliary_states()
    }

    fn list_inputs(&self) -> Vec<String> {
        self.0.list_inputs()
    }

    fn attr(&self, key: &str) -> Option<String> {
        self.0.attr(key)
    }

    fn list_attr(&self) -> BTreeMap<String, String> {
        self.0.list_attr()
    }

    fn attr_dict(&self) -> BTreeMap<String, BTreeMap<String, String>> {
        self.0.attr_dict()
    }

    /// The symbol with others in place of variables.
    fn composed(&self, py: Python<'_>, replacements: BTreeMap<String, PyRef<'_, Symbol>>) -> PyResult<Symbol> {
        let pairs: Vec<(&str, &symbol::Symbol)> =
            replacements.iter().map(|(name, symbol)| (name.as_str(), symbol.symbol())).collect();
        made(py, self.0.compose(&pairs))
    }

    /// Shapes of arguments, outputs and auxiliary states, if they follow from the given ones, in which 0 is an unknown extent.
    fn infer_shape(
        &self,
        py: Python<'_>,
        given: BTreeMap<String, Vec<u64>>,
    ) -> PyResult<Option<InferredLists<Vec<u64>>>> {
        let pairs: Vec<(&str, &[u64])> = given.iter().map(|(name, dims)| (name.as_str(), &dims[..])).collect();
        Ok(lists(self.0.infer_shape(&pairs).map_err(|error| errors::mxnet(py, &error))?))
    }

    /// Names of the element types of arguments, outputs and auxiliary states, if they follow from the given ones.
    fn infer_type(
        &self,
        py: Python<'_>,
        given: BTreeMap<String, String>,
    ) -> PyResult<Option<InferredLists<&'static str>>> {
        let types = given.iter().map(|(name, dtype)| Ok((name.as_str(), dtype_named(dtype)?)));
        let types = types.collect::<PyResult<Vec<_>>>()?;
        let inferred = self.0.infer_type(&types).map_err(|error| errors::mxnet(py, &error))?;
        let names = |list: Vec<tensorc::DType>| list.into_iter().map(element::numpy_name).collect();
        Ok(lists(inferred).map(|(arguments, outputs, auxiliary)| (names(arguments), names(outputs), names(auxiliary))))
    }

    fn to_json(&self) -> String {
        self.0.to_json()
    }

    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.0.save(path).map_err(|error| errors::mxnet(py, &error))
    }
}

/// The outputs of several symbols as one.
#[pyfunction]
pub fn group(symbols: Vec<PyRef<'_, Symbol>>) -> Symbol {
    Symbol(symbol::Symbol::group(symbols.iter().map(|symbol| symbol.symbol())))
}

/// Reads the text of a symbol file.
#[pyfunction]
pub fn symbol_from_json(py: Python<'_>, text: &str) -> PyResult<Symbol> {
    made(py, symbol::Symbol::from_json(text))
}
