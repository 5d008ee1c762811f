//! Ahead of time: a model becomes an object file, a library or a program (`docs/aot.md`).
//!
//! A [`AotRequest`] names the shapes. A model whose shapes depend on values becomes several parts (`division`, `elements`), the same for all shapes (`common`), which `parts_image` joins; branches and loops between them that the host runs have bodies that are models of their own (`flows`); branches that all shapes take alike are none (`decided`). `cover` finds plans for all of them, *variants*: few that hold for many shapes (`open`), others
//! for one. `variants` compiles them, `constants` has their constants in memory once, `weights` lays their weights into one block,
//! `image` writes plans as tables, `region` those for many shapes with the program that changes them for a shape (`plan_numbers`, `sizes`), and `tensorc_codegen::object` puts these beside the kernels; `gpu` makes the code of kernels that run on a
//! GPU. `header`, `bindings` and `describe` describe the result, `link` makes libraries and programs with the linker of the
//! C compiler.

pub mod bindings;
mod common;
mod constants;
mod cover;
mod decided;
mod describe;
mod division;
mod elements;
pub mod files;
mod flows;
pub mod gpu;
mod header;
mod image;
pub mod link;
mod open;
mod parts_image;
mod plan_numbers;
mod region;
mod sizes;
mod variants;
mod weights;

use std::collections::BTreeMap;

use tensorc_abi::image::step;
use tensorc_codegen::isa::Isa;
use tensorc_codegen::object::{GpuCode, ObjectModel, emit_object, kernel_name};
use tensorc_exec::Records;
use tensorc_ir::TextModule;
use tensorc_ir::graph::Graph;
use tensorc_ir::kir::Kernel;
use tensorc_runtime::artifact::Manifest;

use self::division::{CompiledPart, Division};
use self::gpu::{GpuTarget, ModelCode};
use self::variants::Variant;
use crate::error::Error;
use crate::model::Model;

/// What to compile a model for.
#[derive(Clone, Debug)]
pub struct AotRequest {
    /// The beginning of the names of its C functions; letters, digits and `_`.
    pub name: String,
    /// Extents of inputs and dimensions, by name.
    pub shapes: BTreeMap<String, Vec<u64>>,
    /// Extents of dynamic dimensions, by name.
    pub ranges: BTreeMap<String, ExtentRange>,
    /// The processor, of the program alone if the kernels run on a GPU.
    pub target: Isa,
    /// Where the kernels run, if it is a GPU; the passes of the compiler are for one then.
    pub gpu: Option<GpuTarget>,
    /// Whether the weights are part of the object rather than a file beside it.
    pub embed_weights: bool,
    /// Whether the object has a `main`.
    pub program: bool,
}

/// The extents that a dynamic dimension may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentRange {
    /// The least.
    pub first: u64,
    /// The greatest.
    pub last: u64,
    /// From one to the next, at least 1.
    pub step: u64,
}

impl ExtentRange {
    /// All extents between two.
    pub const fn all(first: u64, last: u64) -> ExtentRange {
        ExtentRange { first, last, step: 1 }
    }

    /// How many there are.
    fn count(&self) -> u64 {
        (self.last - self.first) / self.step + 1
    }

    /// One of them, in ascending order.
    fn at(&self, i: u64) -> u64 {
        self.first + i * self.step
    }
}

impl From<(u64, u64)> for ExtentRange {
    fn from((first, last): (u64, u64)) -> ExtentRange {
        ExtentRange::all(first, last)
    }
}

/// `1..=8`, or `32..=640/32` with a step.
impl std::fmt::Display for ExtentRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}..={}", self.first, self.last)?;
        if self.step == 1 { Ok(()) } else { write!(f, "/{}", self.step) }
    }
}

