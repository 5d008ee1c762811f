//! Applying an optimizer to arrays, and keeping what it remembers of them.

use std::collections::BTreeMap;
use std::path::Path;

use tensorc_runtime::Device;

use super::{Clock, Optimizer, Update};
use crate::error::{Error, TrainError};
use tensorc::{DType, Tensor};
use tensorc_nd::{CallOperand, NDArray, Runtime};

/// Applies an optimizer to parameters by name, in place, and keeps their states.
#[derive(Debug)]
pub struct Updater {
    /// What is applied. Of a parameter that has states, [`Updater::update`] follows later changes of the schedule, the
    /// weight decay and their multipliers only.
    pub optimizer: Optimizer,
    /// Counts of updates, which schedules and bias corrections follow.
    pub clock: Clock,
    /// States by parameter, in the order of [`Update::states`].
    states: BTreeMap<String, UpdaterStates>,
}

#[derive(Debug)]
struct UpdaterStates {
    update: Update,
    arrays: Vec<NDArray>,
}

/// The name under which the count of the latest update is saved.
const LATEST: &str = "num_update";
/// What follows a parameter's name where its own count is saved.
const COUNT: &str = "updates";

impl Updater {
    /// Without states; each parameter's are made at its first update.
    pub fn new(optimizer: Optimizer) -> Updater {
        Updater { optimizer, clock: Clock::default(), states: BTreeMap::new() }
    }

    /// Moves a parameter by its gradient. Returns before that is done.
    ///
    /// # Errors
    /// The arrays do not fit each other, or the optimizer does not fit their type.
    pub fn update(&mut self, parameter: &str, weight: &NDArray, grad: &NDArray) -> Result<(), Error> {
        self.prepare(parameter, weight)?;
        let Some(kept) = self.states.get(parameter) else {
            return Err(Error::Internal(format!("no states of `{parameter}`")));
        };
        let numbers = self.optimizer.numbers(&kept.update, parameter, &mut self.clock);
        let rt = weight.runtime();
        let mut call = rt.op(kept.update.def.name)?.arg(weight).arg(grad).args(&kept.arrays);
        for number in numbers {
            let tensor = match kept.update.number_type {
                DType::F64 => Tensor::from_slice(&[], &[number])?,
                _ => Tensor::from_slice(&[], &[number as f32])?,
            };
            call = call.arg(CallOperand::Tensor(tensor));
        }
        for (name, value) in kept.update.params.iter() {
            call = call.param(name, value.clone());
        }
        let targets: Vec<&NDArray> = [weight].into_iter().chain(&kept.arrays).collect();
        Ok(call.into(&targets)?)
    }

    /// Makes the states of a parameter if there are none.
    ///
    /// # Errors
    /// The optimizer does not fit the parameter's type, or its states have another shape.
    pub fn prepare(&mut self, parameter: &str, weight: &NDArray) -> Result<(), Error> {
        if let Some(kept) = self.states.get(parameter) {
            return match kept.arrays.iter().find(|state| state.dims() != weight.dims()) {
                None => Ok(()),
                Some(state) => {
                    let why = format!("its shape is {:?}, its states have {:?}", weight.dims(), state.dims());
                    Err(TrainError::Update { parameter: parameter.to_owned(), why }.into())
                }
            };
        }
        let rt = weight.runtime();
        let update = self.optimizer.update_of(rt.compiler().registry(), parameter, weight.dtype())?;
        let make = |state: &super::State| match state.is_weight {
            true => weight.cast(state.dtype),
            false => rt.full(weight.device(), state.dtype, weight.dims(), 0.0),
        };
        let arrays = update.states.iter().map(make).collect::<Result<_, _>>()?;
        self.states.insert(parameter.to_owned(), UpdaterStates { update, arrays });
        Ok(())
    }

    /// Counts an update of a parameter that has states and gives its numbers, in the order of
    /// [`Update::numbers`].
    pub(crate) fn next_numbers(&mut self, parameter: &str) -> Option<Vec<f64>> {
        let kept = self.states.get(parameter)?;
        Some(self.optimizer.numbers(&kept.update, parameter, &mut self.clock))
    }

    /// The operator that updates a parameter, and its states, once there are any.
    pub fn state(&self, parameter: &str) -> Option<(&Update, &[NDArray])> {
        self.states.get(parameter).map(|kept| (&kept.update, &kept.arrays[..]))
    }

    /// Names and arrays of all states: `NAME_STATE`, for example `fc1_weight_mom`.
    pub fn named_states(&self) -> Vec<(String, NDArray)> {
        let named = |(parameter, kept): (&String, &UpdaterStates)| {
            let names = kept.update.states.iter().map(|s| format!("{parameter}_{}", s.name)).collect::<Vec<_>>();
            names.into_iter().zip(kept.arrays.clone()).collect::<Vec<_>>()
        };
        self.states.iter().flat_map(named).collect()
    }

    /// Waits for the states and saves them with the counts of updates, as an MXNet list of arrays.
    ///
    /// # Errors
    /// What computed them failed, or the file cannot be written.
    pub fn save(&self, rt: &Runtime, path: impl AsRef<Path>) -> Result<(), Error> {
        let mut arrays = self.named_states();
        let count = |n: u64| rt.array(&[1], &[i64::try_from(n).unwrap_or(i64::MAX)]);
        for (parameter, n) in &self.clock.counts {
            arrays.push((format!("{parameter}_{COUNT}"), count(*n)?));
        }
        arrays.push((LATEST.to_owned(), count(self.clock.latest)?));
        Ok(rt.save(path, arrays.iter().map(|(name, array)| (name.as_str(), array)))?)
    }

    /// Takes up the states and counts of a file for parameters, given by name.
    ///
    /// # Errors
    /// The file cannot be read, or lacks a state of a parameter, or has it in another type or shape.
    pub fn load<'a>(
        &mut self,
        rt: &Runtime,
        device: Device,
        path: impl AsRef<Path>,
        parameters: impl IntoIterator<Item = (&'a str, &'a NDArray)>,
    ) -> Result<(), Error> {
        let saved: BTreeMap<String, NDArray> =
            rt.load(path, device)?.into_iter().filter_map(|(name, array)| Some((name?, array))).collect();
        let count = |name: &str| -> Result<Option<u64>, Error> {
            let array = saved.get(name).map(NDArray::to_tensor).transpose()?;
            Ok(array.and_then(|tensor| u64::try_from(*tensor.data().to_i64s().first()?).ok()))
        };
        let mut clock = Clock { latest: count(LATEST)?.unwrap_or(0), ..Clock::default() };
        for (parameter, weight) in parameters {
            self.prepare(parameter, weight)?;
            if let Some(n) = count(&format!("{parameter}_{COUNT}"))? {
                clock.counts.insert(parameter.to_owned(), n);
            }
            let Some(kept) = self.states.get(parameter) else { continue };
            for (state, array) in kept.update.states.iter().zip(&kept.arrays) {
                let name = format!("{parameter}_{}", state.name);
                let wrong = |why: String| TrainError::Update { parameter: parameter.to_owned(), why };
                let Some(found) = saved.get(&name) else {
                    return Err(wrong(format!("the file has no array `{name}`")).into());
                };
                if (found.dtype(), found.dims()) != (array.dtype(), array.dims()) {
                    return Err(wrong(format!("`{name}` is {found:?} in the file, not {array:?}")).into());
                }
                found.copy_into(array)?;
            }
        }
        self.clock = clock;
        Ok(())
    }
}
