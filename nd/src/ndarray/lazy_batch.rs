//! Element-wise calls that wait for company.
//!
//! A deferred call is a node; an array whose value is the result of a node is *pending*: its chunk's
//! mark says which node. Flushing makes graphs of the nodes, compiles those of a form not seen
//! before, and pushes each as one operation. Results that no handle can reach any more are not
//! computed into memory.
//!
//! Results that depend on the same arrays share an operation; others do not, because an error of an
//! array must reach what depends on it and nothing else. An array may be overwritten while earlier
//! nodes read its old elements: an operation reads all inputs before any output takes their place.

use std::sync::Arc;

use smallvec::SmallVec;
use tensorc_ir::DenseType;
use tensorc_runtime::Device;
use tensorc_runtime::array::{self, ArrayOperand, ArrayView, Chunk};

use super::batch_program::{BatchNode, BatchOperand, BatchProgram, groups};
use super::program::{ArrayProgram, KeyKind, Programs, launch};
use crate::error::Error;

/// Most arrays and numbers a window reads: one bit each in a set.
const MAX_BATCH_INPUTS: usize = u32::BITS as usize;
/// Most nodes: their positions must fit a mark.
const MAX_BATCH_NODES: usize = 200;

pub(super) struct LazyBatch {
    /// Number of flushes; tells the marks of this window from older ones.
    epoch: u64,
    limit: usize,
    device: Device,
    nodes: Vec<BatchNode>,
    /// For each node, its result if an operation that computes it was pushed.
    finished: Vec<Option<ArrayView>>,
    inputs: Vec<ArrayOperand>,
}

/// What a chunk is to the window, in its mark: the epoch above eight bits that say 0 for an input
/// and 1 + the position of a node otherwise.
fn mark(epoch: u64, node: Option<usize>) -> u64 {
    epoch << 8 | node.map_or(0, |i| i as u64 + 1)
}

impl LazyBatch {
    pub fn new(limit: usize) -> LazyBatch {
        LazyBatch {
            epoch: 1,
            limit: limit.clamp(1, MAX_BATCH_NODES),
            device: Device::default(),
            nodes: vec![],
            finished: vec![],
            inputs: vec![],
        }
    }

    /// Pushes what is deferred if it reads or writes the memory of `view`.
    pub fn settle(&mut self, programs: &Programs, view: &ArrayView) -> Result<(), Error> {
        match self.concerns(view) {
            true => self.flush(programs),
            false => Ok(()),
        }
    }

    /// Whether the window reads or writes memory of the view.
    fn concerns(&self, view: &ArrayView) -> bool {
        view.chunk().mark() >> 8 == self.epoch
    }

    /// The node whose result is the value of the view's chunk.
    fn pending(&self, view: &ArrayView) -> Option<usize> {
        let mark = view.chunk().mark();
        (mark >> 8 == self.epoch && mark & 0xff != 0).then(|| (mark & 0xff) as usize - 1)
    }

    /// Whether deferred results would have to be cut or reshaped to be seen through the view.
    fn is_foreign(&self, view: &ArrayView) -> bool {
        self.pending(view).is_some_and(|i| !is_seen_as(view, self.nodes[i].ty()))
    }

    /// Adds a call, and returns its result: `target`, or a new array.
    pub fn defer(
        &mut self,
        programs: &Programs,
        program: &Arc<ArrayProgram>,
        device: Device,
        sources: SmallVec<[ArrayOperand; 3]>,
        target: Option<&ArrayView>,
    ) -> Result<ArrayView, Error> {
        let views = || sources.iter().filter_map(ArrayOperand::view).chain(target);
        let full = self.nodes.len() >= self.limit || self.inputs.len() + sources.len() > MAX_BATCH_INPUTS;
        if full || self.device != device || views().any(|view| self.is_foreign(view)) {
            self.flush(programs)?;
        }
        let result = match target {
            Some(view) => view.clone(),
            None => programs.fresh(device, &program.outputs[0])?,
        };
        if !result.is_whole() {
            // A part of a chunk cannot be pending: the call is a window of its own.
            self.flush(programs)?;
        }
        self.device = device;
        self.append(program, sources, &result);
        match result.is_whole() {
            true => Ok(result),
            false => self.push(programs, vec![(self.nodes.len() - 1, result.clone())]).map(|()| result),
        }
    }

