//! Sums of arrays of several devices into one, and copies of one to several, as operations of the engine.

use tensorc_kernels::copy_non_temporal;
use tensorc_kvstore::sum;
use tensorc_runtime::Device;
use tensorc_runtime::array::{self, ArrayLaunch, ArrayOperand, LaunchOutput};
use tensorc_runtime::engine::{OpName, Property};

use crate::error::Error;
use tensorc_nd::{NDArray, Runtime};

/// How operations are queued.
#[derive(Clone, Copy, Debug)]
pub struct Urgency {
    pub property: Property,
    pub priority: i32,
}

impl Urgency {
    /// Among other work of the device.
    pub fn usual(priority: i32) -> Urgency {
        Urgency { property: Property::Normal, priority }
    }

    /// On threads of its own, whatever the device computes.
    pub fn ahead(priority: i32) -> Urgency {
        Urgency { property: Property::Prioritized, priority }
    }

    /// An operation that is queued so.
    pub fn launch(
        self,
        name: &OpName,
        device: Device,
        inputs: Vec<ArrayOperand>,
        outputs: Vec<LaunchOutput>,
    ) -> ArrayLaunch<'_> {
        let Urgency { property, priority } = self;
        ArrayLaunch { property, priority, ..ArrayLaunch::new(name, device, inputs, outputs) }
    }
}

fn host(rt: &Runtime, arrays: &[&NDArray]) -> bool {
    arrays.iter().all(|array| !rt.space().is_driven(array.device()))
}

fn sources(arrays: &[&NDArray]) -> Result<Vec<ArrayOperand>, Error> {
    let source = |array: &&NDArray| {
        array.settle()?;
        Ok(ArrayOperand::View(array.view().clone()))
    };
    arrays.iter().map(source).collect()
}

/// Writes the sum of arrays of one type and shape to `to`, in the order of the balanced tree over them.
///
/// # Errors
/// An operation cannot be pushed.
pub fn sum_to(rt: &Runtime, arrays: &[&NDArray], to: &NDArray, urgency: Urgency) -> Result<(), Error> {
    if let [one] = arrays {
        return if one.is_same(to) { Ok(()) } else { copy_to_all(rt, one, &[to], urgency) };
    }
    if !host(rt, arrays) || !host(rt, &[to]) {
        return sum_there(rt, arrays, to);
    }
    to.settle()?;
    let (inputs, outputs) = (sources(arrays)?, vec![LaunchOutput::write(to.view().clone())]);
    let name = OpName::from_static("kvstore_sum");
    let request = urgency.launch(&name, to.device(), inputs, outputs);
    array::launch(rt.space(), request, |inputs, outputs| {
        let parts: Vec<&[u8]> = inputs.iter().map(|input| input.data).collect();
        Ok(sum::sum_into(outputs[0].data, &parts, outputs[0].dtype)?)
    })?;
    to.view().chunk().touch();
    Ok(())
}

/// The sum on an accelerator, by its own kernels, one addition after the other in the order of the tree.
fn sum_there(rt: &Runtime, arrays: &[&NDArray], to: &NDArray) -> Result<(), Error> {
    let device = to.device();
    let mut sums = vec![];
    for array in arrays {
        sums.push(if array.device() == device { (*array).clone() } else { array.copy_to(device)? });
    }
    let total = add_tree(rt, &sums)?;
    Ok(total.copy_into(to)?)
}

fn add_tree(rt: &Runtime, arrays: &[NDArray]) -> Result<NDArray, Error> {
    match arrays {
        [] => Err(Error::Internal("a sum of no arrays".into())),
        [one] => Ok(one.clone()),
        _ => {
            let (left, right) = arrays.split_at(arrays.len().next_power_of_two() / 2);
            let (left, right) = (add_tree(rt, left)?, add_tree(rt, right)?);
            Ok(rt.op("add")?.arg(&left).arg(&right).invoke()?)
        }
    }
}

/// Adds an array to another of the same type and shape, in place.
///
/// # Errors
/// An operation cannot be pushed.
pub fn add_to(rt: &Runtime, to: &NDArray, other: &NDArray, urgency: Urgency) -> Result<(), Error> {
    if !host(rt, &[to, other]) {
        let brought;
        let other = match other.device() == to.device() {
            true => other,
            false => {
                brought = other.copy_to(to.device())?;
                &brought
            }
        };
        return Ok(rt.op("add")?.arg(to).arg(other).into(&[to])?);
    }
    to.settle()?;
    let (inputs, outputs) = (sources(&[other])?, vec![LaunchOutput::update(to.view().clone())]);
    let name = OpName::from_static("kvstore_add");
    let request = urgency.launch(&name, to.device(), inputs, outputs);
    array::launch(rt.space(), request, |inputs, outputs| {
        Ok(sum::add_assign(outputs[0].data, inputs[0].data, outputs[0].dtype)?)
    })?;
    to.view().chunk().touch();
    Ok(())
}

/// Copies an array to others of its type and shape, on any devices.
///
/// # Errors
/// An operation cannot be pushed.
pub fn copy_to_all(rt: &Runtime, from: &NDArray, to: &[&NDArray], urgency: Urgency) -> Result<(), Error> {
    let to: Vec<&NDArray> = to.iter().copied().filter(|to| !to.is_same(from)).collect();
    let Some(first) = to.first() else { return Ok(()) };
    if !host(rt, &to) || !host(rt, &[from]) {
        return Ok(to.iter().try_for_each(|to| from.copy_into(to))?);
    }
    let mut outputs = vec![];
    for array in &to {
        array.settle()?;
        outputs.push(LaunchOutput::write(array.view().clone()));
    }
    let name = OpName::from_static("kvstore_copy");
    let request = urgency.launch(&name, first.device(), sources(&[from])?, outputs);
    array::launch(rt.space(), request, |inputs, outputs| {
        outputs.iter_mut().for_each(|output| copy_non_temporal(output.data, inputs[0].data));
        Ok(())
    })?;
    to.iter().for_each(|to| to.view().chunk().touch());
    Ok(())
}
