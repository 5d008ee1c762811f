//! Objects of models compiled ahead of time: kernels from the back ends asked for, in one file.

use tensorc_ir::diag::Result;

use crate::cranelift;
pub use crate::cranelift::{GpuCode, ObjectModel, kernel_name};
use crate::isa::Isa;
use crate::jit::Backend;

/// Makes the object of a model, on up to `threads` threads. Equal models give equal bytes, on any number of threads.
///
/// # Errors
/// The build has no such back end, the back end no code for the target, or a kernel none on it.
pub fn emit_object(model: &ObjectModel<'_>, backend: Backend, target: Isa, threads: usize) -> Result<Vec<u8>> {
    backend.check()?;
    let objects = objects(model, backend, target, threads)?;
    cranelift::emit_object(model, &objects, target)
}

/// For each kernel its object, if LLVM compiles it.
#[cfg(feature = "llvm")]
fn objects(model: &ObjectModel<'_>, backend: Backend, target: Isa, threads: usize) -> Result<Vec<Option<Vec<u8>>>> {
    let all = 0..model.kernels.len();
    let wanted: Vec<usize> = all.filter(|i| backend.of(&model.kernels[*i]) == Backend::Llvm).collect();
    let make = |chunk: &[usize]| {
        let name = |i: usize| cranelift::kernel_name(model.name, i);
        let named: Vec<_> = chunk.iter().map(|&i| (name(i), &model.kernels[i])).collect();
        crate::llvm::objects(&named, target)
    };
    let made = crate::jit::on_threads(&wanted, threads, make)?;
    let mut objects = vec![None; model.kernels.len()];
    for (i, object) in wanted.into_iter().zip(made) {
        objects[i] = Some(object);
    }
    Ok(objects)
}

#[cfg(not(feature = "llvm"))]
fn objects(model: &ObjectModel<'_>, _: Backend, _: Isa, _: usize) -> Result<Vec<Option<Vec<u8>>>> {
    Ok(vec![None; model.kernels.len()])
}
