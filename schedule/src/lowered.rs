//! A graph lowered to kernels and library calls, before its memory is planned and its code
//! generated.

use tensorc_abi::{BufferId, ExternFn, KernelSignature, Number, Plan};

use tensorc_ir::extent::{Binding, Fixed};
use tensorc_ir::graph::NodeId;
use tensorc_ir::kir::Kernel;
use tensorc_ir::{Extent, TensorData};

/// What lowering produces from one graph, with numbers that are known or depend on symbols.
///
/// In `plan`, every intermediate buffer has `StorageClass::Arena(0)` until memory planning assigns its
/// offset; inputs, outputs and weights have their final homes.
#[derive(Clone, Debug, Default)]
pub struct Lowered<N: Number = u64> {
    /// The plan.
    pub plan: Plan<N>,
    /// The node of the graph that each step of the plan belongs to.
    pub nodes: Vec<NodeId>,
    /// By [`tensorc_abi::KernelId`].
    pub kernels: Vec<Kernel>,
    /// What calls of the kernels must fit.
    pub signatures: Vec<KernelSignature<N>>,
    /// By [`tensorc_abi::Weight::constant`].
    pub constants: Vec<TensorData>,
    /// Results that may share the memory of an operand.
    pub in_place: InPlaceOptions,
    /// By position in [`tensorc_abi::StepOp::Extern`].
    pub externs: Vec<ExternFn>,
}

impl Lowered<Extent> {
    /// What it is for the numbers of the example, which are fixed ([`Extent::fixed`]).
    pub fn fixed(self) -> Lowered {
        let Lowered { plan, nodes, kernels, signatures, constants, in_place, externs } = self;
        let signatures = signatures.iter().map(|signature| signature.convert(&Fixed)).collect();
        Lowered { plan: plan.convert(&Fixed), nodes, kernels, signatures, constants, in_place, externs }
    }

    /// What it is for a shape.
    pub fn bound(&self, binding: &Binding) -> Lowered {
        Lowered {
            plan: self.plan.convert(binding),
            in_place: self.in_place.clone(),
            nodes: self.nodes.clone(),
            kernels: self.kernels.clone(),
            signatures: self.signatures.iter().map(|signature| signature.convert(binding)).collect(),
            constants: self.constants.iter().map(|data| data.bound(binding)).collect(),
            externs: self.externs.clone(),
        }
    }
}

/// Which results of a plan may share the memory of an operand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InPlaceOptions {
    /// Of its own steps.
    pub steps: Vec<InPlace>,
    /// Of each step with nested plans: its position, and the options of these.
    pub nested: Vec<(usize, Vec<InPlaceOptions>)>,
}

impl InPlaceOptions {
    /// Changes the positions of steps.
    pub fn moved(&mut self, to: impl Fn(usize) -> usize) {
        self.steps.iter_mut().for_each(|pair| pair.step = to(pair.step));
        self.nested.iter_mut().for_each(|(step, _)| *step = to(*step));
    }

    /// Leaves out those of buffers whose sizes are not the same for all values of the symbols.
    pub fn keep_sure(&mut self, plan: &Plan<Extent>) {
        let bytes = |id| plan.buffer(id).bytes();
        self.steps.retain(|pair| bytes(pair.input).is_surely(bytes(pair.output)));
    }
}

/// The step may write `output` over `input` if it is the last to read `input`: both have the same
/// size, and every iteration reads of `input` only what it writes of `output`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InPlace {
    /// The step, by position in the plan.
    pub step: usize,
    /// The operand.
    pub input: BufferId,
    /// The result that may take its place.
    pub output: BufferId,
}
