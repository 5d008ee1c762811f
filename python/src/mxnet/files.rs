//! MXNet's files of arrays and of checkpoints.

use std::path::PathBuf;

use pyo3::prelude::*;
use tensorc_nd::NDArray;

use super::array::Array;
use super::runtime;
use super::symbol::Symbol;
use crate::errors;

/// Arrays and the names that they have, if they have any.
type NamedArrays = Vec<(Option<String>, Array)>;

/// Loads a file of arrays.
#[pyfunction]
pub fn load_arrays(py: Python<'_>, path: PathBuf) -> PyResult<NamedArrays> {
    let rt = runtime(py)?;
    let loaded = py.detach(|| rt.load(path, rt.options().device)).map_err(|error| errors::mxnet(py, &error))?;
    Ok(loaded.into_iter().map(|(name, array)| (name, Array::of(array))).collect())
}

/// Saves arrays, all with names or all without.
#[pyfunction]
#[pyo3(signature = (path, names, arrays))]
pub fn save_arrays(
    py: Python<'_>,
    path: PathBuf,
    names: Option<Vec<String>>,
    arrays: Vec<PyRef<'_, Array>>,
) -> PyResult<()> {
    let rt = runtime(py)?;
    let arrays: Vec<NDArray> = arrays.iter().map(|array| array.array()).collect();
    let save = || match &names {
        Some(names) => rt.save(path, names.iter().map(String::as_str).zip(&arrays)),
        None => rt.save_list(path, &arrays),
    };
    py.detach(save).map_err(|error| errors::mxnet(py, &error))
}

/// The network and the arguments and auxiliary states that were saved after an epoch.
#[pyfunction]
pub fn load_checkpoint(py: Python<'_>, prefix: PathBuf, epoch: u32) -> PyResult<(Symbol, NamedArrays, NamedArrays)> {
    let rt = runtime(py)?;
    let (symbol, params) =
        py.detach(|| tensorc_train::load_checkpoint(prefix, epoch)).map_err(|error| errors::mxnet(py, &error))?;
    let array = |(name, tensor): (String, tensorc::Tensor)| {
        let copied = rt.from_tensor(&tensor, rt.options().device).map_err(|error| errors::mxnet(py, &error))?;
        Ok((Some(name), Array::of(copied)))
    };
    let arguments = params.arguments.into_iter().map(array).collect::<PyResult<_>>()?;
    let auxiliary = params.auxiliary.into_iter().map(array).collect::<PyResult<_>>()?;
    Ok((Symbol::of(symbol), arguments, auxiliary))
}
