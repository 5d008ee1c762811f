//! `Updater`: an optimizer with the states of parameters.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use tensorc_train::{LrSchedule, Optimizer};

use super::array::Array;
use crate::errors;

/// An optimizer that moves parameters one by one.
#[pyclass(frozen, module = "tensorc._tensorc")]
pub struct Updater(Mutex<tensorc_train::Updater>);

/// An optimizer by MXNet's name, with settings in JSON, and a schedule of the learning rate in JSON.
///
/// # Errors
/// There is no such optimizer, or a setting of it is unknown or wrong.
pub fn optimizer(py: Python<'_>, name: &str, settings: &str, schedule: Option<&str>) -> PyResult<Optimizer> {
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).map_err(|error| errors::mxnet(py, &error));
    let optimizer = Optimizer::from_settings(name, &json(settings)?).map_err(|error| errors::mxnet(py, &error))?;
    match schedule {
        None => Ok(optimizer),
        Some(schedule) => {
            let schedule = serde_json::from_str::<LrSchedule>(schedule).map_err(|error| errors::mxnet(py, &error))?;
            schedule.check().map_err(|error| errors::mxnet(py, &error))?;
            Ok(optimizer.schedule(schedule))
        }
    }
}

#[pymethods]
impl Updater {
    #[new]
    fn new(py: Python<'_>, name: &str, settings: &str, schedule: Option<&str>) -> PyResult<Updater> {
        let optimizer = optimizer(py, name, settings, schedule)?;
        Ok(Updater(Mutex::new(tensorc_train::Updater::new(optimizer))))
    }

    /// Moves a parameter by its gradient.
    fn update(&self, py: Python<'_>, parameter: &str, weight: &Array, gradient: &Array) -> PyResult<()> {
        let (weight, gradient) = (weight.array(), gradient.array());
        let work = || {
            let mut updater = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            updater.update(parameter, &weight, &gradient)
        };
        py.detach(work).map_err(|error| errors::mxnet(py, &error))
    }
}
