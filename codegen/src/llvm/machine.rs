//! Processors as LLVM knows them.

use std::sync::{Once, OnceLock};

use inkwell::OptimizationLevel;
use inkwell::targets::{
    CodeModel, InitializationConfig, RelocMode, Target as LlvmTarget, TargetMachine, TargetMachineOptions, TargetTriple,
};
use tensorc_ir::diag::Result;

use super::scalar::ProcessorTraits;
use crate::isa::{Arch, Isa, IsaLevel};
use crate::walk::{internal, unsupported};

/// What code for a target is made with.
pub(super) struct Processor {
    pub machine: TargetMachine,
    pub emitter: ProcessorTraits,
    /// Bits of the widest vectors that instructions should use, where there is a choice.
    pub vector_bits: Option<u32>,
}

fn initialize(arch: Arch) {
    static DONE: [Once; 3] = [const { Once::new() }; 3];
    let config = InitializationConfig { asm_parser: true, ..InitializationConfig::default() };
    match arch {
        Arch::X86_64 => DONE[0].call_once(|| LlvmTarget::initialize_x86(&config)),
        Arch::Aarch64 => DONE[1].call_once(|| LlvmTarget::initialize_aarch64(&config)),
        Arch::Riscv64 => DONE[2].call_once(|| LlvmTarget::initialize_riscv(&config)),
    }
}

/// This processor. To ask it takes long where it is a virtual one.
fn host() -> &'static (String, String) {
    static HOST: OnceLock<(String, String)> = OnceLock::new();
    HOST.get_or_init(|| {
        let (name, features) = (TargetMachine::get_host_cpu_name(), TargetMachine::get_host_cpu_features());
        (name.to_string_lossy().into_owned(), features.to_string_lossy().into_owned())
    })
}

/// The name of the processor and its features beyond those the name implies.
pub(super) fn cpu(target: Isa) -> (String, String) {
    let fixed = |cpu: &str, features: &str| (cpu.to_owned(), features.to_owned());
    match (target.arch(), target.level()) {
        (_, IsaLevel::Native) => host().clone(),
        (Arch::X86_64, IsaLevel::V3) => fixed("x86-64-v3", ""),
        (Arch::X86_64, IsaLevel::V4) => fixed("x86-64-v4", ""),
        (Arch::X86_64, IsaLevel::Baseline) => fixed("x86-64", ""),
        (Arch::Aarch64, _) => fixed("generic", ""),
        (Arch::Riscv64, _) => fixed("generic-rv64", "+m,+a,+f,+d,+c"),
    }
}

fn has(features: &str, feature: &str) -> bool {
    features.split(',').any(|f| f.strip_prefix('+') == Some(feature))
}

/// Whether the processor has AVX-512.
fn is_wide(target: Isa, features: &str) -> bool {
    let all = || ["avx512vl", "avx512bw", "avx512dq"].iter().all(|f| has(features, f));
    target.arch() == Arch::X86_64 && (target.level() == IsaLevel::V4 || all())
}

/// Whether code for the target has an instruction for [`tensorc_ir::scalar::ScalarOp::Scale`].
pub(crate) fn scales(target: Isa) -> bool {
    is_wide(target, &cpu(target).1)
}

impl Processor {
    /// # Errors
    /// The build of LLVM lacks the target.
    pub fn new(target: Isa) -> Result<Processor> {
        initialize(target.arch());
        let triple = TargetTriple::create(target.triple());
        let found = LlvmTarget::from_triple(&triple);
        let found = found.map_err(|e| unsupported(format!("no code for {target}: {}", e.to_string_lossy())))?;
        let (cpu, features) = cpu(target);
        let mut options = TargetMachineOptions::new()
            .set_cpu(&cpu)
            .set_features(&features)
            .set_level(OptimizationLevel::Default)
            .set_reloc_mode(RelocMode::PIC)
            .set_code_model(CodeModel::Small);
        if target.arch() == Arch::Riscv64 {
            options = options.set_abi("lp64d");
        }
        let machine = found.create_target_machine_from_options(&triple, options);
        let machine = machine.ok_or_else(|| internal(format!("LLVM has no machine for {target}")))?;
        let has = |feature: &str| has(&features, feature);
        let wide = is_wide(target, &features);
        let converts_f16 = match target.arch() {
            Arch::X86_64 => matches!(target.level(), IsaLevel::V3 | IsaLevel::V4) || has("f16c"),
            Arch::Aarch64 => true,
            Arch::Riscv64 => false,
        };
        let vector_bits = wide.then_some(512);
        Ok(Processor {
            machine,
            emitter: ProcessorTraits { converts_f16, scales: wide, gpu: false, groups: false },
            vector_bits,
        })
    }
}
