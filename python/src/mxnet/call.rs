//! Operators of the registry on arrays, by their names and parameters in MXNet.

use pyo3::prelude::*;
use tensorc::ir::op::OpDef;
use tensorc::symbol::{Attrs, Operator, operators};
use tensorc_nd::{CallOperand, NDArray};

use super::array::Array;
use super::runtime;
use crate::errors;

/// An operand of a call.
#[derive(FromPyObject)]
pub enum Operand<'py> {
    Array(Bound<'py, Array>),
    Number(f64),
}

/// Names by which operators are found: those of MXNet, then those of the registry.
#[pyfunction]
pub fn operator_names(py: Python<'_>) -> PyResult<Vec<&'static str>> {
    let registry = operators().map_err(|error| errors::mxnet(py, &error))?;
    let mut names: Vec<&str> = registry.iter().flat_map(|op| op.names.mxnet.iter().copied().chain([op.name])).collect();
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// What an operator computes, and the names of its operands and parameters.
type Description = (&'static str, Vec<&'static str>, Vec<&'static str>);

/// Of an operator: what it computes, and the names of its operands and parameters, in order. `None` if there is none of the name.
#[pyfunction]
pub fn operator_parameters(py: Python<'_>, name: &str) -> PyResult<Option<Description>> {
    let registry = operators().map_err(|error| errors::mxnet(py, &error))?;
    let Some(operator) = Operator::find(registry, name) else { return Ok(None) };
    let Some(def) = registry.get(operator.def().name) else { return Ok(None) };
    let operands = def.inputs.iter().enumerate().filter(|(slot, _)| def.key_input != Some(*slot));
    let params = def.params.iter().map(|spec| spec.name).filter(|name| *name != OpDef::TRAINING);
    Ok(Some((def.doc, operands.map(|(_, spec)| spec.name).collect(), params.collect())))
}

/// Calls an operator on operands in their order, and others by name, with parameters as MXNet writes them; returns its results, or
/// writes them to `out`.
#[pyfunction]
#[pyo3(signature = (name, operands, named, parameters, out))]
pub fn invoke(
    py: Python<'_>,
    name: &str,
    operands: Vec<Operand<'_>>,
    named: Vec<(String, Operand<'_>)>,
    parameters: Attrs,
    out: Option<Vec<PyRef<'_, Array>>>,
) -> PyResult<Vec<Array>> {
    let rt = runtime(py)?;
    let registry = rt.compiler().registry();
    let fail = |why: String| Err(errors::mxnet(py, &format!("`{name}`: {why}")));
    let Some(operator) = Operator::find(registry, name) else { return fail("there is no such operator".to_owned()) };
    let params = match operator.params(&parameters, false) {
        Ok(params) => params,
        Err(problem) => return fail(problem.to_string()),
    };
    let slots = operator.operands(&params, operands.len());
    if operands.len() > slots.len() {
        return fail(format!("it takes {} operands, {} are given", slots.len(), operands.len()));
    }
    let mut given: Vec<(usize, &Operand<'_>)> = slots.iter().map(|slot| slot.slot).zip(&operands).collect();
    for (name, operand) in &named {
        let Some(slot) = slots.iter().find(|slot| slot.name == *name) else {
            return fail(format!("it has no operand or parameter `{name}`"));
        };
        given.push((slot.slot, operand));
    }
    let def = operator.def_in(registry);
    let arrays: Vec<(usize, Option<NDArray>, f64)> = given
        .iter()
        .map(|(slot, operand)| match operand {
            Operand::Array(array) => (*slot, Some(array.get().array()), 0.0),
            Operand::Number(number) => (*slot, None, *number),
        })
        .collect();
    let last = arrays.iter().map(|(slot, ..)| slot + 1).max().unwrap_or(0);
    let targets: Option<Vec<NDArray>> = out.map(|out| out.iter().map(|array| array.array()).collect());
    let work = || {
        let mut call = rt.op(def.name)?;
        for at in 0..last {
            call = match arrays.iter().find(|(slot, ..)| *slot == at) {
                Some((_, Some(array), _)) => call.arg(array),
                Some((_, None, number)) => call.arg(*number),
                None => call.arg(CallOperand::Absent),
            };
        }
        for (name, value) in params.iter() {
            call = call.param(name, value.clone());
        }
        match &targets {
            Some(targets) => {
                call.into(&targets.iter().collect::<Vec<_>>())?;
                Ok(vec![])
            }
            None => match def.result_count(&params).visible {
                1 => Ok(vec![call.invoke()?]),
                several => call.outputs(several).invoke_all(),
            },
        }
    };
    // Calls are recorded by the thread that makes them.
    let results: Result<Vec<NDArray>, tensorc_nd::Error> = py.detach(work);
    Ok(results.map_err(|error| errors::mxnet(py, &error))?.into_iter().map(Array::of).collect())
}
