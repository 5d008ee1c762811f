//! Clusters of attention: two products around a softmax of rows, so that scores never lie in memory.

use tensorc_ir::graph::{FusionClass, Value};
use tensorc_ir::prim::Prim;
use tensorc_schedule::recipe::computes_attention;
use tensorc_schedule::recognise::attention::{Attended, attention_at};
use tensorc_schedule::target::Target;

use super::plan::{FusionPlan, MAX_MEMBERS, MAX_OPERANDS, Unit};

/// Forms a cluster around every product that ends an attention that one kernel computes: on a processor the library's, of
/// f32.
///
/// The sums of an online softmax are rounded differently, so this is a reassociation. Weights that others read,
/// as a backward pass does, are left where they are.
pub fn form(plan: &mut FusionPlan<'_>, target: &Target) {
    for node in plan.order.clone() {
        if let Some(Prim::Contract(_)) = plan.prim(node)
            && let Some(found) = attention_at(plan.graph, node)
            && computes_attention(target, &found)
        {
            take(plan, &found);
        }
    }
}

fn take(plan: &mut FusionPlan<'_>, found: &Attended) {
    let free = |n| plan.owner(n).is_none();
    let operands = [found.q, found.k, found.v];
    if found.members.len() > MAX_MEMBERS
        || !found.members.iter().all(|n| free(*n))
        || operands.iter().any(|v| plan.is_scalar_const(*v))
    {
        return;
    }
    let anchor = found.result.node;
    let dims = plan.ty(found.result).dims.clone();
    let cluster = plan.start(FusionClass::Attention, anchor, dims, vec![]);
    let one_phase = found.members.iter().all(|n| plan.same_phase(cluster, *n));
    found.members.iter().filter(|n| **n != anchor).for_each(|n| plan.add_owned(cluster, *n));
    let outside: Vec<Value> = plan.externals(Unit::Cluster(cluster));
    if !one_phase || outside.len() > MAX_OPERANDS || plan.depends(&outside, Unit::Cluster(cluster)) {
        plan.dissolve(cluster);
    }
}
