//! `tensorc opt --to=clif|llvm|asm|ptx`: what back ends make of kernels, as text.

use tensorc::ir::diag::Result;
use tensorc::ir::kir::Kernel;
use tensorc::{Backend, Target};

/// A form of a kernel's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Cranelift's intermediate language.
    Clif,
    /// LLVM's, optimized.
    Llvm,
    /// Assembly, of the back end asked for.
    Asm,
    /// NVIDIA's, of kernels for a GPU.
    Ptx,
}

impl Form {
    pub const NAMES: [&str; 4] = ["clif", "llvm", "asm", "ptx"];
    const ALL: [Form; 4] = [Form::Clif, Form::Llvm, Form::Asm, Form::Ptx];

    pub fn from_name(name: &str) -> Option<Form> {
        Form::NAMES.iter().zip(Form::ALL).find(|(n, _)| **n == name).map(|(_, f)| f)
    }

    /// The back end whose code this is, if any is asked for by `--backend`.
    pub fn backend(self, asked: Backend) -> Backend {
        match self {
            Form::Clif => Backend::Cranelift,
            Form::Llvm => Backend::Llvm,
            Form::Asm => asked,
            Form::Ptx => Backend::Llvm,
        }
    }

    /// The code of kernels, a paragraph each.
    ///
    /// # Errors
    /// A kernel has no code, or the build does not have the back end.
    pub fn text(self, kernels: &[Kernel], backend: Backend, target: Target) -> Result<String> {
        let backend = self.backend(backend);
        backend.check()?;
        let mut out = String::new();
        for kernel in kernels {
            out += &format!("; kernel {}\n", kernel.name);
            out += &self.kernel(kernel, backend.of(kernel), target)?;
            out.push('\n');
        }
        Ok(out)
    }

    #[cfg(feature = "llvm")]
    fn kernel(self, kernel: &Kernel, backend: Backend, target: Target) -> Result<String> {
        match (self, backend) {
            (Form::Llvm, _) => tensorc_codegen::llvm::ir_text(kernel, &target, true),
            (Form::Asm, Backend::Llvm) => tensorc_codegen::llvm::assembly(kernel, &target),
            _ => self.of_cranelift(kernel, target),
        }
    }

    #[cfg(not(feature = "llvm"))]
    fn kernel(self, kernel: &Kernel, _: Backend, target: Target) -> Result<String> {
        self.of_cranelift(kernel, target)
    }

    fn of_cranelift(self, kernel: &Kernel, target: Target) -> Result<String> {
        if target != Target::native()? {
            let why = format!("Cranelift's code is shown for this machine only, not for {target}");
            return Err(tensorc::ir::diag::Diagnostic::new(tensorc::ir::diag::Code::Unsupported, why));
        }
        let code = tensorc_codegen::cranelift::dump(kernel)?;
        Ok(if self == Form::Clif { code.clif } else { code.assembly })
    }
}
