//! What an artifact says of itself: its signature, its parts and its kernels.

use serde::{Deserialize, Serialize};
use tensorc_abi::image::VERSION;
use tensorc_abi::{BufferId, Plan};
use tensorc_ir::Dim;
use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::kir::Kernel;
use tensorc_ir::text::print_kernel;

use super::Request;
use super::variants::Variant;
use super::weights::Block;
use crate::Model;

/// The description of a compiled model, as JSON beside the artifact and in a section of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the format of the artifact: major and minor.
    pub format: (u32, u32),
    /// Version of the compiler.
    pub compiler: String,
    pub name: String,
    pub target: String,
    pub inputs: Vec<TensorInfo>,
    pub outputs: Vec<TensorInfo>,
    /// Dynamic dimensions with their least and greatest extents.
    pub dims: Vec<(String, u64, u64)>,
    pub weights: WeightsInfo,
    /// Bytes of the tables that describe the plans.
    pub image_bytes: u64,
    pub variants: Vec<VariantInfo>,
    pub kernels: Vec<KernelInfo>,
}

/// An input or output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorInfo {
    pub name: String,
    pub dtype: String,
    /// Extents, or names of dynamic dimensions; `?` for an extent that follows from these.
    pub dims: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WeightsInfo {
    pub embedded: bool,
    pub bytes: u64,
    /// XXH3 with 128 bits of the block, as hexadecimal digits.
    pub hash: String,
}

/// A plan for fixed shapes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VariantInfo {
    /// Extents of [`Manifest::dims`].
    pub extents: Vec<u64>,
    pub steps: u64,
    pub arena_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelInfo {
    pub name: String,
    pub code_bytes: u64,
    /// Its text in the kernel language.
    pub kir: String,
}

impl Manifest {
    pub(super) fn new(
        model: &Model,
        request: &Request,
        variants: &[Variant],
        kernels: &[Kernel],
        block: &Block,
        image_words: usize,
    ) -> Manifest {
        let info = |v: &Variant| VariantInfo {
            extents: v.extents.clone(),
            steps: v.plan.steps.len() as u64,
            arena_bytes: v.plan.arena_bytes,
        };
        let kernel = |k: &Kernel| KernelInfo { name: k.name.clone(), code_bytes: 0, kir: print_kernel(k) };
        Manifest {
            format: (VERSION.major, VERSION.minor),
            compiler: env!("CARGO_PKG_VERSION").to_owned(),
            name: request.name.clone(),
            target: request.target.to_string(),
            inputs: inputs(model.graph(), request, variants),
            outputs: tensors(variants, |plan| &plan.outputs),
            dims: request.ranges.iter().map(|(name, (min, max))| (name.clone(), *min, *max)).collect(),
            weights: WeightsInfo {
                embedded: request.embed_weights,
                bytes: block.bytes.len() as u64,
                hash: format!("{:032x}", block.hash),
            },
            image_bytes: 8 * image_words as u64,
            variants: variants.iter().map(info).collect(),
            kernels: kernels.iter().map(kernel).collect(),
        }
    }

    /// With the bytes of code of every kernel.
    pub(super) fn with_code(&self, code: &[u64]) -> Manifest {
        let mut with = self.clone();
        with.kernels.iter_mut().zip(code).for_each(|(kernel, bytes)| kernel.code_bytes = *bytes);
        with
    }

    /// JSON, ended by a line break.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec_pretty(self).unwrap_or_default();
        text.push(b'\n');
        text
    }

    /// Bytes of memory of a run, without weights and the caller's tensors: the greatest of all variants.
    pub fn arena_bytes(&self) -> u64 {
        self.variants.iter().map(|v| v.arena_bytes).max().unwrap_or(0)
    }
}

/// Tensors of a side; extents that differ from variant to variant are `?`.
fn tensors(variants: &[Variant], side: impl Fn(&Plan) -> &Vec<BufferId>) -> Vec<TensorInfo> {
    let first = &variants[0].plan;
    let one = |(i, id): (usize, &BufferId)| {
        let buffer = first.buffer(*id);
        let extent = |(axis, extent): (usize, &u64)| {
            let same = variants.iter().all(|v| v.plan.buffer(side(&v.plan)[i]).dims.get(axis) == Some(extent));
            if same { extent.to_string() } else { "?".to_owned() }
        };
        let dims = buffer.dims.iter().enumerate().map(extent).collect();
        TensorInfo { name: buffer.name.clone(), dtype: buffer.dtype.name().to_owned(), dims }
    };
    side(first).iter().enumerate().map(one).collect()
}

/// The inputs, with the names of dynamic dimensions.
fn inputs(graph: &Graph, request: &Request, variants: &[Variant]) -> Vec<TensorInfo> {
    let mut all = tensors(variants, |plan| &plan.inputs);
    for (info, node) in all.iter_mut().zip(graph.inputs()) {
        let shape = graph.resolved(Value { node: *node, port: 0 }).shape;
        for (dim, text) in shape.dims().unwrap_or_default().iter().zip(&mut info.dims) {
            if let Dim::Sym(id) = dim
                && request.ranges.contains_key(&*graph.dims.name(*id))
            {
                *text = graph.dims.name(*id).to_string();
            }
        }
    }
    all
}
