//! Seeing the values inside a graph.

use std::sync::Arc;

use tensorc_frontend::symbol::Lowering;

use super::place::ProgramPhase;
use super::program::{Arrays, Keys};
use super::training_graph::TrainingGraph;
use super::{Bound, Executor};
use crate::error::Error;
use crate::ndarray::NDArray;

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
        let program = self.program(TrainingGraph::forward(compiler, lowered, &types)?)?;
        let mut outputs = vec![];
        for (_, ty) in program.outputs() {
            outputs.push(self.rt.empty(self.device, ty.dtype, &ty.dims)?);
        }
        let bound: &Bound = &self.bound;
        program.launch(
            &self.rt,
            Arrays { bound, outputs: &outputs, heads: &[], step: None },
            keys,
            ProgramPhase::Whole,
            &self.memory,
        )?;
        let variables: Vec<&String> = bound.arguments.iter().chain(&bound.auxiliaries).map(|(n, _)| n).collect();
        for ((name, _), array) in program.outputs().iter().zip(&outputs) {
            if monitor.inputs || !variables.contains(&name) {
                (monitor.observer)(name, array);
            }
        }
        Ok(())
    }
}
