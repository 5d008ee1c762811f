//! Kernels that are to be written: what each computes, and where its operands lie.
//!
//! A schedule lists them by [`tensorc_abi::KernelId`]; code generation writes each by one emitter.

use std::collections::BTreeSet;
use std::sync::Arc;

use tensorc_abi::DType;
use tensorc_ir::Extent;
use tensorc_ir::graph::{Graph, NodeId, Value};
use tensorc_ir::kir::Kernel;

use crate::flash::KeySplits;
use crate::layout::Layouts;
use crate::recipe::{Generated, Library};
use crate::recognise::attention::Attended;

/// A kernel that is to be written.
#[derive(Clone, Debug)]
pub struct KernelSpec<'g> {
    /// The name of the kernel.
    pub name: Arc<str>,
    /// The node of the graph that it belongs to.
    pub node: NodeId,
    /// What it computes.
    pub computes: Computes<'g>,
    /// Of the cluster's inputs and outputs.
    pub layouts: Layouts,
}

/// What a kernel computes.
#[derive(Clone, Debug)]
pub enum Computes<'g> {
    /// A cluster, by a recipe. Parameters: its inputs, then its outputs.
    Cluster {
        /// How it is computed.
        recipe: Generated,
        /// The primitives of the cluster.
        body: Arc<Graph>,
    },
    /// What follows a library's contraction, on a block of its result. Parameters: the block of sums, if it lies apart from the
    /// result ([`crate::recipe::sums_apart`]); the result; the given inputs.
    Epilogue {
        /// The primitives of the cluster.
        body: &'g Graph,
        /// The library call it belongs to.
        library: Library,
        /// The inputs of the cluster that the kernel reads, by position.
        inputs: Vec<usize>,
    },
    /// A block of the left operand of a library's contraction. Parameters: the block, then the given inputs.
    Prologue {
        /// The primitives of the cluster.
        body: &'g Graph,
        /// The library call it belongs to.
        library: Library,
        /// The inputs of the cluster that the kernel reads, by position.
        inputs: Vec<usize>,
    },
    /// Scores of attention, of a tile of products of queries and keys. Parameters: the tile, then the given inputs.
    Scores {
        /// The primitives of the cluster.
        body: &'g Graph,
        /// The attention of the cluster.
        found: Arc<Attended>,
        /// The inputs of the cluster that the kernel reads, by position.
        inputs: Vec<usize>,
    },
    /// Attention for a part of the keys. Parameters: the inputs, then memory for what the parts leave.
    AttentionParts {
        /// The primitives of the cluster.
        body: &'g Graph,
        /// The attention of the cluster.
        found: Arc<Attended>,
        /// How keys are divided.
        parts: KeySplits,
    },
    /// The result of attention from what its parts left. Parameters: that memory, then the result.
    AttentionJoin {
        /// The primitives of the cluster.
        body: &'g Graph,
        /// The attention of the cluster.
        found: Arc<Attended>,
        /// How keys are divided.
        parts: KeySplits,
    },
    /// A copy of `outer` runs of `run` elements, that far apart in the operand and in the result.
    Copy {
        /// The element type.
        dtype: DType,
        /// Number of runs.
        outer: Extent,
        /// Elements of a run.
        run: Extent,
        /// Elements between runs, of the source and of the result.
        strides: [Extent; 2],
    },
    /// Loops that an operator wrote.
    Own(&'g Kernel),
}

/// The positions of a body's inputs that a value is computed from, other than through `stop`.
pub(crate) fn inputs_of(body: &Graph, value: Value, stop: Option<Value>) -> Vec<usize> {
    let mut seen = BTreeSet::new();
    let mut stack = vec![value];
    while let Some(v) = stack.pop() {
        if Some(v) != stop && seen.insert(v.node) {
            stack.extend(body.args(v.node));
        }
    }
    (0..body.inputs().len()).filter(|i| seen.contains(&body.inputs()[*i])).collect()
}
