//! Emitters of kernels for a GPU: one element, row or column of a result to a thread, warp or block.
//!
//! They write the same clusters as those for processors, with the same [`Inliner`]: `map` for element-wise ones, `transpose` for
//! those of them that read across memory, `row` for
//! folds along memory, `column` for folds across it, `contract` for products and convolutions, `matrix` for those that matrix units
//! compute, `groups` for those that groups of warps do, `product` for what these three share, `attention` for attention. `tiles` and `fragments` multiply tiles in
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
mod product;
mod row;
mod tiles;
mod transpose;

use tensorc_ir::Extent;
use tensorc_ir::diag::Result;
use tensorc_ir::graph::Graph;
use tensorc_ir::kir::Kernel;
use tensorc_schedule::access::space::IterationSpace;
use tensorc_schedule::flash::KeySplits;
use tensorc_schedule::layout::Layouts;
use tensorc_schedule::recipe::Generated;
use tensorc_schedule::recognise::attention::Attended;
use tensorc_schedule::target::Gpu;

use super::cluster::Cluster;
use super::inline::Inliner;
use crate::emit::math::Math;

pub use parallel::launched;

/// Emits a cluster as one kernel, with parameters as [`super::emit`] gives them.
pub fn emit(
    recipe: &Generated,
    body: &Graph,
    name: &str,
    gpu: &Gpu,
    (math, layouts): (Math<'_>, &Layouts),
) -> Result<Kernel> {
    let cluster = Cluster::new(body, math, layouts)?;
    let kernel = match recipe {
        Generated::Map => map::emit(&cluster, name)?,
        Generated::Transpose(transposed) => transpose::emit(&cluster, transposed, name)?,
        Generated::Row => row::emit(&cluster, &IterationSpace::of(body)?, name)?,
        Generated::Column => column::emit(&cluster, &IterationSpace::of(body)?, name)?,
        Generated::Tiled(product, tile) => contract::emit(&cluster, product, *tile, name)?,
        Generated::MatrixUnits(product, side) => matrix::emit(&cluster, product, *side, name)?,
        Generated::WarpGroups(plan) => groups::emit(&cluster, plan, gpu, name)?,
        Generated::Attention(found) => attention::emit(&cluster, found, name, math)?,
    };
    Ok(functions::expanded(kernel, math.library))
}

/// Writes the kernel of attention that leaves what parts of the keys come to.
pub fn emit_parts(
    body: &Graph,
    name: &str,
    (math, layouts): (Math<'_>, &Layouts),
    (found, parts): (&Attended, KeySplits),
) -> Result<Kernel> {
    let kernel = attention::emit_parts(&Cluster::new(body, math, layouts)?, name, math, (found, parts))?;
    Ok(functions::expanded(kernel, math.library))
}

/// Writes the kernel that puts together what parts left.
pub fn emit_join(
    body: &Graph,
    name: &str,
    (math, layouts): (Math<'_>, &Layouts),
    (found, parts): (&Attended, KeySplits),
) -> Result<Kernel> {
    launched(&attention::emit_join(&Cluster::new(body, math, layouts)?, name, math, (found, parts))?, math.library)
}

/// An extent as a number, for kernels that are written for one shape.
#[track_caller]
fn fixed(n: Extent) -> u64 {
    n.fixed().max(0) as u64
}

/// The multiple of a number that is not less than an extent.
fn next_multiple(n: Extent, of: u64) -> Extent {
    n.div_ceil(of) * of
}

/// Elements that one access of 16 bytes moves, for rows whose length they divide: of the widest type that the cluster reads or
/// writes.
fn vector_width(e: &Inliner<'_>, divides: impl Fn(u64) -> bool) -> Result<u64> {
    let cluster = e.cluster;
    let inputs = cluster.body.inputs().iter().map(|&node| tensorc_ir::graph::Value { node, port: 0 });
    let mut widest = 1;
    for v in inputs.chain(cluster.outputs()) {
        widest = widest.max(cluster.ty(v)?.dtype.size() as u64);
    }
    let fits = |n: &u64| n * widest <= 16 && divides(*n);
    Ok([8, 4, 2].into_iter().find(fits).unwrap_or(1))
}
