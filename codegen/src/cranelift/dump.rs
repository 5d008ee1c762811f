//! Code of kernels as text.

use cranelift_codegen::Context;
use cranelift_frontend::FunctionBuilderContext;
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::Module;
use cranelift_object::{ObjectBuilder, ObjectModule};
use tensorc_ir::diag::Result;
use tensorc_ir::kir::Kernel;

use super::function::{build, module_error};
use super::isa::{Use, isa};
use super::{libcalls, vector_loop};
use crate::isa::{Isa, IsaLevel};
use crate::loading::in_kernel;
use crate::walk::internal;

/// Text of a kernel's code, for people and text tests.
#[derive(Clone, Debug)]
pub struct Dump {
    /// Cranelift's intermediate language.
    pub clif: String,
    /// Machine code as lines of assembly, labelled by block.
    pub assembly: String,
    /// Bytes of machine code and constants.
    pub bytes: usize,
}

/// The code that the kernel gets, checked by Cranelift's verifier: on this machine in memory, for others in objects.
pub fn dump(kernel: &Kernel, target: Isa) -> Result<Dump> {
    if target.level() == IsaLevel::Native {
        let builder = JITBuilder::with_isa(isa(target, Use::Jit, true)?, Box::new(libcalls::name));
        return of_module(JITModule::new(builder), kernel, target);
    }
    let builder = ObjectBuilder::new(isa(target, Use::Object, true)?, "kernel", Box::new(libcalls::name));
    of_module(ObjectModule::new(builder.map_err(module_error)?), kernel, target)
}

fn of_module(mut module: impl Module, kernel: &Kernel, target: Isa) -> Result<Dump> {
    let mut ctx = Context::new();
    let loops = build(&mut module, kernel, target.vector_level(), &mut ctx, &mut FunctionBuilderContext::new());
    let loops = loops.map_err(|d| d.note(in_kernel(kernel)))?;
    let mut clif = ctx.func.display().to_string();
    for (i, l) in loops.iter().enumerate() {
        clif.push_str(&vector_loop::text(i, l));
    }
    ctx.set_disasm(true);
    let code = ctx.compile(module.isa(), &mut Default::default());
    let code = code.map_err(|e| internal(format!("Cranelift: {:?}", e.inner)).note(in_kernel(kernel)))?;
    let assembly = code.vcode.clone().unwrap_or_default();
    let bytes = code.buffer.data().len() + loops.iter().map(|l| l.code.bytes.len()).sum::<usize>();
    Ok(Dump { clif, assembly, bytes })
}
