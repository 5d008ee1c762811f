//! Emitters of kernels for a GPU: one element, row or column of a result to a thread, warp or block.
//!
//! They write the same clusters as those for processors, with the same [`Inliner`]: `map` for element-wise ones, `transpose` for
//! those of them that read across memory, `row` for
//! folds along memory, `column` for folds across it, `contract` for products and convolutions, `matrix` for those that matrix units
//! compute, `groups` for those that groups of warps do, `attention` for attention. `tiles` and `fragments` multiply tiles in
//! shared memory, by ordinary multiplications and by matrix units. `loops` opens the loops of a launch; `parallel` makes a launch of
//! any other kernel. `functions` expands what would be calls.

mod attention;
mod column;
mod contract;
mod fragments;
mod functions;
mod groups;
mod loops;
mod map;
mod matrix;
mod parallel;
mod row;
mod tiles;
mod transpose;

use tensorc_ir::diag::Result;
use tensorc_ir::graph::{FusionClass, Graph};
use tensorc_ir::kir::Kernel;
use tensorc_schedule::access::space::Space;
use tensorc_schedule::flash::Parts;
use tensorc_schedule::layout::Layouts;
use tensorc_schedule::target::Gpu;

use super::Math;
use super::cluster::Cluster;
use super::inline::Inliner;

pub use parallel::launched;

/// What kernels are made for: library functions, and a GPU.
type On<'a> = (Math<'a>, &'a Gpu);

/// Emits a cluster as one kernel, with parameters as [`super::emit`] gives them.
pub fn emit(class: FusionClass, body: &Graph, name: &str, on: On<'_>, layouts: &Layouts) -> Result<Kernel> {
    Ok(functions::expanded(scheduled(class, body, name, on, layouts)?, on.0.library))
}

/// Writes the kernel of attention that leaves what parts of the keys come to.
pub fn emit_parts(body: &Graph, name: &str, (math, layouts): (Math<'_>, &Layouts), parts: Parts) -> Result<Kernel> {
    let kernel = attention::emit_parts(&Cluster::new(body, math, layouts)?, name, math, parts)?;
    Ok(functions::expanded(kernel, math.library))
}

/// Writes the kernel that puts together what parts left.
pub fn emit_join(body: &Graph, name: &str, (math, layouts): (Math<'_>, &Layouts), parts: Parts) -> Result<Kernel> {
    launched(&attention::emit_join(&Cluster::new(body, math, layouts)?, name, math, parts)?, math.library)
}

fn scheduled(class: FusionClass, body: &Graph, name: &str, (math, gpu): On<'_>, layouts: &Layouts) -> Result<Kernel> {
    let cluster = Cluster::new(body, math, layouts)?;
    let space = match class {
        FusionClass::Map => return map::emit(&cluster, name),
        FusionClass::Attention => return attention::emit(&cluster, name, math),
        FusionClass::Reduce | FusionClass::Contract => Space::of(cluster.body)?,
    };
    match class {
        FusionClass::Reduce if row::fits(&cluster, &space)? => row::emit(&cluster, &space, name),
        FusionClass::Reduce => column::emit(&cluster, &space, name),
        _ => match contract::emit(&cluster, &space, name, gpu)? {
            Some(kernel) => Ok(kernel),
            None => column::emit(&cluster, &space, name),
        },
    }
}

/// Elements that one access of 16 bytes moves, for rows of `extent` of them: of the widest type that the cluster reads or
/// writes.
fn vector_width(e: &Inliner<'_>, extent: u64) -> Result<u64> {
    let cluster = e.cluster;
    let inputs = cluster.body.inputs().iter().map(|&node| tensorc_ir::graph::Value { node, port: 0 });
    let mut widest = 1;
    for v in inputs.chain(cluster.outputs()) {
        widest = widest.max(cluster.ty(v)?.dtype.size() as u64);
    }
    let fits = |n: &u64| n * widest <= 16 && extent.is_multiple_of(*n);
    Ok([8, 4, 2].into_iter().find(fits).unwrap_or(1))
}
