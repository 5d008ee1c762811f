//! Object files: a compiled model as data and functions that a C program links with.
//!
//! The object defines a record of the model (`rt/src/model.rs` reads it), the kernels, and one function for every
//! [`ENTRIES`] that passes the record on to the run-time library. Only these functions are visible to others. Of a model
//! for a GPU, the kernels are data.

use cranelift_codegen::ir::{self, AbiParam, InstBuilder, Signature, Type, types};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use cranelift_module::{DataDescription, DataId, FuncId, Linkage, Module};
use cranelift_object::object::SectionKind;
use cranelift_object::{ObjectBuilder, ObjectModule};
use tensorc_abi::artifact::MANIFEST_SECTION;
use tensorc_abi::image::LIBRARIES;
use tensorc_ir::diag::{Diagnostic, Result};
use tensorc_ir::kir::Kernel;
use tensorc_schedule::target::VectorLevel;

use super::function::{compile, kernel_signature, module_error};
use super::isa::{Use, isa};
use super::libcalls;
use super::merge::MergedObject;
use crate::isa::Isa;
use crate::symbols;
use crate::walk::internal;

/// What a model's object holds.
pub struct ObjectModel<'m> {
    /// The beginning of all names in it: an identifier of C.
    pub name: &'m str,
    /// The kernels of the model, by [`tensorc_abi::KernelId`].
    pub kernels: &'m [Kernel],
    /// Plans as the run-time library reads them.
    pub image: &'m [u64],
    /// The block of weights, if it is to be inside.
    pub weights: Option<&'m [u8]>,
    /// Which of [`LIBRARIES`] are called.
    pub libraries: [bool; LIBRARIES.len()],
    /// The code of kernels that run on a GPU; `kernels` is empty then.
    pub gpu: Option<GpuCode<'m>>,
    /// Whether it has a `main`.
    pub program: bool,
    /// Whether the image is that of a model that runs in parts.
    pub in_parts: bool,
    /// Makes what `tensorc inspect` shows, in a section that is not loaded, of the bytes of code of each kernel.
    pub manifest: &'m dyn Fn(&[u64]) -> Vec<u8>,
}

/// Code for a GPU.
#[derive(Clone, Copy)]
pub struct GpuCode<'m> {
    /// PTX and a zero.
    pub ptx: &'m [u8],
    /// Machine code.
    pub cubin: Option<&'m [u8]>,
}

/// What a kernel of a model is called in objects.
pub fn kernel_name(model: &str, number: usize) -> String {
    format!("{model}_kernel{number}")
}

/// Alignment of weights, in bytes.
const ALIGN: u64 = 64;

/// A C function of a model, and what it passes on after the model.
struct ModelFunction {
    /// Behind the model's name, and behind `tc_rt`.
    suffix: &'static str,
    params: &'static [Type],
    result: Option<Type>,
}

const POINTER: Type = types::I64;

const fn entry(suffix: &'static str, params: &'static [Type], result: Option<Type>) -> ModelFunction {
    ModelFunction { suffix, params, result }
}

const ENTRIES: [ModelFunction; 10] = [
    entry("_memory_bytes", &[types::I32], Some(types::I64)),
    entry("_memory_for", &[POINTER, types::I32], Some(types::I64)),
    entry("_init", &[POINTER, POINTER, types::I64, POINTER, POINTER], Some(types::I32)),
    entry("_describe", &[POINTER, POINTER, POINTER], Some(types::I32)),
    entry("_run", &[POINTER, POINTER, POINTER], Some(types::I32)),
    entry("_error", &[POINTER], Some(POINTER)),
    entry("_free", &[POINTER], None),
    entry("_weights_open", &[POINTER, types::I32, POINTER], Some(types::I32)),
    entry("_weights_view", &[POINTER, types::I64, types::I32, POINTER], Some(types::I32)),
    entry("_weights_close", &[POINTER], None),
];

/// What models for a GPU have besides.
const GPU_ENTRY: ModelFunction = entry("_init_on", &[POINTER, POINTER, POINTER, types::I64, POINTER], Some(types::I32));

