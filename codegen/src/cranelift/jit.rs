//! Kernels in executable memory of this process, and their code as text.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cranelift_codegen::Context;
use cranelift_frontend::FunctionBuilderContext;
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{FuncId, Linkage, Module};
use tensorc_abi::KernelFn;
use tensorc_ir::diag::Result;
use tensorc_ir::kir::Kernel;

use super::function::{build, module_error};
use super::isa::{Use, isa};
use super::libcalls;
use crate::jit::{Entry, in_kernel, panicked};
use crate::target::Target;

/// Code of one or more kernels; the memory is returned when the last user is gone.
struct CodeMemory(Option<JITModule>);

// SAFETY: after construction the module is only touched by `drop`, which has exclusive access;
// until then it lives on one thread. The code itself is immutable and may run on any thread.
unsafe impl Sync for CodeMemory {}

impl Drop for CodeMemory {
    fn drop(&mut self) {
        if let Some(module) = self.0.take() {
            // SAFETY: every `JitModule` with a pointer into this memory holds a reference to it, and
            // its `entry` documents that the pointers end with it.
            unsafe { module.free_memory() };
        }
    }
}

/// Compiles kernels into one piece of memory. `addresses` holds the library functions they call.
pub(crate) fn compile(kernels: &[&Kernel], addresses: &BTreeMap<String, usize>, verify: bool) -> Result<Vec<Entry>> {
    let isa = isa(Target::native()?, Use::Jit, verify)?;
    let mut builder = JITBuilder::with_isa(isa, Box::new(libcalls::name));
    for (name, address) in addresses {
        builder.symbol(name.as_str(), *address as *const u8);
    }
    let mut module = JITModule::new(builder);
    let mut ids = Vec::with_capacity(kernels.len());
    let mut ctx = module.make_context();
    let mut builder_ctx = FunctionBuilderContext::new();
    for (n, kernel) in kernels.iter().enumerate() {
        let define = || define_kernel(&mut module, kernel, n, &mut ctx, &mut builder_ctx);
        // The compiler crates assert their own invariants.
        let id = catch_unwind(AssertUnwindSafe(define)).unwrap_or_else(|_| Err(panicked()));
        ids.push(id.map_err(|d| d.note(in_kernel(kernel)))?);
    }
    module.finalize_definitions().map_err(module_error)?;
    let functions: Vec<KernelFn> = ids
        .into_iter()
        .map(|id| {
            let address = module.get_finalized_function(id);
            // SAFETY: the function was defined with exactly this signature and the C convention.
            unsafe { std::mem::transmute::<*const u8, KernelFn>(address) }
        })
        .collect();
    let code: Arc<dyn Any + Send + Sync> = Arc::new(CodeMemory(Some(module)));
    Ok(functions.into_iter().map(|function| Entry { function, code: code.clone() }).collect())
}

fn define_kernel(
    module: &mut JITModule,
    kernel: &Kernel,
    n: usize,
    ctx: &mut Context,
    builder_ctx: &mut FunctionBuilderContext,
) -> Result<FuncId> {
    module.clear_context(ctx);
    build(module, kernel, ctx, builder_ctx)?;
    let name = format!("kernel{n}");
    let id = module.declare_function(&name, Linkage::Local, &ctx.func.signature).map_err(module_error)?;
    module.define_function(id, ctx).map_err(module_error)?;
    Ok(id)
}
