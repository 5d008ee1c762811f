//! Kernels as PTX, NVIDIA's portable assembly.

use std::sync::Once;

use inkwell::OptimizationLevel;
use inkwell::attributes::{Attribute, AttributeLoc};
use inkwell::context::Context;
use inkwell::module::Module;
use inkwell::passes::PassBuilderOptions;
use inkwell::targets::{FileType, InitializationConfig, Target, TargetMachine, TargetMachineOptions, TargetTriple};
use inkwell::{AddressSpace, types::BasicMetadataTypeEnum};
use tensorc_ir::diag::Result;
use tensorc_ir::kir::Kernel;
use tensorc_schedule::target::Capability;

use super::ir::Ir;
use super::kernel::write_body;
use super::scalar::ProcessorTraits;
use crate::loading::in_kernel;
use crate::walk::{internal, unsupported};

/// Address spaces of NVPTX.
pub(super) const GLOBAL: u16 = 1;
pub(super) const SHARED: u16 = 3;

/// The calling convention of functions that a host launches.
const PTX_KERNEL: u32 = 71;

/// Alignment of parameters, in bytes: that of every block of device memory.
const PARAMETER_ALIGNMENT: u64 = 16;

/// What a launch passes for each of [`Kernel::tensor_maps`], behind the addresses of buffers.
const TENSOR_MAP_BYTES: u32 = 128;
const TENSOR_MAP_ALIGNMENT: u64 = 64;

/// See [`crate::ptx::module`].
pub(crate) fn ptx(kernels: &[(&str, &Kernel)], distinct: &[bool], capability: Capability) -> Result<String> {
    let machine = machine(capability)?;
    let cx = Context::create();
    let module = cx.create_module("tensorc");
    module.set_triple(&machine.get_triple());
    module.set_data_layout(&machine.get_target_data().get_data_layout());
    for (i, (name, kernel)) in kernels.iter().enumerate() {
        let distinct = distinct.get(i).copied().unwrap_or(false);
        let gpu =
            ProcessorTraits { converts_f16: true, scales: false, gpu: true, groups: capability == Capability::Sm90a };
        translate(&cx, &module, name, kernel, (distinct, gpu)).map_err(|d| d.note(in_kernel(kernel)))?;
    }
    let llvm = |e: inkwell::support::LLVMString| internal(format!("LLVM: {}", e.to_string_lossy()));
    module.verify().map_err(llvm)?;
    module.run_passes(PASSES, &machine, PassBuilderOptions::create()).map_err(llvm)?;
    let code = machine.write_to_memory_buffer(&module, FileType::Assembly).map_err(llvm)?;
    Ok(String::from_utf8_lossy(code.as_slice()).trim_end_matches('\0').to_owned())
}

/// As on other processors, and loads and stores of neighbouring elements are joined.
const PASSES: &str = "function(sroa,early-cse<memssa>,instcombine<no-verify-fixpoint>,simplifycfg,\
     loop-mssa(licm),loop(indvars),gvn,sroa,loop-unroll,load-store-vectorizer,\
     instcombine<no-verify-fixpoint>,loop-mssa(licm),simplifycfg)";

fn machine(capability: Capability) -> Result<TargetMachine> {
    static READY: Once = Once::new();
    READY.call_once(|| Target::initialize_nvptx(&InitializationConfig::default()));
    let triple = TargetTriple::create("nvptx64-nvidia-cuda");
    let found = Target::from_triple(&triple);
    let found = found.map_err(|e| unsupported(format!("no code for a GPU: {}", e.to_string_lossy())))?;
    let options = TargetMachineOptions::new()
        .set_cpu(capability.processor())
        .set_features(capability.ptx_feature())
        .set_level(OptimizationLevel::Aggressive);
    let machine = found.create_target_machine_from_options(&triple, options);
    machine.ok_or_else(|| internal(format!("LLVM has no machine for {}", capability.processor())))
}

fn translate<'c>(
    cx: &'c Context,
    module: &Module<'c>,
    name: &str,
    kernel: &Kernel,
    (distinct, machine): (bool, ProcessorTraits),
) -> Result<()> {
    let launch = kernel.launch().ok_or_else(|| unsupported("the kernel is not for a GPU"))?;
    if module.get_function(name).is_some() {
        return Err(internal(format!("two kernels of the name `{name}`")));
    }
    let ir = Ir { cx, module, b: cx.create_builder() };
    let pointer: BasicMetadataTypeEnum<'c> = cx.ptr_type(AddressSpace::from(GLOBAL)).into();
    let maps = kernel.tensor_maps().len();
    let map: BasicMetadataTypeEnum<'c> = cx.ptr_type(AddressSpace::default()).into();
    let size: BasicMetadataTypeEnum<'c> = cx.i64_type().into();
    let parameters = [vec![pointer; kernel.params], vec![size; kernel.scalars.len()], vec![map; maps]].concat();
    let ty = cx.void_type().fn_type(&parameters, false);
    let function = module.add_function(name, ty, None);
    function.set_call_conventions(PTX_KERNEL);
    function.add_attribute(AttributeLoc::Function, ir.attribute("nounwind"));
    let threads = launch.threads.to_string();
    function.add_attribute(AttributeLoc::Function, cx.create_string_attribute("nvvm.maxntid", &threads));
    if maps > 0 {
        // Registers are divided among roles only if the assembler knows how many a block has.
        function.add_attribute(AttributeLoc::Function, cx.create_string_attribute("nvvm.minctasm", "1"));
    }
    let kind = Attribute::get_named_enum_kind_id("align");
    for i in parameters.len() - maps..parameters.len() {
        let bytes = cx.i8_type().array_type(TENSOR_MAP_BYTES);
        let by_value = Attribute::get_named_enum_kind_id("byval");
        let attributes = [
            cx.create_type_attribute(by_value, bytes.into()),
            cx.create_enum_attribute(kind, TENSOR_MAP_ALIGNMENT),
            cx.create_string_attribute("nvvm.grid_constant", ""),
            ir.attribute("readonly"),
        ];
        attributes.into_iter().for_each(|a| function.add_attribute(AttributeLoc::Param(i as u32), a));
    }
    for (i, info) in kernel.buffers[..kernel.params].iter().enumerate() {
        let mut attributes = vec![cx.create_enum_attribute(kind, PARAMETER_ALIGNMENT)];
        if distinct {
            attributes.push(ir.attribute("noalias"));
        }
        if !info.writable {
            attributes.push(ir.attribute("readonly"));
        }
        attributes.into_iter().for_each(|a| function.add_attribute(AttributeLoc::Param(i as u32), a));
    }
    write_body(ir, machine, kernel, function)
}
