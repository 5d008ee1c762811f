//! Recording and differentiating calls.

use std::cell::RefCell;

use pyo3::prelude::*;
use tensorc_nd::NDArray;
use tensorc_nd::autograd::{self, Backward, ModeGuard};

use super::array::Array;
use crate::errors;

/// A mode of the thread that enters it, until it leaves it.
#[pyclass(unsendable, module = "tensorc._tensorc")]
pub struct ModeScope {
    kind: Kind,
    /// One for each time that the scope was entered.
    guards: RefCell<Vec<ModeGuard>>,
}

#[derive(Clone, Copy)]
enum Kind {
    Record,
    RecordPrediction,
    Pause,
    TrainMode,
    PredictMode,
}

#[pymethods]
impl ModeScope {
    /// A mode by the name of its function in MXNet; `record(False)` is `record_prediction`.
    #[new]
    fn new(py: Python<'_>, name: &str) -> PyResult<ModeScope> {
        let kind = match name {
            "record" => Kind::Record,
            "record_prediction" => Kind::RecordPrediction,
            "pause" => Kind::Pause,
            "train_mode" => Kind::TrainMode,
            "predict_mode" => Kind::PredictMode,
            other => return Err(errors::mxnet(py, &format!("`{other}` is no mode of autograd"))),
        };
        Ok(ModeScope { kind, guards: RefCell::default() })
    }

    fn __enter__(&self) {
        self.guards.borrow_mut().push(match self.kind {
            Kind::Record => autograd::record(),
            Kind::RecordPrediction => autograd::record_prediction(),
            Kind::Pause => autograd::pause(),
            Kind::TrainMode => autograd::train_mode(),
            Kind::PredictMode => autograd::predict_mode(),
        });
    }

    fn __exit__(&self, _kind: &Bound<'_, PyAny>, _error: &Bound<'_, PyAny>, _traceback: &Bound<'_, PyAny>) {
        self.guards.borrow_mut().pop();
    }
}

/// Whether calls of this thread are recorded, and whether they run for training.
#[pyfunction]
pub fn autograd_mode() -> (bool, bool) {
    (autograd::is_recording(), autograd::is_training())
}

/// Takes gradients of heads by their variables; or by the given arrays, in order, as new arrays.
#[pyfunction]
#[pyo3(signature = (heads, gradients, variables, retain_graph, create_graph))]
pub fn backward(
    py: Python<'_>,
    heads: Vec<PyRef<'_, Array>>,
    gradients: Option<Vec<Option<PyRef<'_, Array>>>>,
    variables: Option<Vec<PyRef<'_, Array>>>,
    retain_graph: bool,
    create_graph: bool,
) -> PyResult<Vec<Array>> {
    let all = |list: &[PyRef<'_, Array>]| list.iter().map(|array| array.array()).collect::<Vec<NDArray>>();
    let heads = all(&heads);
    let gradient = |array: Option<PyRef<'_, Array>>| array.map(|array| array.array());
    let gradients: Vec<Option<NDArray>> = gradients.unwrap_or_default().into_iter().map(gradient).collect();
    let variables = variables.map(|variables| all(&variables));
    let work = || {
        let heads: Vec<&NDArray> = heads.iter().collect();
        let gradients: Vec<Option<&NDArray>> = gradients.iter().map(Option::as_ref).collect();
        match &variables {
            Some(variables) => autograd::grad(&heads, &variables.iter().collect::<Vec<_>>(), &gradients, create_graph),
            None => autograd::backward(&heads, &gradients, Backward { retain_graph }).map(|()| vec![]),
        }
    };
    let results: Result<Vec<NDArray>, tensorc_nd::Error> = py.detach(work);
    Ok(results.map_err(|error| errors::mxnet(py, &error))?.into_iter().map(Array::of).collect())
}
