//! The stages after the first, where shapes depend on computed values: compiled once for every combination seen.

use std::sync::Arc;

use tensorc_ir::TensorData;
use tensorc_ir::graph::{Graph, NodeKind};
use tensorc_passes::stage::{Next, Remainder};

use super::code::SessionCode;
use crate::cache::ProgramCache;
use crate::compiler::Compiler;
use crate::error::Error;
use crate::key::ProgramKey;
use crate::tensor::Tensor;

/// Later stages kept compiled.
const MAX_CACHED_STAGES: usize = 16;
/// Constants up to this many bytes are compared by value.
const MAX_COMPARED_BYTES: usize = 4096;

/// What follows the first stage.
pub(crate) struct LaterStages {
    /// For each output the first stage delivers: its position among all, and in the stage.
    finished: Vec<(usize, usize)>,
    remainder: Remainder,
    compiled: ProgramCache<Stage>,
}

/// A later stage, and its graph, which keeps alive the constants that its key names by address.
type Stage = Arc<(SessionCode, Graph)>;

impl LaterStages {
    pub fn new(finished: Vec<(usize, usize)>, remainder: Remainder) -> LaterStages {
        LaterStages { finished, remainder, compiled: ProgramCache::new(MAX_CACHED_STAGES) }
    }

    /// All outputs, from the inputs of the first stage and its results.
    ///
    /// # Errors
    /// A stage does not compile, or fails.
    pub fn run(
        &self,
        compiler: &Compiler,
        inputs: &[TensorData],
        results: Vec<Tensor>,
        count: usize,
    ) -> Result<Vec<Tensor>, Error> {
        let mut outputs: Vec<Option<Tensor>> = vec![None; count];
        for (whole, own) in &self.finished {
            outputs[*whole] = Some(results[*own].clone());
        }
        let results: Vec<TensorData> = results.into_iter().map(|t| t.0).collect();
        let next = self.remainder.next(compiler.registry(), inputs, &results)?;
        let (values, positions) = (next.inputs.iter().cloned().map(Tensor).collect::<Vec<_>>(), next.outputs.clone());
        let stage = self.stage(compiler, next)?;
        for (position, tensor) in positions.into_iter().zip(stage.0.run_beside(&values)?) {
            outputs[position] = Some(tensor);
        }
        let missing = || Error::Internal("a stage did not deliver its outputs".into());
        outputs.into_iter().map(|o| o.ok_or_else(missing)).collect()
    }

    /// A later stage, compiled at its first use.
    fn stage(&self, compiler: &Compiler, next: Next) -> Result<Stage, Error> {
        let mut key = ProgramKey::of("");
        next.inputs.iter().for_each(|t| key.ty(t.dtype(), t.dims()));
        for node in next.graph.node_ids() {
            let NodeKind::Const(data) = &next.graph.node(node).kind else { continue };
            let is_compared = data.content().len() <= MAX_COMPARED_BYTES;
            key.small(is_compared.into());
            match is_compared {
                true => key.tensor(data),
                false => key.place(data.content().place()),
            }
        }
        self.compiled
            .get_or_make(&key, || Ok(Arc::new((SessionCode::compile(compiler, next.graph.clone())?, next.graph))))
    }
}
