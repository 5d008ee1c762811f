//! Seeing the values inside a graph.

use std::sync::Arc;

use tensorc_frontend::symbol::Lowering;

use super::place::ProgramPhase;
use super::program::{Arrays, Keys};
use super::training_graph::{TrainingGraph, TypedSymbol};
use super::{Bound, Executor};
use crate::error::Error;
use crate::ndarray::NDArray;
use tensorc::DType;

type Observer = dyn Fn(&str, &NDArray) + Send + Sync;

/// Who is shown internal values.
#[derive(Clone)]
pub(super) struct Monitor {
    observer: Arc<Observer>,
    /// Variables are shown as well.
    inputs: bool,
}

impl Executor {
    /// Shows the output of every node to `observer` at each forward pass, in the order of computation, by the
    /// names of [`tensorc_frontend::symbol::Symbol::internals`]; with `inputs`, the variables as well. Every
    /// value is then computed apart and kept, so this is for looking, not for speed.
    pub fn set_monitor(&mut self, inputs: bool, observer: impl Fn(&str, &NDArray) + Send + Sync + 'static) {
        self.monitor = Some(Monitor { observer: Arc::new(observer), inputs });
    }

    /// Stops showing values.
    pub fn clear_monitor(&mut self) {
        self.monitor = None;
    }

    /// Computes every internal value and shows it.
    pub(super) fn observe(&self, monitor: &Monitor, training: bool, keys: &Keys) -> Result<(), Error> {
        let compiler = self.rt.compiler();
        let internals = self.symbol.internals();
        let lowered = internals.to_graph(compiler.registry(), &Lowering { training, ..Lowering::default() })?;
        let types = self.input_types(lowered.random_nodes);
        let typed = TypedSymbol::new(compiler, lowered, &types)?;
        let bound: &Bound = &self.bound;
        let mut outputs = vec![];
        if typed.is_divided {
            let names: Vec<String> = typed.graph.outputs().iter().map(|(name, _)| name.to_string()).collect();
            let divided = self.divided(typed, None)?;
            for _ in &names {
                outputs.push(self.rt.empty(self.device, DType::F32, &[0])?);
            }
            let arrays = Arrays { bound, outputs: &outputs, heads: &[], step: None };
            let outputs = divided.forward(&self.rt, arrays, keys)?.outputs;
            self.show(monitor, names.iter().map(String::as_str).zip(&outputs));
            return Ok(());
        }
        let program = self.program(TrainingGraph::forward(typed))?;
        for (_, ty) in program.outputs() {
            outputs.push(self.rt.empty(self.device, ty.dtype, &ty.dims)?);
        }
        program.launch(
            &self.rt,
            Arrays { bound, outputs: &outputs, heads: &[], step: None },
            keys,
            ProgramPhase::Whole,
            &self.memory,
        )?;
        self.show(monitor, program.outputs().iter().map(|(name, _)| name.as_str()).zip(&outputs));
        Ok(())
    }

    fn show<'a>(&self, monitor: &Monitor, values: impl Iterator<Item = (&'a str, &'a NDArray)>) {
        let is_variable =
            |name: &str| self.bound.arguments.iter().chain(&self.bound.auxiliaries).any(|(n, _)| n == name);
        for (name, array) in values.filter(|(name, _)| monitor.inputs || !is_variable(name)) {
            (monitor.observer)(name, array);
        }
    }
}