impl ModelFunction {
    /// The function of the run-time library that it passes on to. Those of weights are the same for all models.
    fn callee(&self, kind: &str) -> String {
        let kind = if self.suffix.starts_with("_weights") { "" } else { kind };
        format!("tc_rt{kind}{}", self.suffix)
    }
}

/// Makes the object of a model. `objects` holds, for each kernel that another back end compiled for the target, an
/// object that defines it alone, as [`kernel_name`].
pub(crate) fn emit_object(model: &ObjectModel<'_>, objects: &[Option<Vec<u8>>], target: Isa) -> Result<Vec<u8>> {
    let isa = isa(target, Use::Object, cfg!(debug_assertions))?;
    let builder = ObjectBuilder::new(isa, model.name, Box::new(libcalls::name));
    let mut builder = builder.map_err(module_error)?;
    // So that what a program does not use is left out.
    builder.per_function_section(true).per_data_object_section(true).unwind_info(false);
    let names: Vec<String> = (0..model.kernels.len()).map(|i| kernel_name(model.name, i)).collect();
    let mut emitter = Emitter {
        module: ObjectModule::new(builder),
        model,
        names: &names,
        merged: objects
            .iter()
            .zip(&names)
            .map(|(o, name)| o.as_ref().map(|o| MergedObject::new(name, o)).transpose())
            .collect::<Result<_>>()?,
        level: target.vector_level(),
        context: FunctionBuilderContext::new(),
        code: vec![],
    };
    let record = emitter.record()?;
    let gpu = model.gpu.is_some();
    let kind = match model.in_parts {
        _ if gpu => "_gpu",
        true => "_parts",
        false => "",
    };
    for entry in ENTRIES.iter().chain(gpu.then_some(&GPU_ENTRY)) {
        let name = format!("{}{}", model.name, entry.suffix);
        emitter.forward(&name, &entry.callee(kind), record, entry.params, entry.result)?;
    }
    if model.program {
        emitter.forward("main", &format!("tc_rt{kind}_main"), record, &[types::I32, POINTER], Some(types::I32))?;
    }
    let manifest = (model.manifest)(&emitter.code);
    let merged = emitter.merged;
    let mut product = emitter.module.finish();
    merged.iter().flatten().try_for_each(|merged| merged.copy(&mut product.object, &symbols::callee_name))?;
    let section = product.object.add_section(vec![], MANIFEST_SECTION.into(), SectionKind::Other);
    product.object.append_section_data(section, &manifest, 1);
    product.emit().map_err(|e| internal(format!("object file: {e}")))
}

struct Emitter<'m> {
    module: ObjectModule,
    model: &'m ObjectModel<'m>,
    /// Of kernels.
    names: &'m [String],
    /// Kernels of another back end.
    merged: Vec<Option<MergedObject<'m>>>,
    /// Of loops over wide vectors.
    level: Option<VectorLevel>,
    context: FunctionBuilderContext,
    /// Bytes of code of each kernel.
    code: Vec<u64>,
}

