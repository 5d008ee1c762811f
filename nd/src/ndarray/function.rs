//! A compiled model as one call on arrays.

use std::sync::Arc;

use tensorc_ir::DenseType;
use tensorc_passes::infer::bind;
use tensorc_passes::parts::first_part;
use tensorc_runtime::Device;
use tensorc_runtime::array::ArrayOperand;
use tensorc_runtime::engine::OpName;

use super::array::{NDArray, refuse_in_place};
use super::program::ArrayProgram;
use super::recording;
use super::runtime::Runtime;
use crate::error::Error;
use tensorc::{Model, ProgramKey};

/// A model compiled for inputs of fixed types. A run of its whole plan is one operation of the
/// engine; several may go on at the same time.
pub struct CompiledFunction {
    rt: Runtime,
    /// For the default device.
    program: Arc<ArrayProgram>,
    inputs: Vec<(String, DenseType)>,
    outputs: Vec<(String, DenseType)>,
}

impl Runtime {
    /// Compiles a model for inputs of the given types, in the order of its signature.
    ///
    /// # Errors
    /// The types contradict the model, it holds what is not supported, or shapes in it depend on
    /// values, so that it has no single plan.
    pub fn function(&self, model: &Model, types: &[DenseType]) -> Result<CompiledFunction, Error> {
        let mut graph = model.graph().clone();
        bind(&mut graph, types)?;
        if !first_part(&mut graph, self.compiler().typing())?.is_last() {
            return Err(tensorc::Error::Parts { model: graph.name.clone() }.into());
        }
        let names = graph.inputs().iter().map(|n| graph.node(*n).name.to_string());
        let inputs = names.zip(types.iter().cloned()).collect();
        let outputs = graph.outputs().iter().map(|(name, v)| Ok((name.to_string(), graph.dense(*v)?)));
        let outputs = outputs.collect::<Result<_, Error>>()?;
        let program = ArrayProgram::new(self.options().device, OpName::from(graph.name.clone()), graph);
        // What does not compile is refused now, not at the first call.
        program.code(self.compiler())?;
        Ok(CompiledFunction { rt: self.clone(), program: Arc::new(program), inputs, outputs })
    }
}

impl CompiledFunction {
    /// Names and types of the inputs.
    pub fn inputs(&self) -> &[(String, DenseType)] {
        &self.inputs
    }

    /// Names and types of the outputs.
    pub fn outputs(&self) -> &[(String, DenseType)] {
        &self.outputs
    }

    /// Runs the model on arrays of one device, and returns its outputs before they are computed.
    ///
    /// # Errors
    /// An array's type or device is not the function's.
    pub fn call(&self, inputs: &[&NDArray]) -> Result<Vec<NDArray>, Error> {
        let device = inputs.first().map_or(self.rt.options().device, |array| array.device());
        let fresh = |ty| self.rt.programs().fresh(device, ty);
        let made = self.outputs.iter().map(|(_, ty)| Ok(NDArray::new(self.rt.clone(), fresh(ty)?)));
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

    fn push(&self, inputs: &[&NDArray], outputs: &[&NDArray]) -> Result<(), Error> {
        self.check("input", &self.inputs, inputs)?;
        self.check("output", &self.outputs, outputs)?;
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

    fn check(&self, side: &str, expected: &[(String, DenseType)], given: &[&NDArray]) -> Result<(), Error> {
        let op = || self.program.name.to_string();
        if expected.len() != given.len() {
            let (expected, found) = (format!("{} {side}s", expected.len()), format!("{}", given.len()));
            return Err(Error::Operand { op: op(), name: format!("{side}s"), expected, found });
        }
        for ((name, ty), array) in expected.iter().zip(given) {
            if *ty != array.ty() {
                let (expected, found) = (ty.to_string(), array.ty().to_string());
                return Err(Error::Operand { op: op(), name: format!("{side} `{name}`"), expected, found });
            }
        }
        Ok(())
    }
}
