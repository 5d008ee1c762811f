//! The manifest of a compiled model, from what was compiled.

use tensorc_abi::image::VERSION;
use tensorc_abi::{BufferId, DType, Plan};
use tensorc_ir::Dim;
use tensorc_ir::graph::Value;
use tensorc_ir::kir::Kernel;
use tensorc_ir::text::print_kernel;
use tensorc_runtime::artifact::{KernelInfo, Manifest, ScratchInfo, TensorInfo, VariantInfo, WeightsInfo};

use super::division::{CompiledPart, Division};
use super::gpu::ModelCode;
use super::open::furthest;
use super::variants::Variant;
use super::weights::WeightBlock;
use super::{AotRequest, ExtentRange};

/// What is described.
pub struct Described<'a> {
    pub request: &'a AotRequest,
    pub division: &'a Division,
    pub variants: &'a [Variant],
    /// Memory for what goes from part to part, and what the host notes.
    pub kept_bytes: u64,
}

impl Described<'_> {
    /// What an artifact says of itself, but for the bytes of code.
    pub fn manifest(
        &self,
        kernels: &[Kernel],
        block: &WeightBlock,
        gpu: Option<&ModelCode>,
        image_words: usize,
    ) -> Manifest {
        let Described { request, division, .. } = self;
        let ptx = gpu.map(ModelCode::ptx_bytes).unwrap_or_default();
        let kernel = |(i, k): (usize, &Kernel)| KernelInfo {
            name: k.name.clone(),
            code_bytes: ptx.get(i).copied().unwrap_or(0),
            launch: gpu.map(|code| code.launch(i)),
            kir: print_kernel(k),
        };
        let dims = |part: &CompiledPart| {
            let range = |(name, range): (&String, &ExtentRange)| (name.clone(), range.first, range.last);
            part.names.iter().zip(&part.ranges).map(range).collect::<Vec<_>>()
        };
        let (first, last) = (&division.parts[0], &division.parts[division.parts.len() - 1]);
        Manifest {
            format: (VERSION.major, VERSION.minor),
            compiler: env!("CARGO_PKG_VERSION").to_owned(),
            name: request.name.clone(),
            target: request.target.to_string(),
            inputs: self.inputs(first),
            outputs: self.all_outputs(),
            dims: dims(first),
            steps: match first.ranges.iter().all(|range| range.step == 1) {
                true => vec![],
                false => first.ranges.iter().map(|range| range.step).collect(),
            },
            found: dims(last).split_off(first.names.len()),
            kept_bytes: self.kept_bytes.saturating_add(self.body_arenas(division)),
            weights: WeightsInfo {
                embedded: request.embed_weights,
                bytes: block.bytes.len() as u64,
                hash: format!("{:032x}", block.hash),
            },
            gpu: gpu.map(ModelCode::describe),
            image_bytes: 8 * image_words as u64,
            variants: division.all_parts().into_iter().enumerate().flat_map(|(i, part)| self.plans(i, part)).collect(),
            kernels: kernels.iter().enumerate().map(kernel).collect(),
        }
    }

    /// The plans of a part.
    fn plans(&self, part: usize, CompiledPart { variants, .. }: &CompiledPart) -> Vec<VariantInfo> {
        let info = |v: &Variant| {
            let one = || v.plan.scratch.iter().map(|s| ScratchInfo { offset: s.offset + s.shared, bytes: s.bytes });
            let (arena_bytes, scratch) = match &v.open {
                None => (v.plan.arena_bytes, furthest(one().collect())),
                Some((_, memory)) => (memory.arena_bytes, memory.scratch.clone()),
            };
            let (part, extents, steps) = (part as u64, v.extents.clone(), v.plan.steps.len() as u64);
            VariantInfo { part, extents, many: v.open.is_some(), steps, arena_bytes, scratch, scratch_bytes: 0 }
        };
        self.variants[variants.clone()].iter().map(info).collect()
    }

    /// Bytes of intermediate tensors of all bodies of branches and loops, which have memory of their own.
    fn body_arenas(&self, division: &Division) -> u64 {
        let arena = |part: &CompiledPart| self.plans(0, part).iter().map(|plan| plan.run_bytes(1)).max();
        let of_body = |body: &Division| {
            let own = body.parts.iter().filter_map(arena).max();
            own.unwrap_or(0).saturating_add(self.body_arenas(body))
        };
        division.flows.values().flat_map(|flow| &flow.bodies).map(of_body).sum()
    }

    /// The outputs of the model.
    fn all_outputs(&self) -> Vec<TensorInfo> {
        let parts = &self.division.parts;
        if let [only] = &parts[..] {
            return self.outputs(only);
        }
        let graph = &self.division.graph;
        let of_parts: Vec<Vec<TensorInfo>> = parts.iter().map(|part| self.outputs(part)).collect();
        let one = |(name, v): &(_, Value)| {
            let computed = parts.iter().zip(&of_parts).find_map(|(part, outputs)| {
                part.shape.outputs.iter().position(|output| output == v).map(|i| &outputs[i])
            });
            let input = || self.inputs(&parts[0]).into_iter().nth(graph.inputs().iter().position(|n| *n == v.node)?);
            let info = computed.cloned().or_else(input).unwrap_or_else(|| self.found(*v));
            TensorInfo { name: format!("{name}"), ..info }
        };
        graph.outputs().iter().map(one).collect()
    }

    /// A result of the host.
    fn found(&self, v: Value) -> TensorInfo {
        let (graph, parts) = (&self.division.graph, &self.division.parts);
        let most = self.division.most.get(&v);
        let mut dims = vec!["?".to_owned(); most.map_or(0, |most| most.dims.len())];
        for source in parts.iter().flat_map(|part| &part.shape.sources).filter(|source| source.value == v) {
            for axis in source.open_positions() {
                dims[*axis] = source.number_name(&graph.node(v.node).name, *axis);
            }
        }
        let dtype = most.map_or(DType::I64, |most| most.dtype).name().to_owned();
        TensorInfo { name: String::new(), dtype, dims }
    }

    /// The outputs, with the names of dynamic dimensions whose extents they have in every variant.
    fn outputs(&self, part: &CompiledPart) -> Vec<TensorInfo> {
        let variants = &self.variants[part.variants.clone()];
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
                if let Some((_, name)) = part.names.iter().enumerate().find(named) {
                    *text = name.clone();
                }
            }
        }
        all
    }

    /// The inputs, with the names of dynamic dimensions.
    fn inputs(&self, part: &CompiledPart) -> Vec<TensorInfo> {
        let graph = &self.division.graph;
        let mut all = tensors(&self.variants[part.variants.clone()], |plan| &plan.inputs);
        for (info, node) in all.iter_mut().zip(graph.inputs()) {
            let shape = graph.resolved(Value { node: *node, port: 0 }).shape;
            for (dim, text) in shape.dims().unwrap_or_default().iter().zip(&mut info.dims) {
                if let Dim::Sym(id) = dim
                    && part.names.iter().any(|name| **name == *graph.dims.name(*id))
                {
                    *text = graph.dims.name(*id).to_string();
                }
            }
        }
        all
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
