//! Instruction sets: a [`Isa`] with Cranelift's settings.

use cranelift_codegen::isa::{self, Builder, LookupError, OwnedTargetIsa, TargetIsa};
use cranelift_codegen::settings::{self, Configurable};
use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};

use crate::isa::{Isa, IsaLevel};
use crate::walk::internal;

/// What code is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Memory of this process.
    Jit,
    /// Object files, whose code may lie anywhere.
    Object,
}

/// The instruction set of a target.
///
/// Kernels arrive scheduled; Cranelift's own optimizer moves pure operations away from their uses
/// in unrolled bodies, which costs up to half of the speed in spills.
pub(super) fn isa(target: Isa, usage: Use, verify: bool) -> Result<OwnedTargetIsa> {
    let mut flags = settings::builder();
    let yes = |is: bool| if is { "true" } else { "false" };
    let values = [
        ("opt_level", "none"),
        ("is_pic", yes(usage == Use::Object)),
        ("use_colocated_libcalls", "false"),
        ("enable_verifier", yes(verify)),
        ("enable_probestack", "true"),
        ("probestack_strategy", "inline"),
    ];
    for (name, value) in values {
        flags.set(name, value).map_err(|e| internal(format!("Cranelift setting {name}: {e}")))?;
    }
    let builder = builder(target)?;
    builder.finish(settings::Flags::new(flags)).map_err(|e| internal(format!("Cranelift: {e}")))
}

/// All that decides what code Cranelift makes in memory on this machine.
pub(crate) fn describe(target: Isa, verify: bool) -> Result<String> {
    let isa = isa(target, Use::Jit, verify)?;
    let own: Vec<String> = isa.isa_flags().iter().map(ToString::to_string).collect();
    let (version, triple, shared) = (cranelift_jit::VERSION, isa.triple(), isa.flags());
    let loops = target.vector_level();
    Ok(format!("Cranelift {version} {triple}\n{shared}{} {loops:?}", own.join(" ")))
}

fn unsupported(target: Isa, why: &str) -> Diagnostic {
    Diagnostic::new(DiagnosticCode::Unsupported, format!("no code for the target {target}: {why}"))
}

/// A target without a back end.
fn missing(target: Isa, why: LookupError) -> Diagnostic {
    match why {
        LookupError::SupportDisabled => unsupported(
            target,
            "tensorc was built for processors of its own kind; the feature `all-processors` brings the others \
             (`cargo build --release --features all-processors`)",
        ),
        LookupError::Unsupported => unsupported(target, &why.to_string()),
    }
}

fn builder(target: Isa) -> Result<Builder> {
    if target.level() == IsaLevel::Native {
        return cranelift_native::builder().map_err(|why| unsupported(target, why));
    }
    let mut builder = isa::lookup_by_name(target.triple()).map_err(|why| missing(target, why))?;
    let level = match target.level() {
        IsaLevel::V3 => "x86-64-v3",
        IsaLevel::V4 => "x86-64-v4",
        IsaLevel::Baseline | IsaLevel::Native => return Ok(builder),
    };
    // The presets hold AVX2 and FMA, but not AVX, without which Cranelift uses neither.
    for setting in [level, "has_avx"] {
        builder.enable(setting).map_err(|e| internal(format!("Cranelift setting {setting}: {e}")))?;
    }
    Ok(builder)
}

/// Whether there are vector types: on RISC-V only with the extension V, which RV64GC lacks.
pub(super) fn has_vectors(isa: &dyn TargetIsa) -> bool {
    isa.name() != "riscv64" || isa.isa_flags().iter().any(|f| f.name == "has_v" && f.as_bool() == Some(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_back_end_names_the_feature() {
        let target: Isa = "aarch64".parse().unwrap();
        let error = missing(target, LookupError::SupportDisabled);
        assert_eq!(error.code, DiagnosticCode::Unsupported);
        assert_eq!(
            error.message,
            "no code for the target aarch64: tensorc was built for processors of its own kind; the feature \
             `all-processors` brings the others (`cargo build --release --features all-processors`)"
        );
    }

    /// The tests turn the feature on, so that every target is there.
    #[test]
    fn every_target_has_a_back_end() {
        for name in Isa::NAMES {
            isa(name.parse().unwrap(), Use::Object, true).unwrap();
        }
    }
}
