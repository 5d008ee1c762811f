//! `tensorc opt --to=clif|llvm|asm|ptx`: what back ends make of kernels, as text.

use tensorc::ir::diag::Result;
use tensorc::ir::kir::Kernel;
use tensorc::{Backend, Isa};

tensorc::abi::named! {
    /// A form of a kernel's code.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum DumpForm {
        /// Cranelift's intermediate language.
        Clif = "clif",
        /// LLVM's, optimized.
        Llvm = "llvm",
        /// Assembly, of the back end asked for.
        Asm = "asm",
        /// NVIDIA's, of kernels for a GPU.
        Ptx = "ptx",
    }
}

impl DumpForm {
    /// The back end whose code this is, if any is asked for by `--backend`.
    pub fn backend(self, asked: Backend) -> Backend {
        match self {
            DumpForm::Clif => Backend::Cranelift,
            DumpForm::Llvm => Backend::Llvm,
            DumpForm::Asm => asked,
            DumpForm::Ptx => Backend::Llvm,
        }
    }

    /// The code of kernels, a paragraph each; assembly of LLVM's in one piece that assemblers read.
    ///
    /// # Errors
    /// A kernel has no code, or the build does not have the back end.
    pub fn text(self, kernels: &[Kernel], backend: Backend, target: Isa) -> Result<String> {
        let backend = self.backend(backend);
        backend.check()?;
        let together = |kernel: &&Kernel| self == DumpForm::Asm && backend.of(kernel) == Backend::Llvm;
        let (together, apart): (Vec<&Kernel>, Vec<&Kernel>) = kernels.iter().partition(together);
        let mut out = String::new();
        for kernel in apart {
            out += &format!("; kernel {}\n", kernel.name);
            out += &self.kernel(kernel, target)?;
            out.push('\n');
        }
        if !together.is_empty() {
            out += &assembly(&together, target)?;
        }
        Ok(out)
    }

    fn kernel(self, kernel: &Kernel, target: Isa) -> Result<String> {
        #[cfg(feature = "llvm")]
        if self == DumpForm::Llvm {
            return tensorc_codegen::llvm::ir_text(kernel, &target, true);
        }
        let code = tensorc_codegen::cranelift::dump(kernel, target)?;
        Ok(if self == DumpForm::Clif { code.clif } else { code.assembly })
    }
}

/// Assembly by LLVM, of kernels that may have equal names.
#[cfg(feature = "llvm")]
fn assembly(kernels: &[&Kernel], target: Isa) -> Result<String> {
    let mut names = std::collections::BTreeSet::new();
    let mut named = vec![];
    for (i, kernel) in kernels.iter().enumerate() {
        let name = &kernel.name;
        named.push((if names.insert(name) { name.clone() } else { format!("{name}.{i}") }, *kernel));
    }
    tensorc_codegen::llvm::assembly(&named, &target)
}

#[cfg(not(feature = "llvm"))]
fn assembly(_: &[&Kernel], _: Isa) -> Result<String> {
    Ok(String::new())
}
