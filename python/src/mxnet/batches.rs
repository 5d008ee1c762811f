//! Batches from files: tables, MNIST and records of images.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use tensorc_data::formats::{CsvOptions, LibSvmOptions, MnistOptions};
use tensorc_data::images::ImageRecordOptions;
use tensorc_data::{DataError, DataIter, HostTensor};

use super::array::Array;
use super::runtime;
use crate::{element, errors};

/// An iterator over the batches of files.
#[pyclass(frozen, module = "tensorc._tensorc")]
pub struct FileBatches(Mutex<Box<dyn DataIter>>);

/// Name, shape and element type of an array of a batch.
type Desc = (String, Vec<u64>, &'static str);

/// Data, labels, examples that only fill the batch up, and the numbers of examples.
type Arrays = (Vec<Array>, Vec<Array>, usize, Vec<u64>);

#[pymethods]
impl FileBatches {
    /// Opens the source that MXNet's iterator of this name reads, by its options as texts.
    #[new]
    fn new(py: Python<'_>, iterator: &str, options: Vec<(String, String)>) -> PyResult<FileBatches> {
        let opened = py.detach(|| open(iterator, &options));
        opened.map(|opened| FileBatches(Mutex::new(opened))).map_err(|error| errors::mxnet(py, &error))
    }

    /// The arrays of a batch that are data, or labels.
    fn descs(&self, labels: bool) -> Vec<Desc> {
        let source = self.source();
        let descs = if labels { source.provide_label() } else { source.provide_data() };
        descs.iter().map(|desc| (desc.name.clone(), desc.dims.clone(), element::numpy_name(desc.dtype))).collect()
    }

    /// The next batch, `None` at the end of the epoch.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Arrays>> {
        let rt = runtime(py)?;
        let next = py.detach(|| self.source().next()).map_err(|error| errors::mxnet(py, &error))?;
        let Some(batch) = next else { return Ok(None) };
        let array = |tensor: &HostTensor| {
            let made = rt.from_bytes(rt.options().device, tensor.dtype(), tensor.dims(), tensor.bytes());
            made.map(Array::of).map_err(|error| errors::mxnet(py, &error))
        };
        let all = |tensors: &[HostTensor]| tensors.iter().map(array).collect::<PyResult<Vec<_>>>();
        Ok(Some((all(&batch.data)?, all(&batch.labels)?, batch.pad, batch.index)))
    }

    /// Goes to the beginning of the next epoch.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.source().reset()).map_err(|error| errors::mxnet(py, &error))
    }
}

impl FileBatches {
    fn source(&self) -> MutexGuard<'_, Box<dyn DataIter>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn open(iterator: &str, options: &[(String, String)]) -> Result<Box<dyn DataIter>, DataError> {
    macro_rules! source {
        ($of:ty) => {{
            let mut of = <$of>::default();
            options.iter().try_for_each(|(name, text)| of.set(name, text))?;
            Ok(Box::new(of.open()?))
        }};
    }
    match iterator {
        "CSVIter" => source!(CsvOptions),
        "LibSVMIter" => source!(LibSvmOptions),
        "MNISTIter" => source!(MnistOptions),
        "ImageRecordIter" => source!(ImageRecordOptions),
        other => Err(DataError::options("iterator", format!("there is no `{other}`"))),
    }
}
