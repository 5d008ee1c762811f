//! The back ends that make machine code of kernels.

use crate::isa::Isa;
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::kir::Kernel;
use tensorc_schedule::target::{VectorLevel, Vectors};

/// What makes machine code of kernels. The results have the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Backend {
    /// A fraction of a millisecond a kernel. Vectors of 128 bits, but loops over wide vectors where x86-64 has AVX2.
    #[default]
    Cranelift,
    /// Some ten milliseconds a kernel, vectors as wide as the processor's. In builds with the feature `llvm`.
    Llvm,
    /// LLVM for kernels that compute much for each element, Cranelift for others; Cranelift alone in builds
    /// without LLVM.
    Auto,
}

impl Backend {
    /// The names of the back ends, in the order of the variants.
    pub const NAMES: [&str; 3] = ["cranelift", "llvm", "auto"];

    /// Reads one of [`Backend::NAMES`].
    pub fn from_name(name: &str) -> Option<Backend> {
        let all = [Backend::Cranelift, Backend::Llvm, Backend::Auto];
        Backend::NAMES.iter().zip(all).find(|(n, _)| **n == name).map(|(_, b)| b)
    }

    /// Its name among [`Backend::NAMES`].
    pub fn name(self) -> &'static str {
        Backend::NAMES[self as usize]
    }

    /// Whether this build has LLVM.
    pub const fn has_llvm() -> bool {
        cfg!(feature = "llvm")
    }

    /// # Errors
    /// [`DiagnosticCode::Unsupported`] if this build does not have it.
    pub fn check(self) -> Result<()> {
        if self == Backend::Llvm && !Backend::has_llvm() {
            let why = "this build has no LLVM; build with the feature `llvm`, or choose another back end";
            return Err(Diagnostic::new(DiagnosticCode::Unsupported, why));
        }
        Ok(())
    }

    /// The vectors that kernels for it have.
    pub fn vectors(self) -> Vectors {
        match self {
            Backend::Cranelift => Vectors::Narrow,
            Backend::Auto if !Backend::has_llvm() => Vectors::Narrow,
            Backend::Llvm | Backend::Auto => Vectors::Wide,
        }
    }

    /// Whether its code for a target has an instruction for [`tensorc_ir::scalar::ScalarOp::Scale`].
    pub fn scales(self, target: Isa) -> bool {
        #[cfg(feature = "llvm")]
        let has = crate::llvm::scales;
        #[cfg(not(feature = "llvm"))]
        let has = |_: Isa| false;
        self.vectors() == Vectors::Wide && has(target)
    }

    /// What loops over wide vectors are written with for a target, where its own vectors are narrow.
    pub fn loops(self, target: Isa) -> Option<VectorLevel> {
        target.vector_level().filter(|_| self.vectors() == Vectors::Narrow)
    }

    /// The one that compiles a given kernel.
    pub fn of(self, kernel: &Kernel) -> Backend {
        match self {
            Backend::Auto if Backend::has_llvm() && crate::analysis::computes_much(kernel) => Backend::Llvm,
            Backend::Auto => Backend::Cranelift,
            other => other,
        }
    }
}
