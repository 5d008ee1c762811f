//! The handle of an array: its type, views of it, and reading it.

use std::sync::Arc;

use tensorc_abi::DType;
use tensorc_ir::DenseType;
use tensorc_ir::scalar::Scalar;
use tensorc_runtime::array::{self, ArrayLaunch, ArrayOperand, ArrayView, Extents, LaunchOutput};
use tensorc_runtime::engine::{OpName, Property};
use tensorc_runtime::{Device, DeviceKind, Element, TensorRef};

use super::mode::is_recording;
use super::runtime::Runtime;
use super::tape::Entry;
use crate::error::{AutogradError, Error};
use tensorc::Tensor;

/// A dense row-major array on a device. Cloning, [`NDArray::reshape`] and [`NDArray::rows`] give
/// handles to the same memory: what is written through one is seen through all.
///
/// `Debug` is type, shape and device; the elements may not be there yet.
#[derive(Clone, derive_more::Debug)]
#[debug("NDArray({} on {})", self.ty(), self.device())]
pub struct NDArray {
    rt: Runtime,
    view: ArrayView,
    /// What gradients know of the array.
    entry: Option<Entry>,
}

impl NDArray {
    pub(super) fn new(rt: Runtime, view: ArrayView) -> NDArray {
        NDArray { rt, view, entry: None }
    }

    /// The runtime that computes it.
    pub fn runtime(&self) -> &Runtime {
        &self.rt
    }

    /// Where the elements are, for operations that are pushed to the engine directly.
    pub fn view(&self) -> &ArrayView {
        &self.view
    }

    pub(super) fn entry(&self) -> Option<&Entry> {
        self.entry.as_ref()
    }

    pub(super) fn set_entry(&mut self, entry: Option<Entry>) {
        self.entry = entry;
    }

    /// Whether calls with this array are recorded.
    pub(super) fn is_recorded(&self) -> bool {
        is_recording() && self.entry.is_some()
    }

    /// Begins the deferred calls that concern this array's memory. What uses [`NDArray::view`] does so first.
    ///
    /// # Errors
    /// A deferred call cannot be compiled.
    pub fn settle(&self) -> Result<(), Error> {
        self.rt.settle(&self.view)
    }

    /// Where its memory is.
    pub fn device(&self) -> Device {
        self.view.device()
    }

    /// Type of its elements.
    pub fn dtype(&self) -> DType {
        self.view.dtype()
    }

    /// Its extents, outermost first.
    pub fn dims(&self) -> &[u64] {
        self.view.dims()
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.dims().len()
    }

    /// Number of elements.
    pub fn len(&self) -> u64 {
        self.view.len()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.view.is_empty()
    }

    pub(crate) fn ty(&self) -> DenseType {
        DenseType::new(self.dtype(), self.dims())
    }

    /// Whether both handles see the same elements.
    pub fn is_same(&self, other: &NDArray) -> bool {
        Arc::ptr_eq(self.view.chunk(), other.view.chunk()) && self.view.range() == other.view.range()
    }

    /// Waits until everything that writes the array is done.
    ///
    /// # Errors
    /// What computed it failed; every time, until it is overwritten.
    pub fn wait_to_read(&self) -> Result<(), Error> {
        self.settle()?;
        Ok(self.rt.engine().wait_to_read(self.view.chunk().var())?)
    }

    /// Waits until everything that reads or writes the array is done.
    ///
    /// # Errors
    /// As [`NDArray::wait_to_read`].
    pub fn wait_to_write(&self) -> Result<(), Error> {
        self.settle()?;
        Ok(self.rt.engine().wait_to_write(self.view.chunk().var())?)
    }

