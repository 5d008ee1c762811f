//! What kernels are made for, and what they cost there: the one description of a machine that passes, schedules and
//! emitters read.

use std::str::FromStr;

use tensorc_ir::diag::{Diagnostic, DiagnosticCode};
use tensorc_ir::op::Grain;

use crate::cost::CostModel;

/// A machine that kernels run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// What executes kernels.
    pub processor: Processor,
    /// Products of f32 may round their operands to 10 bits of fraction (tf32), as matrix units do.
    pub tf32: bool,
    /// What kernels are assumed to cost, if not what the processor's figures say.
    pub costs: Option<CostModel>,
}

/// What executes kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processor {
    /// The processor of the host.
    Cpu(Cpu),
    /// A GPU.
    Gpu(Gpu),
}

/// A processor, by the back end that compiles for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cpu {
    /// The width of vectors.
    pub vectors: Vectors,
    /// Whether there is an instruction for [`tensorc_ir::scalar::ScalarOp::Scale`].
    pub scale: bool,
    /// The instructions that loops over wide vectors are written with, where the back end has narrow ones.
    pub loops: Option<VectorLevel>,
    /// Whether products of bf16 take so little time that Winograd convolutions of f32 take more (AMX).
    pub tiles: bool,
}

/// Instructions for vectors of x86-64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VectorLevel {
    /// AVX2, FMA, F16C and BMI2: 256 bits.
    Avx2,
    /// AVX-512 F, DQ and VL besides: 512 bits.
    Avx512,
}

/// Widths of the vectors that code is compiled to. Results have the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Vectors {
    /// 128 bits: few lanes where much is computed; library functions are calls on strips of memory, which the library
    /// does at full width.
    #[default]
    Narrow,
    /// As wide as the processor's: many lanes, library functions in the loops they belong to.
    Wide,
}

/// A GPU of NVIDIA's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// The compute capability.
    pub capability: Capability,
    /// The vendor libraries that may be called.
    pub libraries: VendorLibraries,
}

impl Gpu {
    /// One of a generation, without vendor libraries.
    pub const fn new(capability: Capability) -> Gpu {
        Gpu { capability, libraries: VendorLibraries { products: false, convolutions: false } }
    }

    /// Multiprocessors of the generation's server GPU: an A100, an H100 or H200 (SXM).
    pub const fn multiprocessors(&self) -> u64 {
        match self.capability {
            Capability::Sm80 => 108,
            Capability::Sm90a => 132,
        }
    }

    /// Whether groups of four warps multiply matrices that a copy engine fetches.
    pub(crate) fn has_warp_groups(&self) -> bool {
        self.capability == Capability::Sm90a
    }
}

impl Default for Processor {
    fn default() -> Processor {
        Processor::Cpu(Cpu::default())
    }
}

impl Target {
    /// A processor.
    pub fn cpu(cpu: Cpu) -> Target {
        Target { processor: Processor::Cpu(cpu), ..Target::default() }
    }

    /// A GPU.
    pub fn gpu(gpu: Gpu) -> Target {
        Target { processor: Processor::Gpu(gpu), ..Target::default() }
    }

    /// What kernels are assumed to cost.
    pub fn machine(&self) -> CostModel {
        self.costs.unwrap_or(match self.processor {
            Processor::Cpu(_) => CostModel::AVX512_CORE,
            Processor::Gpu(gpu) => match gpu.capability {
                Capability::Sm80 => CostModel::A100,
                Capability::Sm90a => CostModel::H100,
            },
        })
    }

    /// Whether kernels run on a GPU.
    pub const fn is_gpu(&self) -> bool {
        matches!(self.processor, Processor::Gpu(_))
    }

    /// How finely operators divide the work of kernels of their own.
    pub const fn grain(&self) -> Grain {
        match self.processor {
            Processor::Cpu(_) => Grain::Coarse,
            Processor::Gpu(_) => Grain::Fine,
        }
    }
}

/// Vendor libraries that compute contractions on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VendorLibraries {
    /// Matrix products, by cuBLASLt.
    pub products: bool,
    /// Convolutions, by cuDNN.
    pub convolutions: bool,
}

impl VendorLibraries {
    /// The names of the choices on the command line.
    pub const NAMES: [&str; 4] = ["none", "cublaslt", "cudnn", "all"];

    /// The libraries of one of [`VendorLibraries::NAMES`].
    pub fn from_name(name: &str) -> Option<VendorLibraries> {
        let (products, convolutions) = match name {
            "none" => (false, false),
            "cublaslt" => (true, false),
            "cudnn" => (false, true),
            "all" => (true, true),
            _ => return None,
        };
        Some(VendorLibraries { products, convolutions })
    }
}

/// A generation of NVIDIA's GPUs. Its text form is one of [`Capability::NAMES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Capability {
    /// 8.0 (A100) and everything later.
    Sm80,
    /// 9.0 (H100, H200), with the instructions that no later generation has.
    Sm90a,
}

impl Capability {
    /// The names of the targets on the command line.
    pub const NAMES: [&str; 2] = ["cuda:sm_80", "cuda:sm_90a"];
    /// All capabilities.
    pub const ALL: [Capability; 2] = [Capability::Sm80, Capability::Sm90a];

    /// The name by which compilers know it.
    pub const fn processor(self) -> &'static str {
        match self {
            Capability::Sm80 => "sm_80",
            Capability::Sm90a => "sm_90a",
        }
    }

    /// The compute capability: ten times its major and once its minor number.
    pub const fn number(self) -> u32 {
        match self {
            Capability::Sm80 => 80,
            Capability::Sm90a => 90,
        }
    }

    /// Whether later GPUs execute its PTX, too.
    pub const fn later(self) -> bool {
        match self {
            Capability::Sm80 => true,
            Capability::Sm90a => false,
        }
    }

    /// The version of PTX that its code is written in: as old as can be, for the sake of old drivers.
    pub const fn ptx_feature(self) -> &'static str {
        match self {
            Capability::Sm80 => "+ptx70",
            Capability::Sm90a => "+ptx80",
        }
    }
}

impl FromStr for Capability {
    type Err = Diagnostic;

    /// Reads a text form: `cuda:sm_80` or `cuda:sm_90a`.
    fn from_str(text: &str) -> Result<Capability, Diagnostic> {
        let found = Capability::NAMES.iter().zip(Capability::ALL).find(|(name, _)| **name == text);
        found.map(|(_, c)| c).ok_or_else(|| {
            let why = format!("unknown GPU `{text}`; known: {}", Capability::NAMES.join(", "));
            Diagnostic::new(DiagnosticCode::Unsupported, why)
        })
    }
}
