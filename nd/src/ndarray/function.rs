//! A compiled model as one call on arrays.

use std::sync::Arc;

use tensorc_ir::{DenseType, TensorType};
use tensorc_passes::infer::{bind, infer_graph};
use tensorc_passes::parts::first_part;
use tensorc_runtime::Device;
use tensorc_runtime::array::ArrayOperand;
use tensorc_runtime::engine::OpName;

use super::array::{NDArray, refuse_in_place};
use super::divided::{self, PartValue};
use super::program::ArrayProgram;
use super::recording;
use super::runtime::Runtime;
use crate::error::Error;
use tensorc::{Model, ProgramKey, Tensor};

/// A model compiled for inputs of fixed types. A run of its whole plan is one operation of the
/// engine; several may go on at the same time. Where shapes depend on values, a call waits for them.
pub struct CompiledFunction {
    rt: Runtime,
    /// For the default device.
    program: Arc<ArrayProgram>,
    inputs: Vec<(String, DenseType)>,
    outputs: Vec<(String, TensorType)>,
    /// Whether shapes depend on values.
    has_parts: bool,
}

impl Runtime {
    /// Compiles a model for inputs of the given types, in the order of its signature.
    ///
    /// # Errors
    /// The types contradict the model, or it holds what is not supported.
    pub fn function(&self, model: &Model, types: &[DenseType]) -> Result<CompiledFunction, Error> {
        let mut graph = model.graph().clone();
        bind(&mut graph, types)?;
        let typing = self.compiler().typing();
        infer_graph(&mut graph, typing.registry, typing.static_bytes)?;
        let has_parts = !first_part(&mut graph.clone(), typing)?.is_last();
        let names = graph.inputs().iter().map(|n| graph.node(*n).name.to_string());
        let inputs = names.zip(types.iter().cloned()).collect();
        let outputs = graph.outputs().iter().map(|(name, v)| (name.to_string(), graph.resolved(*v))).collect();
        let program = ArrayProgram::new(self.options().device, OpName::from(graph.name.clone()), graph);
        // What does not compile is refused now, not at the first call.
        match has_parts {
            true => program.session(self.compiler()).map(drop)?,
            false => program.code(self.compiler()).map(drop)?,
        }
        Ok(CompiledFunction { rt: self.clone(), program: Arc::new(program), inputs, outputs, has_parts })
    }
}

impl CompiledFunction {
    /// Names and types of the inputs.
    pub fn inputs(&self) -> &[(String, DenseType)] {
        &self.inputs
    }

    /// Names and types of the outputs; extents are not known that depend on values.
    pub fn outputs(&self) -> &[(String, TensorType)] {
        &self.outputs
    }

    /// Runs the model on arrays of one device, and returns its outputs before they are computed. If shapes in the model depend on
    /// values, it waits for these.
    ///
    /// # Errors
    /// An array's type or device is not the function's; or shapes depend on values, and an operator that a gradient is to go through has none.
    pub fn call(&self, inputs: &[&NDArray]) -> Result<Vec<NDArray>, Error> {
        let device = inputs.first().map_or(self.rt.options().device, |array| array.device());
        if self.has_parts {
            if inputs.iter().any(|array| array.is_recorded()) {
                self.check_inputs(inputs)?;
                let program = divided::differentiable(&self.rt, &*self.on(device)?, device)?;
                let operands = inputs.iter().map(|array| PartValue::Array((*array).clone())).collect();
                return divided::record(&self.rt, &program, device, operands);
            }
            let results = self.run_in_parts(inputs, device)?;
            return results.iter().map(|tensor| self.rt.from_tensor(tensor, device)).collect();
        }
        let fresh = |ty| self.rt.programs().fresh(device, ty);
        let made = self.program.outputs.iter().map(|ty| Ok(NDArray::new(self.rt.clone(), fresh(ty)?)));
        let mut outputs = made.collect::<Result<Vec<_>, Error>>()?;
        self.push(inputs, &outputs.iter().collect::<Vec<_>>())?;
        if inputs.iter().any(|array| array.is_recorded()) {
            recording::record_arrays(&self.program, inputs, &mut outputs);
        }
        Ok(outputs)
    }