/// Whether a name may be that of an element which decides shapes, as `k.0` for the first of a tensor `k`.
pub(crate) fn may_name_element(graph: &Graph, name: &str) -> bool {
    let named = |tensor: &str| graph.node_ids().into_iter().any(|node| *graph.node(node).name == *tensor);
    let numbered = |name: &'_ str| match name.rsplit_once('.') {
        Some((tensor, position)) if position.parse::<usize>().is_ok() => Some(tensor.to_owned()),
        _ => None,
    };
    // Behind the name of the node come the position of a result, unless it is the first, and that of an element or axis.
    numbered(name).is_some_and(|tensor| named(&tensor) || numbered(&tensor).is_some_and(|node| named(&node)))
}

/// A compiled model.
pub struct Artifact {
    /// A relocatable ELF object, which needs the run-time library.
    pub object: Vec<u8>,
    /// The C header.
    pub header: String,
    /// The file of weights, if they are not embedded.
    pub weights: Option<Vec<u8>>,
    /// The PTX of kernels that run on a GPU.
    pub ptx: Option<String>,
    /// A description of the artifact.
    pub manifest: Manifest,
    /// What was compiled, for people: the optimized graph and the plan of every variant, named by its extents, and the
    /// kernels of all, as the object names them.
    pub module: TextModule,
    /// Plans for many shapes with the extents they depend on as expressions, and the conditions on which each holds, as text. The
    /// module has them for their largest shapes.
    pub open_plans: Vec<String>,
}

/// Compiles a model ahead of time.
///
/// # Errors
/// The request does not fit the model; shapes in it depend on values in a way that artifacts have no form for; it calls functions
/// of this process, or changes states; the compiler's back end has no code for the target.
pub fn compile(model: &Model, request: &AotRequest) -> Result<Artifact, Error> {
    model.refuse_text_operators()?;
    let compiler = model.compiler();
    check_name(&request.name)?;
    let made_for = match compiler.target().is_gpu() {
        false if request.gpu.is_some() => Some("processors, the target is a GPU"),
        true if request.gpu.is_none() => Some("GPUs, the target is a processor"),
        _ => None,
    };
    if let Some(what) = made_for {
        return Err(Error::Artifact(format!("the compiler's passes are for {what}")));
    }
    let (division, variants) = Division::compile(model, request)?;
    compiler.progress("pack weights");
    let block = weights::WeightBlock::new(compiler, &variants)?;
    let (kernels, numbers) = unique_kernels(&variants);
    compiler.progress("generate code");
    let on_gpu = |gpu: &GpuTarget| ModelCode::new(&request.name, &kernels, &variants, &numbers, gpu);
    let code = request.gpu.as_ref().map(on_gpu).transpose()?;
    let records = |(v, numbers): (&Variant, &Vec<u32>)| image::records(&v.plan, numbers, code.is_some());
    let records: Vec<Records> = variants.iter().zip(&numbers).map(records).collect::<Result<_, _>>()?;
    let part_image = |part: &'_ CompiledPart| {
        let own = part.variants.clone();
        image::write(&image::Contents {
            request,
            names: &part.names,
            ranges: &part.ranges,
            variants: &variants[own.clone()],
            numbers: &numbers[own.clone()],
            records: &records[own.clone()],
            offsets: &block.offsets[own],
            kernels: kernels.len() as u64,
            block: &block,
            gpu: code.as_ref(),
        })
    };
    let in_parts = division.parts.len() > 1;
    let (image, kept_bytes) = match in_parts {
        true => {
            let writer = parts_image::PartsWriter {
                request,
                part_image: &part_image,
                kernels: kernels.len() as u64,
                block: &block,
            };
            writer.write(&division)?
        }
        false => (part_image(&division.parts[0])?, 0),
    };
    let described = describe::Described { request, division: &division, variants: &variants, kept_bytes };
    let manifest = described.manifest(&kernels, &block, code.as_ref(), image.len());
    let calls = |kind: u64| records.iter().any(|records| calls(records, kind));
    let object = ObjectModel {
        name: &request.name,
        kernels: if code.is_some() { &[] } else { &kernels },
        image: &image,
        weights: request.embed_weights.then_some(&block.bytes),
        libraries: std::array::from_fn(|library| calls(step::LIBRARY + library as u64)),
        gpu: code.as_ref().map(|code| GpuCode { ptx: &code.ptx, cubin: code.cubin.as_deref() }),
        program: request.program,
        in_parts,
        manifest: &|code| describe::with_code(&manifest, code).to_section(),
    };
    let (backend, threads) = (compiler.options().backend, compiler.pool().threads());
    let object = emit_object(&object, backend, request.target, threads)?;
    // As the object has it: with the bytes of code.
    let manifest = Manifest::of_elf(&object).map_err(|e| Error::Internal(format!("the manifest of an object: {e}")))?;
    let header = header::write(&manifest, model.texts());
    let weights = (!request.embed_weights).then(|| block.file());
    let names = |numbers: &[u32]| numbers.iter().map(|n| kernel_name(&request.name, *n as usize)).collect();
    let open_text = |(v, numbers): (&Variant, &Vec<u32>)| Some(v.open.as_ref()?.0.text(&request.name, names(numbers)));
    let open_plans = variants.iter().zip(&numbers).filter_map(open_text).collect();
    let module = module(request, &division, variants, kernels, &numbers);
    let ptx = code.as_ref().map(ModelCode::text);
    Ok(Artifact { object, header, weights, ptx, manifest, module, open_plans })
}

