//! Kernels to be loaded into this process, and the code of loaded ones.

use std::any::Any;
use std::sync::Arc;

use tensorc_abi::KernelFn;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode};
use tensorc_ir::interrupt::Interrupt;
use tensorc_ir::kir::Kernel;

/// The code of one kernel, and what keeps its memory.
#[derive(Clone)]
pub(crate) struct KernelCode {
    pub function: KernelFn,
    /// Bytes of its machine code.
    pub bytes: usize,
    pub code: Arc<dyn Any + Send + Sync>,
}

/// A kernel that is to be loaded.
pub(crate) struct LoadRequest<'a> {
    pub kernel: &'a Kernel,
    /// What its code calls the function, other than all that is loaded with it.
    pub name: &'a str,
    /// Its code from a store.
    pub known: Option<&'a [u8]>,
    /// Whether there is a store.
    pub keep: bool,
    /// Asked behind each kernel.
    pub interrupt: Interrupt<'a>,
}

/// A loaded kernel.
pub(crate) struct LoadedKernel {
    pub entry: KernelCode,
    /// What a store is to keep.
    pub code: Option<Vec<u8>>,
}

pub(crate) fn in_kernel(kernel: &Kernel) -> String {
    format!("in kernel `{}`", kernel.name)
}

pub(crate) fn panicked() -> Diagnostic {
    Diagnostic::new(DiagnosticCode::Internal, "the code generator stopped unexpectedly")
}
