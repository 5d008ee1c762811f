//! Object files of kernels alone, for programs that call them themselves.

use cranelift_codegen::Context;
use cranelift_frontend::FunctionBuilderContext;
use cranelift_module::{Linkage, Module};
use cranelift_object::{ObjectBuilder, ObjectModule};
use tensorc_ir::diag::{Diagnostic, Result};
use tensorc_ir::kir::Kernel;

use super::function::{compile, kernel_signature, module_error};
use super::isa::{Use, isa};
use super::libcalls;
use crate::isa::Isa;
use crate::walk::internal;

/// Compiles kernels into an object file for a target; the `i`-th is the global function `names[i]`, a
/// [`tensorc_abi::KernelFn`].
///
/// The code may lie anywhere. Undefined symbols are functions of the run-time library, such as `tc_exp_f64`.
/// Equal arguments give equal bytes.
///
/// # Errors
/// The target has no code, or a kernel none on it; there are not as many names as kernels, or two are equal.
pub fn emit_kernels(kernels: &[Kernel], names: &[String], target: Isa) -> Result<Vec<u8>> {
    if kernels.len() != names.len() {
        return Err(internal(format!("{} names for {} kernels", names.len(), kernels.len())));
    }
    let isa = isa(target, Use::Object, true)?;
    let builder = ObjectBuilder::new(isa, "kernels", Box::new(libcalls::name)).map_err(module_error)?;
    let mut module = ObjectModule::new(builder);
    let (mut ctx, mut builder_ctx) = (Context::new(), FunctionBuilderContext::new());
    for (kernel, name) in kernels.iter().zip(names) {
        let mut define = || {
            let signature = kernel_signature(&module);
            let id = module.declare_function(name, Linkage::Export, &signature).map_err(module_error)?;
            let blob = compile(&mut module, (id, kernel), target.vector_level(), &mut ctx, &mut builder_ctx)?;
            module.define_function_bytes(id, blob.align, &blob.code, &blob.relocs).map_err(module_error)
        };
        define().map_err(|d: Diagnostic| d.note(format!("in kernel `{}`", kernel.name)))?;
    }
    module.finish().emit().map_err(|e| internal(format!("object file: {e}")))
}
