//! Which sets of primitives are clusters that a kernel computes.

use tensorc_ir::graph::{FusionClass, NodeId};
use tensorc_ir::prim::Prim;

use super::plan::{Cluster, FusionPlan, MAX_MEMBERS, MAX_OPERANDS, Members};
use super::{absorb, contract, reduce};

/// The cluster of some members that computes `roots`, the last one last; `None` if no kernel does.
pub fn cluster(plan: &FusionPlan<'_>, members: Members, roots: &[NodeId]) -> Option<Cluster> {
    let first = |is: fn(&Prim) -> bool| {
        members.iter().map(|(_, n)| *n).filter(|n| plan.prim(*n).is_some_and(is)).collect::<Vec<_>>()
    };
    let contractions = first(|p| matches!(p, Prim::Contract(_)));
    let reductions = first(|p| matches!(p, Prim::Reduce(_)));
    let root = *roots.last()?;
    let (class, anchor, dims, axes) = match (&contractions[..], &reductions[..]) {
        ([], []) => (FusionClass::Map, root, plan.types(root)[0].dims.clone(), vec![]),
        ([node], []) => (FusionClass::Contract, *node, plan.types(*node)[0].dims.clone(), vec![]),
        ([], [node, ..]) => {
            let Some(Prim::Reduce(r)) = plan.prim(*node) else { return None };
            (FusionClass::Reduce, *node, plan.ty(*plan.args(*node).first()?).dims.clone(), r.axes.clone())
        }
        _ => return None,
    };
    let c = Cluster { class, anchor, members, dims, axes };
    let phase = |n: &NodeId| plan.in_phase(&c, *n) || (!roots.contains(n) && absorb::is_cheap(plan, *n));
    let legal = c.members.len() <= MAX_MEMBERS
        && c.members.iter().all(|(_, n)| phase(n))
        && match class {
            FusionClass::Map => absorb::legal(plan, &c, roots),
            FusionClass::Reduce => reduce::legal(plan, &c),
            FusionClass::Contract => roots.len() == 1 && contract::legal(plan, &c, root),
            // Found as a whole or not at all.
            FusionClass::Attention => false,
        };
    (legal && c.externals(plan).len() <= MAX_OPERANDS).then_some(c)
}