    fn append(&mut self, program: &Arc<ArrayProgram>, sources: SmallVec<[ArrayOperand; 3]>, result: &ArrayView) {
        let operands = sources.into_iter().map(|source| self.slot(source)).collect();
        let chunk = result.is_whole().then(|| {
            if let Some(older) = self.pending(result) {
                self.nodes[older].chunk = None;
            }
            result.chunk().set_mark(mark(self.epoch, Some(self.nodes.len())));
            result.chunk().clone()
        });
        self.nodes.push(BatchNode { program: program.clone(), operands, chunk });
        self.finished.push(None);
    }

    fn slot(&mut self, source: ArrayOperand) -> BatchOperand {
        if let Some(view) = source.view() {
            if let Some(node) = self.pending(view) {
                return BatchOperand::Node(node);
            }
            view.chunk().set_mark(mark(self.epoch, None));
        }
        if let Some(i) = self.inputs.iter().position(|other| is_same(other, &source)) {
            return BatchOperand::Input(i);
        }
        self.inputs.push(source);
        BatchOperand::Input(self.inputs.len() - 1)
    }

    /// Pushes the deferred calls.
    pub fn flush(&mut self, programs: &Programs) -> Result<(), Error> {
        let mut results = vec![];
        for (i, node) in self.nodes.iter().enumerate().filter(|(i, _)| self.finished[*i].is_none()) {
            // If nobody else holds the memory or knows its address, the result is out of reach.
            let reachable = |chunk: &&Arc<Chunk>| Arc::strong_count(chunk) > 1 || chunk.is_pinned();
            if let Some(chunk) = node.chunk.as_ref().filter(reachable) {
                results.push((i, ArrayView::whole(chunk.clone(), node.ty().dtype, &node.ty().dims)?));
            }
        }
        self.push(programs, results)
    }

    /// Pushes operations that compute the given nodes into the given views, and empties the window.
    ///
    /// If one cannot be pushed, the window stays as it is but for the results of those that were.
    fn push(&mut self, programs: &Programs, results: Vec<(usize, ArrayView)>) -> Result<(), Error> {
        let mut nodes = std::mem::take(&mut self.nodes);
        let mut inputs = std::mem::take(&mut self.inputs);
        let mut finished = std::mem::take(&mut self.finished);
        let result = self.push_groups(programs, &nodes, &inputs, results, &mut finished);
        if result.is_ok() {
            self.epoch += 1;
            nodes.clear();
            inputs.clear();
            finished.clear();
        }
        (self.nodes, self.inputs, self.finished) = (nodes, inputs, finished);
        result
    }

    fn push_groups(
        &self,
        programs: &Programs,
        nodes: &[BatchNode],
        inputs: &[ArrayOperand],
        results: Vec<(usize, ArrayView)>,
        finished: &mut [Option<ArrayView>],
    ) -> Result<(), Error> {
        let mut form = BatchProgram::new(nodes, inputs, finished);
        for group in groups(nodes, inputs, results) {
            form.select(&group);
            let program = programs.get_or_make(&form.key(KeyKind::Program), || {
                let program = form.program(programs, self.device)?;
                program.code(&programs.compiler)?;
                Ok(program)
            });
            let (sources, targets) = (std::mem::take(&mut form.sources), group.iter().map(|(_, view)| view));
            // The calls have returned, so an error of compiling them stays with their results.
            match program {
                Ok(program) => program.launch(programs, self.device, sources, targets)?,
                Err(error) => {
                    let name = form.name();
                    array::launch(&programs.space, launch(&name, self.device, sources, targets), |_, _| {
                        Err(error.into())
                    })?;
                }
            }
            form.finish(group);
        }
        Ok(())
    }
}

fn is_seen_as(view: &ArrayView, ty: &DenseType) -> bool {
    view.is_whole() && view.dtype() == ty.dtype && view.dims() == ty.dims
}

/// Whether both are the same elements, without comparing those of host tensors.
fn is_same(a: &ArrayOperand, b: &ArrayOperand) -> bool {
    let of_one_type = a.dtype() == b.dtype() && a.dims() == b.dims();
    of_one_type
        && match (a, b) {
            (ArrayOperand::View(a), ArrayOperand::View(b)) => {
                Arc::ptr_eq(a.chunk(), b.chunk()) && a.range() == b.range()
            }
            (ArrayOperand::Inline(a), ArrayOperand::Inline(b)) => a.bytes() == b.bytes(),
            _ => false,
        }
}
