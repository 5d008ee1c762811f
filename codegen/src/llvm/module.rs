//! Kernels as LLVM modules, optimized modules as objects.

use inkwell::attributes::AttributeLoc;
use inkwell::context::Context;
use inkwell::module::Module;
use inkwell::passes::PassBuilderOptions;
use inkwell::targets::FileType;
use tensorc_ir::diag::Result;
use tensorc_ir::kir::Kernel;

use super::ir::Ir;
use super::kernel::write_body;
use super::machine::Processor;
use crate::isa::Isa;
use crate::loading::in_kernel;
use crate::walk::internal;

/// A relocatable ELF object with an exported function for each kernel, of the given name and the type
/// [`tensorc_abi::KernelFn`]. The same kernels give the same bytes.
///
/// Undefined symbols are functions of the run-time library (`tc_…`) and, on processors without the instruction,
/// of the C library's mathematical part; copying and clearing memory may call `memcpy` and `memset`.
///
/// # Errors
/// A kernel has no code, or the target is not known to LLVM.
pub fn emit_object(kernels: &[(String, Kernel)], target: &Isa) -> Result<Vec<u8>> {
    let processor = Processor::new(*target)?;
    let named: Vec<(&str, &Kernel)> = kernels.iter().map(|(n, k)| (n.as_str(), k)).collect();
    generate(&named, &processor, true, FileType::Object)
}

/// An object for each kernel, with an exported function of the name given.
///
/// # Errors
/// As [`emit_object`].
pub(crate) fn objects(kernels: &[(String, &Kernel)], target: Isa) -> Result<Vec<Vec<u8>>> {
    let processor = Processor::new(target)?;
    kernels.iter().map(|(name, kernel)| object(name, kernel, &processor, cfg!(debug_assertions))).collect()
}

/// The LLVM IR of a kernel for a target, as it is translated, or optimized.
///
/// # Errors
/// As [`emit_object`].
pub fn ir_text(kernel: &Kernel, target: &Isa, optimized: bool) -> Result<String> {
    let processor = Processor::new(*target)?;
    let cx = Context::create();
    let module = translate(&cx, &[(&kernel.name, kernel)], &processor)?;
    if optimized {
        optimize(&module, &processor)?;
    }
    Ok(module.print_to_string().to_string())
}

/// The machine code of kernels as assembly, with an exported function of each name given.
///
/// # Errors
/// As [`emit_object`].
pub fn assembly(kernels: &[(String, &Kernel)], target: &Isa) -> Result<String> {
    let processor = Processor::new(*target)?;
    let named: Vec<(&str, &Kernel)> = kernels.iter().map(|(n, k)| (n.as_str(), *k)).collect();
    let bytes = generate(&named, &processor, true, FileType::Assembly)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// An object of one kernel as an exported function.
pub(super) fn object(name: &str, kernel: &Kernel, processor: &Processor, verify: bool) -> Result<Vec<u8>> {
    generate(&[(name, kernel)], processor, verify, FileType::Object)
}

fn generate(kernels: &[(&str, &Kernel)], processor: &Processor, verify: bool, file: FileType) -> Result<Vec<u8>> {
    let cx = Context::create();
    let module = translate(&cx, kernels, processor)?;
    if verify {
        module.verify().map_err(|e| internal(format!("LLVM: {}", e.to_string_lossy())))?;
    }
    optimize(&module, processor)?;
    let code = processor.machine.write_to_memory_buffer(&module, file);
    let code = code.map_err(|e| internal(format!("LLVM: {}", e.to_string_lossy())))?;
    Ok(code.as_slice().to_vec())
}

fn translate<'c>(cx: &'c Context, kernels: &[(&str, &Kernel)], processor: &Processor) -> Result<Module<'c>> {
    let module = cx.create_module("tensorc");
    module.set_triple(&processor.machine.get_triple());
    module.set_data_layout(&processor.machine.get_target_data().get_data_layout());
    for (name, kernel) in kernels {
        translate_kernel(cx, &module, name, kernel, processor).map_err(|d| d.note(in_kernel(kernel)))?;
    }
    Ok(module)
}

fn translate_kernel<'c>(
    cx: &'c Context,
    module: &Module<'c>,
    name: &str,
    kernel: &Kernel,
    processor: &Processor,
) -> Result<()> {
    if module.get_function(name).is_some() {
        return Err(internal(format!("two kernels of the name `{name}`")));
    }
    let ir = Ir { cx, module, b: cx.create_builder() };
    let pointer = ir.pointer_type();
    let ty = cx.void_type().fn_type(&[pointer.into(), pointer.into()], false);
    let function = module.add_function(name, ty, None);
    function.add_attribute(AttributeLoc::Function, ir.attribute("nounwind"));
    let mut strings = vec![("probe-stack", "inline-asm".to_owned())];
    if let Some(bits) = processor.vector_bits {
        // Without these, LLVM splits the widest vectors on processors that lower their clock for them.
        strings.extend([("min-legal-vector-width", bits.to_string()), ("prefer-vector-width", bits.to_string())]);
    }
    for (key, value) in strings {
        function.add_attribute(AttributeLoc::Function, cx.create_string_attribute(key, &value));
    }
    write_body(ir, processor.emitter, kernel, function)
}

/// The passes over a module. Kernels arrive scheduled, as functions that call no other: what is left to do is to
/// dissolve arrays into registers, to share and to hoist what indices are computed from, and to unroll. This takes
/// half as long as `default<O2>`, for code of the same speed.
const PASSES: &str = "function(sroa,early-cse<memssa>,instcombine<no-verify-fixpoint>,simplifycfg,\
     loop-mssa(licm),loop(indvars),gvn,sroa,loop-unroll,\
     instcombine<no-verify-fixpoint>,loop-mssa(licm),simplifycfg)";

fn optimize(module: &Module<'_>, processor: &Processor) -> Result<()> {
    let done = module.run_passes(PASSES, &processor.machine, PassBuilderOptions::create());
    done.map_err(|e| internal(format!("LLVM: {}", e.to_string_lossy())))
}
