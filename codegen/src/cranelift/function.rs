//! One kernel as a function of a module, in memory or in an object file.

use std::collections::BTreeMap;

use cranelift_codegen::Context;
use cranelift_codegen::ir::{AbiParam, FuncRef, Signature, types};
use cranelift_codegen::isa::CallConv;
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use cranelift_module::{FuncId, Linkage, Module, ModuleError, ModuleReloc};
use tensorc_ir::diag::{Diagnostic, Result};
use tensorc_ir::kir::Kernel;
use tensorc_schedule::target::VectorLevel;

use super::code_blob::CodeBlob;
use super::isa::has_vectors;
use super::kernel::translate;
use super::types::carrier;
use super::vector_loop;
use crate::symbols::{self, Prototype};
use crate::vector::CompiledLoop;
use crate::walk::internal;

/// The code of a kernel as function `id`, with the loops over wide vectors that it calls behind it.
pub(super) fn compile(
    module: &mut impl Module,
    (id, kernel): (FuncId, &Kernel),
    level: Option<VectorLevel>,
    ctx: &mut Context,
    builder_ctx: &mut FunctionBuilderContext,
) -> Result<CodeBlob> {
    module.clear_context(ctx);
    let loops = build(module, kernel, level, ctx, builder_ctx)?;
    let compiled = ctx.compile(module.isa(), &mut Default::default());
    compiled.map_err(|e| internal(format!("Cranelift: {:?}", e.inner)))?;
    let buffer = &ctx.compiled_code().ok_or_else(|| internal("Cranelift has no code"))?.buffer;
    let mut blob = CodeBlob { align: buffer.alignment.into(), code: buffer.data().to_vec(), relocs: vec![] };
    let entries = blob.append(&loops);
    for reloc in buffer.relocs() {
        match vector_loop::called(reloc, &ctx.func) {
            Some(number) => blob.link(reloc, entries[number])?,
            None => blob.relocs.push(ModuleReloc::from_mach_reloc(reloc, &ctx.func, id)),
        }
    }
    Ok(blob)
}

/// Translates the kernel into `ctx`; the loops over wide vectors that it calls.
pub(super) fn build(
    module: &mut impl Module,
    kernel: &Kernel,
    level: Option<VectorLevel>,
    ctx: &mut Context,
    builder_ctx: &mut FunctionBuilderContext,
) -> Result<Vec<CompiledLoop>> {
    ctx.func.signature = kernel_signature(module);
    let callees = declare_callees(module, kernel)?.into_iter();
    let externals: BTreeMap<String, FuncRef> =
        callees.map(|(name, id)| (name, module.declare_func_in_func(id, &mut ctx.func))).collect();
    let builder = FunctionBuilder::new(&mut ctx.func, builder_ctx);
    let vectors = has_vectors(module.isa());
    let done = translate(builder, kernel, &externals, (vectors, level)).map(|(b, loops)| {
        b.finalize(module.target_config());
        loops
    });
    if done.is_err() {
        // A builder that was not finalized leaves its context unusable.
        *builder_ctx = FunctionBuilderContext::new();
    }
    done
}

/// The signature of [`tensorc_abi::KernelFn`].
pub(super) fn kernel_signature(module: &impl Module) -> Signature {
    let mut own = Signature::new(module.isa().default_call_conv());
    own.params = vec![AbiParam::new(types::I64); 2];
    own
}

/// The functions of the run-time library that the kernel calls, by name.
pub(super) fn declare_callees(module: &mut impl Module, kernel: &Kernel) -> Result<BTreeMap<String, FuncId>> {
    let call_conv = module.isa().default_call_conv();
    let mut callees = BTreeMap::new();
    for (name, prototype) in symbols::needed(kernel) {
        let signature = signature(prototype, call_conv);
        let id = module.declare_function(&name, Linkage::Import, &signature).map_err(module_error)?;
        callees.insert(name, id);
    }
    Ok(callees)
}

/// The signature of a library function.
fn signature(prototype: Prototype, call_conv: CallConv) -> Signature {
    let mut signature = Signature::new(call_conv);
    signature.params = vec![AbiParam::new(carrier(prototype.param)); prototype.arity];
    signature.returns = prototype.result.into_iter().map(|r| AbiParam::new(carrier(r))).collect();
    signature
}

pub(super) fn module_error(error: ModuleError) -> Diagnostic {
    internal(format!("Cranelift: {error:?}"))
}
