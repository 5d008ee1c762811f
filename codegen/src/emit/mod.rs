//! Emitters: one per fusion class, from a cluster of primitives to a scheduled kernel.

mod axes;
mod cluster;
mod column;
mod contract;
mod copy;
mod fold;
pub mod gpu;
mod inline;
mod layout;
mod map;
mod nest;
mod row;
mod strips;
mod windows;

use tensorc_ir::diag::Result;
use tensorc_ir::graph::{FusionClass, Graph};
use tensorc_ir::kir::Kernel;
use tensorc_ir::scalar::MathLibrary;

pub use contract::{Epilogue, Library, emit_epilogue, emit_scores, library_form};
pub use copy::emit_concat_part;
pub use layout::{Layouts, Runs};

use cluster::Cluster;

/// How kernels are written for what compiles them. The results have the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// For vectors of 128 bits: few lanes where much is computed; library functions on strips of memory, which
    /// the library does at full width.
    #[default]
    Narrow,
    /// For vectors as wide as the processor's: many lanes, library functions in the loops they belong to.
    Wide,
    /// For the threads of a GPU. Reductions add in another order than for processors.
    Gpu,
    /// For those of a GPU of compute capability 9.0a, of which groups of warps multiply what a copy engine fetches.
    Hopper,
}

impl Style {
    pub const fn is_gpu(self) -> bool {
        matches!(self, Style::Gpu | Style::Hopper)
    }
}

/// The library functions, and how kernels compute.
#[derive(Clone, Copy)]
pub struct Math<'a> {
    pub library: &'a dyn MathLibrary,
    pub style: Style,
    /// Whether matrix units may multiply f32, rounded to 10 bits of fraction.
    pub tf32: bool,
}

/// A kernel and what its launcher needs to know.
pub struct Emitted {
    pub kernel: Kernel,
    /// Pairs (input, output) of the cluster that may share memory.
    pub in_place: Vec<(usize, usize)>,
}

/// Emits a cluster as one kernel. Its parameters are the cluster's inputs, then its outputs, laid out as
/// `layouts` says.
pub fn emit(class: FusionClass, body: &Graph, name: &str, math: Math<'_>, layouts: &Layouts) -> Result<Emitted> {
    if math.style.is_gpu() {
        return gpu::emit(class, body, name, math, layouts);
    }
    let body = strips::split_calls(body, math.library)?;
    let mut cluster = Cluster::new(&body, math, layouts)?;
    match class {
        FusionClass::Map => {
            if math.style == Style::Narrow {
                cluster.apart = map::strips(&cluster)?;
            }
            map::emit(&cluster, name)
        }
        FusionClass::Reduce => {
            let space = fold::Space::of_reductions(&cluster)?;
            match row::fits(&cluster, &space)? {
                true => {
                    cluster.apart = row::strips(&cluster, &space)?;
                    cluster.fix_lanes();
                    if math.style == Style::Wide {
                        cluster.apart.clear();
                    }
                    row::emit(&cluster, &space, name)
                }
                false => column::emit(&cluster, &space, name),
            }
        }
        FusionClass::Attention => Err(cluster::internal("attention is a library call")),
        FusionClass::Contract => column::emit(&cluster, &fold::Space::of_contraction(&cluster)?, name),
    }
}