/// Whether a step of a plan or of one that is nested in it is of a kind.
fn calls(records: &Records, kind: u64) -> bool {
    records.steps.iter().any(|s| s[step::KIND] == kind) || records.bodies.iter().flatten().any(|body| calls(body, kind))
}

fn module(
    request: &AotRequest,
    division: &Division,
    variants: Vec<Variant>,
    mut kernels: Vec<Kernel>,
    numbers: &[Vec<u32>],
) -> TextModule {
    let mut module = TextModule { name: request.name.clone(), ..TextModule::default() };
    let parts = division.all_parts();
    let part_of = |number: usize| parts.iter().enumerate().find(|(_, part)| part.variants.contains(&number));
    for (number, (mut variant, numbers)) in variants.into_iter().zip(numbers).enumerate() {
        let Some((i, part)) = part_of(number) else { continue };
        let named = part.names.iter().zip(&variant.extents).map(|(name, extent)| format!("_{name}_{extent}"));
        let which = (parts.len() > 1).then(|| format!("_part{}", i + 1));
        let name: String = std::iter::once(request.name.clone()).chain(which).chain(named).collect();
        variant.graph.name = name.as_str().into();
        variant.plan.name = name;
        variant.plan.kernels = numbers.iter().map(|n| kernel_name(&request.name, *n as usize)).collect();
        module.graphs.push(variant.graph);
        module.plans.push(variant.plan);
    }
    kernels.iter_mut().enumerate().for_each(|(i, kernel)| kernel.name = kernel_name(&request.name, i));
    module.kernels = kernels;
    module
}

fn check_name(name: &str) -> Result<(), Error> {
    let fits = |(i, c): (usize, char)| c == '_' || c.is_ascii_alphabetic() || (i > 0 && c.is_ascii_digit());
    match !name.is_empty() && name.chars().enumerate().all(fits) {
        true => Ok(()),
        false => Err(Error::Artifact(format!("`{name}` is no name in C: letters, digits and _"))),
    }
}

/// The different kernels of all variants, and for each variant the number of each of its kernels.
fn unique_kernels(variants: &[Variant]) -> (Vec<Kernel>, Vec<Vec<u32>>) {
    let mut numbers: std::collections::HashMap<Kernel, u32> = std::collections::HashMap::new();
    let mut kernels = vec![];
    let mut number = |kernel: &Kernel| {
        *numbers.entry(kernel.canonical()).or_insert_with(|| {
            kernels.push(kernel.clone());
            kernels.len() as u32 - 1
        })
    };
    let all = variants.iter().map(|v| v.kernels.iter().map(&mut number).collect()).collect();
    (kernels, all)
}
