//! The manifest of a compiled model, from what was compiled.

use tensorc_abi::image::VERSION;
use tensorc_abi::{BufferId, Plan};
use tensorc_ir::Dim;
use tensorc_ir::graph::{Graph, Value};
use tensorc_ir::kir::Kernel;
use tensorc_ir::text::print_kernel;
use tensorc_runtime::artifact::{KernelInfo, Manifest, ScratchInfo, TensorInfo, VariantInfo, WeightsInfo};

use super::AotRequest;
use super::gpu::ModelCode;
use super::open::furthest;
use super::variants::Variant;
use super::weights::WeightBlock;
use crate::model::Model;

/// What an artifact says of itself, but for the bytes of code.
pub fn describe(
    model: &Model,
    request: &AotRequest,
    variants: &[Variant],
    kernels: &[Kernel],
    block: &WeightBlock,
    gpu: Option<&ModelCode>,
    image_words: usize,
) -> Manifest {
    let info = |v: &Variant| {
        let one = || v.plan.scratch.iter().map(|s| ScratchInfo { offset: s.offset + s.shared, bytes: s.bytes });
        let (arena_bytes, scratch) = match &v.open {
            None => (v.plan.arena_bytes, furthest(one().collect())),
            Some((_, memory)) => (memory.arena_bytes, memory.scratch.clone()),
        };
        let (extents, steps) = (v.extents.clone(), v.plan.steps.len() as u64);
        VariantInfo { extents, many: v.open.is_some(), steps, arena_bytes, scratch, scratch_bytes: 0 }
    };
    let ptx = gpu.map(ModelCode::ptx_bytes).unwrap_or_default();
    let kernel = |(i, k): (usize, &Kernel)| KernelInfo {
        name: k.name.clone(),
        code_bytes: ptx.get(i).copied().unwrap_or(0),
        launch: gpu.map(|code| code.launch(i)),
        kir: print_kernel(k),
    };
    Manifest {
        format: (VERSION.major, VERSION.minor),
        compiler: env!("CARGO_PKG_VERSION").to_owned(),
        name: request.name.clone(),
        target: request.target.to_string(),
        inputs: inputs(model.graph(), request, variants),
        outputs: outputs(request, variants),
        dims: request.ranges.iter().map(|(name, range)| (name.clone(), range.first, range.last)).collect(),
        steps: match request.ranges.values().all(|range| range.step == 1) {
            true => vec![],
            false => request.ranges.values().map(|range| range.step).collect(),
        },
        weights: WeightsInfo {
            embedded: request.embed_weights,
            bytes: block.bytes.len() as u64,
            hash: format!("{:032x}", block.hash),
        },
        gpu: gpu.map(ModelCode::describe),
        image_bytes: 8 * image_words as u64,
        variants: variants.iter().map(info).collect(),
        kernels: kernels.iter().enumerate().map(kernel).collect(),
    }
}

/// The manifest with the bytes of code of every kernel for a processor.
pub fn with_code(manifest: &Manifest, code: &[u64]) -> Manifest {
    let mut with = manifest.clone();
    with.kernels.iter_mut().zip(code).for_each(|(kernel, bytes)| kernel.code_bytes = *bytes);
    with
}

/// Tensors of a side; extents that differ from variant to variant are `?`.
fn tensors(variants: &[Variant], side: impl Fn(&Plan) -> &Vec<BufferId>) -> Vec<TensorInfo> {
    let first = &variants[0].plan;
    let one = |(i, id): (usize, &BufferId)| {
        let buffer = first.buffer(*id);
        let extent = |(axis, extent): (usize, &u64)| {
            let same = |v: &Variant| {
                let id = side(&v.plan)[i];
                v.plan.buffer(id).dims.get(axis) == Some(extent) && v.expression(id, axis).is_none()
            };
            if variants.iter().all(same) { extent.to_string() } else { "?".to_owned() }
        };
        let dims = buffer.dims.iter().enumerate().map(extent).collect();
        TensorInfo { name: buffer.name.clone(), dtype: buffer.dtype.name().to_owned(), dims }
    };
    side(first).iter().enumerate().map(one).collect()
}

/// The outputs, with the names of dynamic dimensions whose extents they have in every variant.
fn outputs(request: &AotRequest, variants: &[Variant]) -> Vec<TensorInfo> {
    let mut all = tensors(variants, |plan| &plan.outputs);
    for (i, info) in all.iter_mut().enumerate() {
        for (axis, text) in info.dims.iter_mut().enumerate().filter(|(_, text)| *text == "?") {
            let same = |v: &Variant, dim: usize, name: &str| {
                let id = v.plan.outputs[i];
                let extent = v.plan.buffer(id).dims.get(axis).copied();
                match v.expression(id, axis) {
                    Some(expression) => expression == name,
                    None => extent == v.extents.get(dim).copied() && v.is_known(name),
                }
            };
            let named = |(dim, name): &(usize, &String)| variants.iter().all(|v| same(v, *dim, name));
            if let Some((_, name)) = request.ranges.keys().enumerate().find(named) {
                *text = name.clone();
            }
        }
    }
    all
}

/// The inputs, with the names of dynamic dimensions.
fn inputs(graph: &Graph, request: &AotRequest, variants: &[Variant]) -> Vec<TensorInfo> {
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
