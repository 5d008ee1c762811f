//! What ahead-of-time code is made for: a processor architecture and the instructions that may be relied on.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use tensorc_ir::diag::{Code, Diagnostic};
use tensorc_ir::kir::Kernel;

pub use tensorc_schedule::target::Capability;

/// A family of processors, 64 bits, little-endian, with the calling convention of its ELF systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Arch {
    X86_64,
    Aarch64,
    /// With the extensions of RV64GC and floats passed in registers (`lp64d`).
    Riscv64,
}

/// The instructions that code may use beyond those every processor of the architecture has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    Baseline,
    /// `x86-64-v3` of the x86-64 psABI: AVX2, FMA, F16C.
    V3,
    /// `x86-64-v4`: AVX-512 F, BW, CD, DQ, VL.
    V4,
    /// All that the machine has on which the compiler runs.
    Native,
}

/// What code is made for. Its text form is one of [`Target::NAMES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    arch: Arch,
    level: Level,
}

const ALL: [(&str, Option<Arch>, Level); 6] = [
    ("native", None, Level::Native),
    ("x86_64", Some(Arch::X86_64), Level::Baseline),
    ("x86_64-v3", Some(Arch::X86_64), Level::V3),
    ("x86_64-v4", Some(Arch::X86_64), Level::V4),
    ("aarch64", Some(Arch::Aarch64), Level::Baseline),
    ("riscv64", Some(Arch::Riscv64), Level::Baseline),
];

impl Target {
    /// The text forms of all targets.
    pub const NAMES: [&str; 6] = [ALL[0].0, ALL[1].0, ALL[2].0, ALL[3].0, ALL[4].0, ALL[5].0];

    /// This machine.
    ///
    /// # Errors
    /// [`Code::Unsupported`] on an architecture that is no target.
    pub fn native() -> Result<Target, Diagnostic> {
        let arch = match () {
            () if cfg!(target_arch = "x86_64") => Arch::X86_64,
            () if cfg!(target_arch = "aarch64") => Arch::Aarch64,
            () if cfg!(target_arch = "riscv64") => Arch::Riscv64,
            () => return Err(Diagnostic::new(Code::Unsupported, "no code for the architecture of this machine")),
        };
        Ok(Target { arch, level: Level::Native })
    }

    pub fn arch(self) -> Arch {
        self.arch
    }

    pub fn level(self) -> Level {
        self.level
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

impl FromStr for Target {
    type Err = Diagnostic;

    /// Reads a text form: `native`, `x86_64`, `x86_64-v3`, `x86_64-v4`, `aarch64`, `riscv64`.
    fn from_str(text: &str) -> Result<Target, Diagnostic> {
        match ALL.iter().find(|(name, ..)| *name == text) {
            Some((_, Some(arch), level)) => Ok(Target { arch: *arch, level: *level }),
            Some((_, None, _)) => Target::native(),
            None => {
                let why = format!("unknown target `{text}`; known: {}", Target::NAMES.join(", "));
                Err(Diagnostic::new(Code::Unsupported, why))
            }
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |(_, arch, level): &&(_, Option<Arch>, Level)| {
            *level == self.level && arch.is_none_or(|arch| arch == self.arch)
        };
        f.write_str(ALL.iter().find(of).map_or("native", |(name, ..)| name))
    }
}

/// Names of functions for kernels: their own, with other characters than letters, digits and `_` replaced, and numbered where
/// two are the same.
pub fn entry_names(kernels: &[Kernel]) -> Vec<String> {
    let mut taken = BTreeSet::new();
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let mut name = |kernel: &Kernel| {
        let base = format!("k_{}", kernel.name.chars().map(plain).collect::<String>());
        let numbered = (1..).map(|n| format!("{base}_{n}"));
        let found = std::iter::once(base.clone()).chain(numbered).find(|name| !taken.contains(name));
        let found = found.unwrap_or(base);
        taken.insert(found.clone());
        found
    };
    kernels.iter().map(&mut name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        for name in Target::NAMES {
            let target: Result<Target, _> = name.parse();
            assert_eq!(target.map(|t| t.to_string()).ok().as_deref(), Some(name));
        }
        let error = "sparc".parse::<Target>().map_err(|e| e.to_string());
        assert!(error.is_err_and(|e| e.contains("unknown target `sparc`; known: native, x86_64,")));
    }
}
