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

use super::code_blob::CodeBlob;
use super::function::{compile, declare_callees, kernel_signature, module_error};
use super::isa::{Use, isa};
use super::libcalls;
use crate::isa::Isa;
use crate::loading::{KernelCode, LoadRequest, LoadedKernel, in_kernel, panicked};

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

/// Brings kernels into one piece of memory: from their known code, or compiled. `addresses` holds the library
/// functions they call.
pub(crate) fn load(
    wanted: &[LoadRequest<'_>],
    addresses: &BTreeMap<String, usize>,
    (target, verify): (Isa, bool),
) -> Result<Vec<LoadedKernel>> {
    let isa = isa(target, Use::Jit, verify)?;
    let mut builder = JITBuilder::with_isa(isa, Box::new(libcalls::name));
    for (name, address) in addresses {
        builder.symbol(name.as_str(), *address as *const u8);
    }
    let mut module = JITModule::new(builder);
    let mut placed = Vec::with_capacity(wanted.len());
    let mut ctx = module.make_context();
    let mut builder_ctx = FunctionBuilderContext::new();
    for wanted in wanted {
        let place = || place(&mut module, (target, wanted), &mut ctx, &mut builder_ctx);
        // The compiler crates assert their own invariants.
        let done = catch_unwind(AssertUnwindSafe(place)).unwrap_or_else(|_| Err(panicked()));
        placed.push(done.map_err(|d| d.note(in_kernel(wanted.kernel)))?);
        wanted.interrupt.check(format_args!("kernel `{}`", wanted.kernel.name))?;
    }
    module.finalize_definitions().map_err(module_error)?;
    let functions: Vec<(KernelFn, usize, Option<Vec<u8>>)> = placed
        .into_iter()
        .map(|(id, bytes, code)| {
            let address = module.get_finalized_function(id);
            // SAFETY: the function was defined with exactly this signature and the C convention, here or before its
            // code was stored.
            (unsafe { std::mem::transmute::<*const u8, KernelFn>(address) }, bytes, code)
        })
        .collect();
    let memory: Arc<dyn Any + Send + Sync> = Arc::new(CodeMemory(Some(module)));
    let made = |(function, bytes, code)| {
        let entry = KernelCode { function, bytes, code: memory.clone() };
        LoadedKernel { entry, code }
    };
    Ok(functions.into_iter().map(made).collect())
}

/// Defines a kernel; returns the size of its code in bytes, and the code in the form of a store, if it had none and is to have one.
fn place(
    module: &mut JITModule,
    (target, wanted): (Isa, &LoadRequest<'_>),
    ctx: &mut Context,
    builder_ctx: &mut FunctionBuilderContext,
) -> Result<(FuncId, usize, Option<Vec<u8>>)> {
    let signature = kernel_signature(module);
    let id = module.declare_function(wanted.name, Linkage::Local, &signature).map_err(module_error)?;
    let known = match wanted.known {
        Some(bytes) => CodeBlob::from_bytes(bytes, &declare_callees(module, wanted.kernel)?),
        None => None,
    };
    let is_new = known.is_none();
    let blob = match known {
        Some(blob) => blob,
        None => {
            let level = target.vector_level();
            compile(module, (id, wanted.kernel), level, ctx, builder_ctx)?
        }
    };
    module.define_function_bytes(id, blob.align, &blob.code, &blob.relocs).map_err(module_error)?;
    Ok((id, blob.code.len(), if is_new && wanted.keep { blob.to_bytes(module) } else { None }))
}
