//! A graph lowered to kernels and library calls, before its memory is planned and its code
//! generated.

use tensorc_abi::{BufferId, ExternFn, Plan};

use tensorc_ir::TensorData;
use tensorc_ir::kir::Kernel;

/// What lowering produces from one graph.
///
/// In `plan`, every intermediate buffer has `StorageClass::Arena(0)` until memory planning assigns its
/// offset; inputs, outputs and weights have their final homes.
#[derive(Clone, Debug, Default)]
pub struct Lowered {
    /// The plan.
    pub plan: Plan,
    /// By [`tensorc_abi::KernelId`].
    pub kernels: Vec<Kernel>,
    /// By [`tensorc_abi::Weight::constant`].
    pub constants: Vec<TensorData>,
    /// Results that may share the memory of an operand.
    pub in_place: Vec<InPlace>,
    /// By position in [`tensorc_abi::StepOp::Extern`].
    pub externs: Vec<ExternFn>,
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
