//! What one form of a tensor costs, before it is known what is fused with what.
//!
//! Contractions, reductions and copies are kernels. Maps and views are computed inside the kernels that read them or
//! whose results they read, or they are not; which it is depends on their neighbours, so both are tried.

use egg::Id;
use tensorc_ir::DenseType;
use tensorc_ir::prim::Prim;
use tensorc_ir::views::keeps_linear_order;
use tensorc_schedule::cost::CostModel;
use tensorc_schedule::cost::work::{KernelWork, Member, OperandSource};

use super::space::{TensorSpace, TensorTerm};

/// How maps and views are charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ElementwiseCharge {
    /// What they compute; their elements are not moved.
    Fused,
    /// As kernels; maps without a launch.
    Alone,
}

/// Work done while compiling counts as if the program ran so many times: a new copy of large weights takes time and
/// memory, and to save one operation for each of few results is not worth it.
const ASSUMED_RUNS: u64 = 16;

/// Estimated picoseconds of an e-node of a class by [`ElementwiseCharge`]; `made` by a rule. What is computed while compiling anyway is
/// free.
pub(super) fn prices(space: &TensorSpace, machine: &CostModel, class: Id, term: &TensorTerm, made: bool) -> [u64; 2] {
    let Some((prim, ty)) = space.of(term) else { return [0; 2] };
    if space.is_constant(class) && !made {
        return [0; 2];
    }
    let inputs: Vec<&DenseType> = term.args().iter().map(|a| space.ty(*a)).collect();
    if let Prim::View(view) = prim
        && keeps_linear_order(view, inputs[0], &ty.dims)
    {
        return [0; 2];
    }
    let types = std::slice::from_ref(ty);
    let args = (0..inputs.len()).map(OperandSource::External).collect();
    let member = Member { prim, args, types, stored: [true].into_iter().collect(), ops: None };
    let work = KernelWork::of(&[member], &inputs);
    let launch = machine.launch_ns.saturating_mul(1000);
    let time = machine.time(&work);
    if space.is_constant(class) {
        return [(time - launch) / ASSUMED_RUNS; 2];
    }
    match prim {
        Prim::View(_) => [(time - launch) / 16, time],
        Prim::Map(f) => {
            let computing = machine.time(&KernelWork { ops: work.ops, ..KernelWork::default() }) - launch;
            // Of maps that take as long, the smaller one.
            [computing, (time - launch).saturating_add(1000 * f.nodes.len() as u64)]
        }
        _ => [time; 2],
    }
}
