//! Emitters: one per fusion class, from a cluster of primitives to a scheduled kernel.

mod cluster;
mod column;
mod contract;
mod copy;
mod fold;
pub mod gpu;
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
use tensorc_schedule::layout::Layouts;
use tensorc_schedule::target::{Cpu, Processor, Vectors};

pub use contract::{Library, OnBlocks, emit_epilogue, emit_prologue, emit_scores, library_form};
pub use copy::emit_concat_part;

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

/// Emits a cluster as one kernel. Its parameters are the cluster's inputs, then its outputs, laid out as
/// `layouts` says.
pub fn emit(class: FusionClass, body: &Graph, name: &str, math: Math<'_>, layouts: &Layouts) -> Result<Kernel> {
    if let Processor::Gpu(gpu) = &math.target.processor {
        return gpu::emit(class, body, name, (math, gpu), layouts);
    }
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
            let space = Space::of(&cluster.body)?;
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
        FusionClass::Contract => column::emit(&cluster, &Space::of(&cluster.body)?, name),
    }
}