    /// Waits for the elements and copies them, little-endian and row-major.
    ///
    /// # Errors
    /// What computed them failed.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        self.settle()?;
        Ok(array::read(self.rt.space(), &self.rt.inner().common.read, &self.view)?)
    }

    /// Waits for the elements and copies them.
    ///
    /// # Errors
    /// The array holds another type, or what computed it failed.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, Error> {
        if self.dtype() != T::DTYPE {
            return Err(tensorc::Error::TensorType { found: self.dtype(), expected: T::DTYPE }.into());
        }
        let bytes = self.to_bytes()?;
        let mut values = Vec::with_capacity(self.len() as usize);
        values.extend(TensorRef::new(self.dtype(), self.dims(), &bytes).elements::<T>());
        Ok(values)
    }

    /// The only element, as f64.
    ///
    /// # Errors
    /// There is not exactly one, or what computed it failed.
    pub fn item(&self) -> Result<f64, Error> {
        let tensor = self.to_tensor()?;
        let item = tensor.data().item();
        let size = tensorc::Error::TensorSize { elements: self.len() as usize, dims: vec![] };
        item.map(|s| s.as_f64()).ok_or(size.into())
    }

    /// Waits for the elements and copies them to a host tensor.
    ///
    /// # Errors
    /// What computed them failed.
    pub fn to_tensor(&self) -> Result<Tensor, Error> {
        Ok(Tensor::from_bytes(self.dtype(), self.dims(), self.to_bytes()?)?)
    }

    /// A copy in memory of its own, on a device.
    ///
    /// # Errors
    /// The engine does not run.
    pub fn copy_to(&self, device: Device) -> Result<NDArray, Error> {
        if self.is_recorded() && device == self.device() {
            return self.apply("identity");
        }
        let copy = self.rt.empty(device, self.dtype(), self.dims())?;
        self.copy_into(&copy)?;
        Ok(copy)
    }

    /// A copy in memory of its own, on the same device.
    ///
    /// # Errors
    /// The engine does not run.
    pub fn copy(&self) -> Result<NDArray, Error> {
        self.copy_to(self.device())
    }

    /// Copies the elements to another array of the same type and shape, on any device.
    ///
    /// # Errors
    /// Types or shapes differ.
    pub fn copy_into(&self, to: &NDArray) -> Result<(), Error> {
        if self.ty() != to.ty() {
            let (expected, found) = (to.ty().to_string(), self.ty().to_string());
            return Err(Error::Target { op: "copy".into(), expected: found, found: expected });
        }
        self.rt.check("copy", [to])?;
        refuse_in_place("copy", [self], [to])?;
        self.settle()?;
        to.settle()?;
        let space = self.rt.space();
        let (device, property) = match (self.device(), to.device()) {
            (from, to) if from == to => (to, Property::Normal),
            (from, to) if space.is_driven(from) && space.is_driven(to) => (to, Property::CopyToDevice),
            (from, to) if to.kind == DeviceKind::Cpu || space.is_driven(from) => (from, Property::CopyFromDevice),
            (_, to) => (to, Property::CopyToDevice),
        };
        let request = to.overwriting(&self.rt.inner().common.copy, vec![ArrayOperand::View(self.view.clone())]);
        let request = ArrayLaunch { device, property, ..request };
        match [self.device(), to.device()].iter().all(|device| space.is_driven(*device)) {
            true => array::duplicate(space, request)?,
            false => array::launch(space, request, |inputs, outputs| {
                outputs[0].data.copy_from_slice(inputs[0].data);
                Ok(())
            })?,
        }
        to.view.chunk().touch();
        Ok(())
    }

    /// Lets a tensor's elements be the array's. Returns before they are copied; until then they are shared, not copied.
    ///
    /// # Errors
    /// Types or shapes differ.
    pub fn assign(&self, tensor: &Tensor) -> Result<(), Error> {
        if self.ty() != tensor.data().ty {
            let (expected, found) = (tensor.data().ty.to_string(), self.ty().to_string());
            return Err(Error::Target { op: "copy".into(), expected, found });
        }
        refuse_in_place("copy", [], [self])?;
        self.rt.bound_run_ahead(tensor.bytes().len() as u64)?;
        self.settle()?;
        let data = tensor.data().bytes().clone();
        let given = ArrayOperand::Host { dtype: tensor.dtype(), dims: Extents::from_slice(tensor.dims()), data };
        let request = self.overwriting(&self.rt.inner().common.copy, vec![given]);
        let request = ArrayLaunch { property: Property::CopyToDevice, ..request };
        array::launch(self.rt.space(), request, |inputs, outputs| {
            outputs[0].data.copy_from_slice(inputs[0].data);
            Ok(())
        })?;
        self.view.chunk().touch();
        Ok(())
    }

    /// Writes one value, converted to the array's type, to every element.
    ///
    /// # Errors
    /// The engine does not run.
    pub fn fill(&self, value: f64) -> Result<(), Error> {
        refuse_in_place("fill", [], [self])?;
        self.fill_with(Scalar::from_f64(self.dtype(), value))
    }

    /// As [`NDArray::fill`], with a value of the array's type.
    pub(super) fn fill_with(&self, value: Scalar) -> Result<(), Error> {
        self.settle()?;
        let mut element = [0u8; 8];
        let size = self.dtype().size();
        value.write(&mut element[..size]);
        let request = self.overwriting(&self.rt.inner().common.fill, vec![]);
        let space = self.rt.space();
        match space.is_driven(self.device()) {
            true => array::repeat(space, request, element[..size].to_vec())?,
            false => array::launch(space, request, move |_, outputs| {
                match element[..size].iter().all(|b| *b == element[0]) {
                    true => outputs[0].data.fill(element[0]),
                    false => outputs[0].data.chunks_exact_mut(size).for_each(|to| to.copy_from_slice(&element[..size])),
                }
                Ok(())
            })?,
        }
        self.view.chunk().touch();
        Ok(())
    }

    /// An operation of the array's device that writes every element of it.
    pub(super) fn overwriting<'n>(&self, name: &'n OpName, inputs: Vec<ArrayOperand>) -> ArrayLaunch<'n> {
        ArrayLaunch::new(name, self.device(), inputs, vec![LaunchOutput::write(self.view.clone())])
    }

    /// An operation named after assignments that changes elements of the array.
    pub(super) fn assigning(&self, inputs: Vec<ArrayOperand>) -> ArrayLaunch<'_> {
        let name = &self.rt.inner().common.assign;
        ArrayLaunch::new(name, self.device(), inputs, vec![LaunchOutput::update(self.view.clone())])
    }
}

impl Runtime {
    /// Arrays of another runtime are ordered by another engine, so they cannot meet ours.
    pub(super) fn check<'a>(&self, op: &str, arrays: impl IntoIterator<Item = &'a NDArray>) -> Result<(), Error> {
        match arrays.into_iter().all(|array| self.is_same(&array.rt)) {
            true => Ok(()),
            false => Err(Error::Runtimes { op: op.to_owned() }),
        }
    }
}

/// Refuses to write an array that recorded calls read or made, and to write what is to be recorded to an array that
/// exists: the gradient would not see it.
pub(super) fn refuse_in_place<'a>(
    op: &str,
    operands: impl IntoIterator<Item = &'a NDArray>,
    targets: impl IntoIterator<Item = &'a NDArray>,
) -> Result<(), Error> {
    match operands.into_iter().chain(targets).any(NDArray::is_recorded) {
        true => Err(AutogradError::InPlace { op: op.to_owned() }.into()),
        false => Ok(()),
    }
}