    /// Runs the model on arrays and writes its outputs to arrays that exist; these may be inputs as
    /// well.
    ///
    /// # Errors
    /// An array's type or device is not the function's.
    pub fn call_into(&self, inputs: &[&NDArray], outputs: &[&NDArray]) -> Result<(), Error> {
        refuse_in_place(&self.program.name, inputs.iter().copied(), outputs.iter().copied())?;
        self.push(inputs, outputs)?;
        outputs.iter().for_each(|array| array.view().chunk().touch());
        Ok(())
    }

    /// What runs on a device.
    fn on(&self, device: Device) -> Result<Arc<ArrayProgram>, Error> {
        let ArrayProgram { number, name, graph, .. } = &*self.program;
        let (mut here, mut there) = (ProgramKey::of("model"), ProgramKey::of("model"));
        for (key, device) in [(&mut here, self.rt.options().device), (&mut there, device)] {
            key.number(*number);
            key.device(self.rt.space(), device);
        }
        if here == there {
            return Ok(self.program.clone());
        }
        self.rt.programs().get_or_make(&there, || Ok(ArrayProgram::new(device, name.clone(), graph.clone())))
    }

    /// Waits for the inputs, and runs the model on them.
    fn run_in_parts(&self, inputs: &[&NDArray], device: Device) -> Result<Vec<Tensor>, Error> {
        self.check_inputs(inputs)?;
        let inputs = inputs.iter().map(|array| array.to_tensor()).collect::<Result<Vec<_>, _>>()?;
        self.on(device)?.run_in_parts(self.rt.compiler(), &inputs)
    }

    /// Writes outputs that are there to arrays of their types.
    fn assign(&self, results: &[Tensor], outputs: &[&NDArray]) -> Result<(), Error> {
        self.check_outputs(results.iter().map(|result| &result.data().ty), outputs)?;
        results.iter().zip(outputs).try_for_each(|(result, array)| array.assign(result))
    }

    fn push(&self, inputs: &[&NDArray], outputs: &[&NDArray]) -> Result<(), Error> {
        if self.has_parts {
            let device = inputs.first().map_or(self.rt.options().device, |array| array.device());
            return self.assign(&self.run_in_parts(inputs, device)?, outputs);
        }
        self.check_inputs(inputs)?;
        self.check_outputs(self.program.outputs.iter(), outputs)?;
        let mut arrays = inputs.iter().chain(outputs);
        let device = arrays.next().map_or(self.rt.options().device, |array| array.device());
        if let Some(other) = arrays.find(|array| array.device() != device) {
            let op = self.program.name.to_string();
            return Err(Error::Devices { op, first: device, second: other.device() });
        }
        self.rt.check(&self.program.name, inputs.iter().chain(outputs).copied())?;
        let sources = inputs.iter().map(|array| ArrayOperand::View(array.view().clone())).collect();
        self.rt.run(&*self.on(device)?, device, sources, outputs.iter().map(|array| array.view()))
    }

    fn check_inputs(&self, given: &[&NDArray]) -> Result<(), Error> {
        self.check("input", self.inputs.iter().map(|(name, ty)| (name, ty)), given)
    }

    fn check_outputs<'t>(
        &'t self,
        types: impl ExactSizeIterator<Item = &'t DenseType>,
        given: &[&NDArray],
    ) -> Result<(), Error> {
        self.check("output", self.outputs.iter().map(|(name, _)| name).zip(types), given)
    }

    fn check<'t>(
        &self,
        side: &str,
        expected: impl ExactSizeIterator<Item = (&'t String, &'t DenseType)>,
        given: &[&NDArray],
    ) -> Result<(), Error> {
        let op = || self.program.name.to_string();
        if expected.len() != given.len() {
            let (expected, found) = (format!("{} {side}s", expected.len()), format!("{}", given.len()));
            return Err(Error::Operand { op: op(), name: format!("{side}s"), expected, found });
        }
        for ((name, ty), array) in expected.zip(given) {
            if *ty != array.ty() {
                let (expected, found) = (ty.to_string(), array.ty().to_string());
                return Err(Error::Operand { op: op(), name: format!("{side} `{name}`"), expected, found });
            }
        }
        Ok(())
    }
}
