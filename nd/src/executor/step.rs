//! A whole training step as one run: forward, backward and the optimizer's update.

use std::sync::Arc;

use bytes::Bytes;
use tensorc_ir::DenseType;

use super::Executor;
use super::divided::refuse_step;
use super::place::ProgramPhase;
use super::program::{Arrays, OptimizerInputs, PlacedGraph};
use super::training_graph::{GradientRequests, TrainingGraph};
use super::update::UpdateRule;
use crate::error::Error;
use crate::ndarray::NDArray;

/// The states an optimizer keeps for one parameter, by their names.
#[derive(Clone, Debug)]
pub struct ParameterStates {
    /// The name of the parameter.
    pub parameter: String,
    /// Name and value of each state.
    pub states: Vec<(String, NDArray)>,
}

/// A training step of an executor, compiled as one plan. Gradients live in the plan only: gradient arrays are
/// not written.
pub struct FusedStep {
    program: Arc<PlacedGraph>,
    /// By argument; empty for those that are not trained.
    parameters: Vec<ParameterStates>,
    numbers: usize,
}

impl FusedStep {
    /// Parameters and optimizer states by argument, in the order of the rows of the table of numbers; without
    /// states also what is not trained.
    pub fn parameters(&self) -> &[ParameterStates] {
        &self.parameters
    }

    /// Lets the states of a parameter be these arrays, in order, in place of those that the step has.
    ///
    /// # Errors
    /// The parameter is not trained, or a type is not that of the state.
    pub fn set_states(&mut self, parameter: &str, arrays: &[NDArray]) -> Result<(), Error> {
        let Some(of) = self.parameters.iter_mut().find(|p| p.parameter == parameter) else {
            return Err(Error::Bind(format!("the step has no parameter `{parameter}`")));
        };
        let fits = |((_, old), new): (&(String, NDArray), &NDArray)| {
            (old.dtype(), old.dims(), old.device()) == (new.dtype(), new.dims(), new.device())
        };
        if of.states.len() != arrays.len() || !of.states.iter().zip(arrays).all(fits) {
            let why = format!("`{parameter}` keeps {:?}, {arrays:?} are given", of.states);
            return Err(Error::Bind(why));
        }
        of.states.iter_mut().zip(arrays).for_each(|((_, old), new)| *old = new.clone());
        Ok(())
    }

    /// Numbers for each argument.
    pub fn numbers(&self) -> usize {
        self.numbers
    }
}

impl Executor {
    /// Builds the training step in which `rule` updates every argument whose gradient is wanted. States begin as
    /// zeros, or are those of `with`, matched by name.
    ///
    /// # Errors
    /// A gradient is missing, an operator does not take the types, no output is a loss, or shapes depend on values.
    pub fn fuse(&self, rule: &dyn UpdateRule, with: Option<&FusedStep>) -> Result<FusedStep, Error> {
        let typed = self.typed(true)?;
        let backward = GradientRequests { requests: &self.bound.requests, update: Some(rule) };
        if typed.is_divided {
            return Err(refuse_step(&typed.graph));
        }
        let training_graph = TrainingGraph::training(self.rt.compiler(), typed, &backward)?;
        let mut parameters = vec![];
        for ((name, array), request) in self.bound.arguments.iter().zip(&self.bound.requests) {
            let ty = DenseType::new(array.dtype(), array.dims());
            let wanted = if *request == super::GradReq::Null { vec![] } else { rule.states(&ty) };
            let old = with.and_then(|step| step.parameters.iter().find(|p| p.parameter == *name));
            let mut states = vec![];
            for (state, ty) in wanted {
                let kept = old.and_then(|old| old.states.iter().find(|(n, _)| n == state)).map(|(_, array)| array);
                states.push((
                    state.to_owned(),
                    match kept {
                        Some(array) => array.clone(),
                        None => self.rt.full(array.device(), ty.dtype, &ty.dims, 0.0)?,
                    },
                ));
            }
            parameters.push(ParameterStates { parameter: name.clone(), states });
        }
        Ok(FusedStep { program: Arc::new(self.program(training_graph)?), parameters, numbers: rule.numbers() })
    }

    /// Memory planned for a step, gradients included; compiles it.
    ///
    /// # Errors
    /// The graph does not compile.
    pub fn planned_step_memory(&self, step: &FusedStep) -> Result<super::PlannedMemory, Error> {
        step.program.planned(&self.rt, &self.memory)
    }

    /// Runs a training step: computes the outputs and updates parameters, optimizer states and auxiliary
    /// states. `numbers` is the table `f32[arguments, rule.numbers()]`, row by row, of what the step depends on.
    ///
    /// # Errors
    /// The table has another size. What goes wrong while running stays with the arrays.
    pub fn step(&mut self, step: &FusedStep, numbers: &[f32]) -> Result<&[NDArray], Error> {
        let expected = step.parameters.len() * step.numbers;
        if numbers.len() != expected {
            return Err(Error::Bind(format!("{} numbers are given for a step, it takes {expected}", numbers.len())));
        }
        self.fixed.write(&self.bound)?;
        let keys = step.program.draw_keys(&self.rt, self.stream);
        self.memory.begin();
        let work = OptimizerInputs {
            states: step.parameters.iter().map(|p| p.states.iter().map(|(_, a)| a.clone()).collect()).collect(),
            numbers: numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Bytes>(),
        };
        let arrays = Arrays { bound: &self.bound, outputs: &self.outputs, heads: &[], step: Some(&work) };
        step.program.launch(&self.rt, arrays, &keys, ProgramPhase::Whole, &self.memory)?;
        self.pass = None;
        Ok(&self.outputs)
    }
}
