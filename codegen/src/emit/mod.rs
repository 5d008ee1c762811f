//! Emitters: one per fusion class, from a cluster of primitives to a scheduled kernel.

mod cluster;
mod column;
mod contract;
mod copy;
mod fold;
mod gpu;
mod inline;
mod map;
mod nest;
mod row;
mod strips;
mod windows;

use tensorc_ir::diag::Result;
use tensorc_ir::graph::{FusionClass, Graph};
use tensorc_ir::kir::Kernel;
use tensorc_ir::scalar::MathLibrary;
use tensorc_schedule::Target;
use tensorc_schedule::access::space::Space;
use tensorc_schedule::kernel::{Computes, KernelSpec};
use tensorc_schedule::layout::Layouts;
use tensorc_schedule::target::{Cpu, Processor, Vectors};

use cluster::Cluster;

/// The library functions, and what kernels are made for.
#[derive(Clone, Copy)]
pub struct Math<'a> {
    pub library: &'a dyn MathLibrary,
    pub target: &'a Target,
}

impl Math<'_> {
    /// Whether library functions are applied to strips of memory.
    fn applies_strips(&self) -> bool {
        matches!(self.target.processor, Processor::Cpu(Cpu { vectors: Vectors::Narrow, .. }))
    }
}

/// Writes a kernel.
///
/// # Errors
/// [`tensorc_ir::diag::Code::Unsupported`] where the target has no kernel of that kind.
pub fn emit(spec: &KernelSpec<'_>, math: Math<'_>) -> Result<Kernel> {
    let KernelSpec { name, computes, layouts, .. } = spec;
    let at = (math, layouts);
    match (computes, &math.target.processor) {
        (Computes::Cluster { class, body }, Processor::Cpu(_)) => emit_cluster(*class, body, name, math, layouts),
        (Computes::Cluster { class, body }, Processor::Gpu(gpu)) => gpu::emit(*class, body, name, (math, gpu), layouts),
        (Computes::Epilogue { body, library, inputs }, _) => contract::emit_epilogue(body, library, name, at, inputs),
        (Computes::Prologue { body, library, inputs }, _) => contract::emit_prologue(body, library, name, at, inputs),
        (Computes::Scores { body, found, inputs }, _) => contract::emit_scores(body, found, name, at, inputs),
        (Computes::AttentionParts { body, parts }, Processor::Gpu(_)) => gpu::emit_parts(body, name, at, *parts),
        (Computes::AttentionJoin { body, parts }, Processor::Gpu(_)) => gpu::emit_join(body, name, at, *parts),
        (Computes::AttentionParts { .. } | Computes::AttentionJoin { .. }, Processor::Cpu(_)) => {
            Err(cluster::internal("attention in parts is for GPUs"))
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
fn emit_cluster(class: FusionClass, body: &Graph, name: &str, math: Math<'_>, layouts: &Layouts) -> Result<Kernel> {
    let body = strips::split_calls(body, math.library)?;
    let mut cluster = Cluster::new(&body, math, layouts)?;
    match class {
        FusionClass::Map => {
            if math.applies_strips() {
                cluster.apart = map::strips(&cluster)?;
            }
            map::emit(&cluster, name)
        }
        FusionClass::Reduce => {
            let space = Space::of(cluster.body)?;
            match row::fits(&cluster, &space)? {
                true => {
                    cluster.apart = row::strips(&cluster, &space)?;
                    cluster.fix_lanes();
                    if !math.applies_strips() {
                        cluster.apart.clear();
                    }
                    row::emit(&cluster, &space, name)
                }
                false => column::emit(&cluster, &space, name),
            }
        }
        FusionClass::Attention => Err(cluster::internal("attention is a library call")),
        FusionClass::Contract => column::emit(&cluster, &Space::of(cluster.body)?, name),
    }
}
