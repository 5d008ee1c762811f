//! What ahead-of-time code is made for: a processor architecture and the instructions that may be relied on.

use std::fmt;
use std::str::FromStr;

use tensorc_ir::diag::{Diagnostic, DiagnosticCode};
use tensorc_schedule::target::VectorLevel;

/// A family of processors, 64 bits, little-endian, with the calling convention of its ELF systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Arch {
    /// x86-64.
    X86_64,
    /// 64-bit Arm.
    Aarch64,
    /// With the extensions of RV64GC and floats passed in registers (`lp64d`).
    Riscv64,
}

/// The instructions that code may use beyond those every processor of the architecture has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IsaLevel {
    /// The instructions that every processor of the architecture has.
    Baseline,
    /// `x86-64-v3` of the x86-64 psABI: AVX2, FMA, F16C.
    V3,
    /// `x86-64-v4`: AVX-512 F, BW, CD, DQ, VL.
    V4,
    /// All that the machine has on which the compiler runs.
    Native,
}

/// What code is made for. Its text form is one of [`Isa::NAMES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Isa {
    arch: Arch,
    level: IsaLevel,
}

const ALL: [(&str, Option<Arch>, IsaLevel); 6] = [
    ("native", None, IsaLevel::Native),
    ("x86_64", Some(Arch::X86_64), IsaLevel::Baseline),
    ("x86_64-v3", Some(Arch::X86_64), IsaLevel::V3),
    ("x86_64-v4", Some(Arch::X86_64), IsaLevel::V4),
    ("aarch64", Some(Arch::Aarch64), IsaLevel::Baseline),
    ("riscv64", Some(Arch::Riscv64), IsaLevel::Baseline),
];

impl Isa {
    /// The text forms of all targets.
    pub const NAMES: [&str; 6] = [ALL[0].0, ALL[1].0, ALL[2].0, ALL[3].0, ALL[4].0, ALL[5].0];

    /// This machine.
    ///
    /// # Errors
    /// [`DiagnosticCode::Unsupported`] on an architecture that is no target.
    pub fn native() -> Result<Isa, Diagnostic> {
        let arch = match () {
            () if cfg!(target_arch = "x86_64") => Arch::X86_64,
            () if cfg!(target_arch = "aarch64") => Arch::Aarch64,
            () if cfg!(target_arch = "riscv64") => Arch::Riscv64,
            () => {
                return Err(Diagnostic::new(
                    DiagnosticCode::Unsupported,
                    "no code for the architecture of this machine",
                ));
            }
        };
        Ok(Isa { arch, level: IsaLevel::Native })
    }

    /// The architecture.
    pub fn arch(self) -> Arch {
        self.arch
    }

    /// The instructions beyond the baseline.
    pub fn level(self) -> IsaLevel {
        self.level
    }

    /// The vector instructions that may be relied on, beyond those that every processor has.
    pub fn vector_level(self) -> Option<VectorLevel> {
        match (self.arch, self.level) {
            (Arch::X86_64, IsaLevel::V3) => Some(VectorLevel::Avx2),
            (Arch::X86_64, IsaLevel::V4) => Some(VectorLevel::Avx512),
            (Arch::X86_64, IsaLevel::Native) => native_vectors(),
            _ => None,
        }
    }

    /// The target triple, in the spelling LLVM, Cranelift and GNU tools share.
    pub fn triple(self) -> &'static str {
        match self.arch {
            Arch::X86_64 => "x86_64-unknown-linux-gnu",
            Arch::Aarch64 => "aarch64-unknown-linux-gnu",
            Arch::Riscv64 => "riscv64-unknown-linux-gnu",
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn native_vectors() -> Option<VectorLevel> {
    use std::arch::is_x86_feature_detected as has;
    let avx2 = has!("avx2") && has!("fma") && has!("f16c") && has!("bmi2");
    let avx512 = avx2 && has!("avx512f") && has!("avx512dq") && has!("avx512vl");
    let wide = if avx512 { VectorLevel::Avx512 } else { VectorLevel::Avx2 };
    avx2.then_some(wide)
}

#[cfg(not(target_arch = "x86_64"))]
fn native_vectors() -> Option<VectorLevel> {
    None
}

impl FromStr for Isa {
    type Err = Diagnostic;

    /// Reads a text form: `native`, `x86_64`, `x86_64-v3`, `x86_64-v4`, `aarch64`, `riscv64`.
    fn from_str(text: &str) -> Result<Isa, Diagnostic> {
        match ALL.iter().find(|(name, ..)| *name == text) {
            Some((_, Some(arch), level)) => Ok(Isa { arch: *arch, level: *level }),
            Some((_, None, _)) => Isa::native(),
            None => {
                let why = format!("unknown target `{text}`; known: {}", Isa::NAMES.join(", "));
                Err(Diagnostic::new(DiagnosticCode::Unsupported, why))
            }
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |(_, arch, level): &&(_, Option<Arch>, IsaLevel)| {
            *level == self.level && arch.is_none_or(|arch| arch == self.arch)
        };
        f.write_str(ALL.iter().find(of).map_or("native", |(name, ..)| name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        for name in Isa::NAMES {
            let target: Result<Isa, _> = name.parse();
            assert_eq!(target.map(|t| t.to_string()).ok().as_deref(), Some(name));
        }
        let error = "sparc".parse::<Isa>().map_err(|e| e.to_string());
        assert!(error.is_err_and(|e| e.contains("unknown target `sparc`; known: native, x86_64,")));
    }
}