impl Emitter<'_> {
    fn data(&mut self, name: &str, description: &DataDescription) -> Result<DataId> {
        let name = format!("{}_{name}", self.model.name);
        let id = self.module.declare_data(&name, Linkage::Local, false, false).map_err(module_error)?;
        self.module.define_data(id, description).map_err(module_error)?;
        Ok(id)
    }

    fn bytes(&mut self, name: &str, bytes: Vec<u8>, align: u64) -> Result<DataId> {
        let mut description = DataDescription::new();
        description.define(bytes.into());
        description.set_align(align);
        self.data(name, &description)
    }

    fn kernel(&mut self, number: usize, kernel: &Kernel) -> Result<FuncId> {
        let (name, signature) = (&self.names[number], kernel_signature(&self.module));
        if let Some(Some(merged)) = self.merged.get(number) {
            self.code.push(merged.code_bytes()?);
            return self.module.declare_function(name, Linkage::Import, &signature).map_err(module_error);
        }
        let mut ctx = self.module.make_context();
        let id = self.module.declare_function(name, Linkage::Local, &signature).map_err(module_error)?;
        let blob = compile(&mut self.module, (id, kernel), self.level, &mut ctx, &mut self.context)?;
        self.module.define_function_bytes(id, blob.align, &blob.code, &blob.relocs).map_err(module_error)?;
        self.code.push(blob.code.len() as u64);
        Ok(id)
    }

    /// The record of the model, as `Model` of the run-time library declares it, or `GpuModel`.
    fn record(&mut self) -> Result<DataId> {
        let words: Vec<u8> = self.model.image.iter().flat_map(|word| word.to_le_bytes()).collect();
        let image = self.bytes("image", words, 8)?;
        let mut table = DataDescription::new();
        table.define(vec![0; 8 * self.model.kernels.len()].into());
        table.set_align(8);
        for (i, kernel) in self.model.kernels.iter().enumerate() {
            let id = self.kernel(i, kernel).map_err(|d: Diagnostic| d.note(format!("in kernel `{}`", kernel.name)))?;
            let function = self.module.declare_func_in_data(id, &mut table);
            table.write_function_addr(8 * i as u32, function);
        }
        let kernels = self.data("kernels", &table)?;
        let weights = self.model.weights.map(|weights| self.bytes("weights", weights.to_vec(), ALIGN)).transpose()?;
        const FIELDS: usize = 4 + LIBRARIES.len();
        let mut fields = vec![0u8; 8 * (FIELDS + if self.model.gpu.is_some() { 2 } else { 0 })];
        fields[8..16].copy_from_slice(&(self.model.image.len() as u64).to_le_bytes());
        let mut record = DataDescription::new();
        record.define(fields.into());
        record.set_align(8);
        let mut addresses = vec![(0, Some(image)), (2, Some(kernels)), (3, weights)];
        if let Some(GpuCode { ptx, cubin }) = self.model.gpu {
            addresses.push((FIELDS as u32, Some(self.bytes("ptx", ptx.to_vec(), ALIGN)?)));
            let cubin = cubin.map(|cubin| self.bytes("cubin", cubin.to_vec(), ALIGN)).transpose()?;
            addresses.push((FIELDS as u32 + 1, cubin));
        }
        for (field, id) in addresses.into_iter().filter_map(|(field, id)| Some((field, id?))) {
            let value = self.module.declare_data_in_data(id, &mut record);
            record.write_data_addr(8 * field, value, 0);
        }
        for (i, name) in LIBRARIES.iter().enumerate().filter(|(i, _)| self.model.libraries[*i]) {
            let id = self.module.declare_data(name, Linkage::Import, false, false).map_err(module_error)?;
            let value = self.module.declare_data_in_data(id, &mut record);
            record.write_data_addr(8 * (4 + i as u32), value, 0);
        }
        self.data("model", &record)
    }

    /// Defines a visible function that calls another with the model in front of its own arguments.
    fn forward(
        &mut self,
        name: &str,
        callee: &str,
        record: DataId,
        params: &[Type],
        result: Option<Type>,
    ) -> Result<()> {
        let mut own = Signature::new(self.module.isa().default_call_conv());
        own.params = params.iter().map(|t| AbiParam::new(*t)).collect();
        own.returns = result.into_iter().map(AbiParam::new).collect();
        let mut inner = own.clone();
        inner.params.insert(0, AbiParam::new(POINTER));
        let callee = self.module.declare_function(callee, Linkage::Import, &inner).map_err(module_error)?;
        let id = self.module.declare_function(name, Linkage::Export, &own).map_err(module_error)?;
        let mut ctx = self.module.make_context();
        ctx.func.signature = own;
        let callee = self.module.declare_func_in_func(callee, &mut ctx.func);
        let record = self.module.declare_data_in_func(record, &mut ctx.func);
        let mut b = FunctionBuilder::new(&mut ctx.func, &mut self.context);
        let block = b.create_block();
        b.append_block_params_for_function_params(block);
        b.switch_to_block(block);
        b.seal_block(block);
        let mut args: Vec<ir::Value> = vec![b.ins().symbol_value(POINTER, record)];
        args.extend_from_slice(b.block_params(block));
        let call = b.ins().call(callee, &args);
        let results = b.inst_results(call).to_vec();
        b.ins().return_(&results);
        b.finalize(self.module.target_config());
        self.module.define_function(id, &mut ctx).map_err(module_error)
    }
}
