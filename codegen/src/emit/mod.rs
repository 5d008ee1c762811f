//! Emitters: one per recipe, from a cluster of primitives to a kernel.

mod cluster;
mod column;
mod contract;
mod copy;
mod fold;
mod gpu;
mod inline;
mod map;
mod math;
mod nest;
mod pieces;
mod row;
mod vector_math;
mod windows;

use tensorc_ir::diag::Result;
use tensorc_ir::extent::{Trace, advice};
use tensorc_ir::graph::Graph;
use tensorc_ir::kir::Kernel;
use tensorc_ir::scalar::{MathLibrary, Scaling};
use tensorc_schedule::access::space::IterationSpace;
use tensorc_schedule::kernel::{Computes, KernelSpec};
use tensorc_schedule::layout::Layouts;
use tensorc_schedule::recipe::Generated;
use tensorc_schedule::target::{Cpu, Processor, Target, VectorLevel, Vectors};

use crate::vector;
use cluster::Cluster;
pub use math::Math;
use math::internal;

/// Writes a kernel.
///
/// For a processor with loops over wide vectors beside narrow ones, a kernel is one for wide vectors if all its loops in
/// which much is computed are such loops.
///
/// # Errors
/// [`tensorc_ir::diag::Code::Unsupported`] where the target has no kernel of that kind.
pub fn emit(spec: &KernelSpec<'_>, math: Math<'_>) -> Result<Kernel> {
    if let Processor::Cpu(cpu @ Cpu { vectors: Vectors::Narrow, loops: Some(level), .. }) = math.target.processor {
        let processor = Processor::Cpu(Cpu { vectors: Vectors::Wide, ..cpu });
        let target = Target { processor, ..*math.target };
        let scaling = Scaling(math.library);
        let scaled: Option<&dyn MathLibrary> = (level == VectorLevel::Avx512).then_some(&scaling);
        for library in scaled.into_iter().chain([math.library]) {
            let math = Math { target: &target, library };
            // What a kernel that is not taken found out about extents is no condition.
            let wide = advice(|| emit_for(spec, math))?;
            if vector::covers(&wide, level) {
                return if Trace::current().is_some() { emit_for(spec, math) } else { Ok(wide) };
            }
        }
    }
    emit_for(spec, math)
}

/// Writes a kernel for the vectors of the target.
fn emit_for(spec: &KernelSpec<'_>, math: Math<'_>) -> Result<Kernel> {
    let KernelSpec { name, computes, layouts, .. } = spec;
    let at = (math, layouts);
    match (computes, &math.target.processor) {
        (Computes::Cluster { recipe, body }, Processor::Cpu(_)) => emit_cluster(recipe, body, name, at),
        (Computes::Cluster { recipe, body }, Processor::Gpu(gpu)) => gpu::emit(recipe, body, name, gpu, at),
        (Computes::Epilogue { body, library, inputs }, _) => contract::emit_epilogue(body, library, name, at, inputs),
        (Computes::Prologue { body, library, inputs }, _) => contract::emit_prologue(body, library, name, at, inputs),
        (Computes::Scores { body, found, inputs }, _) => contract::emit_scores(body, found, name, at, inputs),
        (Computes::AttentionParts { body, found, parts }, Processor::Gpu(_)) => {
            gpu::emit_parts(body, name, at, (found, *parts))
        }
        (Computes::AttentionJoin { body, found, parts }, Processor::Gpu(_)) => {
            gpu::emit_join(body, name, at, (found, *parts))
        }
        (Computes::AttentionParts { .. } | Computes::AttentionJoin { .. }, Processor::Cpu(_)) => {
            Err(internal("attention in parts is for GPUs"))
        }
        (Computes::Copy { dtype, outer, run, strides }, _) => {
            Ok(copy::emit_concat_part(name, *dtype, *outer, *run, *strides))
        }
        (Computes::Own(kernel), Processor::Cpu(_)) => Ok((*kernel).clone()),
        (Computes::Own(kernel), Processor::Gpu(_)) => gpu::launched(kernel, math.library),
    }
}

/// Writes a cluster for a processor as one kernel. Its parameters are the cluster's inputs, then its outputs, laid out as
/// `layouts` says.
fn emit_cluster(recipe: &Generated, body: &Graph, name: &str, (math, layouts): (Math<'_>, &Layouts)) -> Result<Kernel> {
    let body = math::split_vector_calls(body, math.library)?;
    let mut cluster = Cluster::new(&body, math, layouts)?;
    match recipe {
        Generated::Map => {
            if math.has_vector_calls() {
                cluster.vector_calls = map::vector_calls(&cluster)?;
            }
            map::emit(&cluster, name)
        }
        Generated::Row => {
            let space = IterationSpace::of(cluster.body)?;
            cluster.vector_calls = row::vector_calls(&cluster, &space)?;
            cluster.fix_lanes();
            if !math.has_vector_calls() {
                cluster.vector_calls.clear();
            }
            row::emit(&cluster, &space, name)
        }
        Generated::Column => column::emit(&cluster, &IterationSpace::of(cluster.body)?, name),
        Generated::Transpose(_)
        | Generated::Tiled(..)
        | Generated::MatrixUnits(..)
        | Generated::WarpGroups(_)
        | Generated::Attention(_) => Err(internal("a recipe of GPUs reached a processor")),
    }
}
