//! What an artifact says of itself: its signature, its parts and its kernels.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use object::{Object, ObjectSection};
use serde::{Deserialize, Serialize};
use tensorc_abi::artifact::MANIFEST_SECTION;
use tensorc_abi::image::{ImageVersion, VERSION};

use super::ArtifactError;

/// Most bytes of JSON that are read.
const MAX_MANIFEST_BYTES: u64 = 1 << 30;

/// The description of a compiled model, as JSON beside the artifact and in a section of it ([`MANIFEST_SECTION`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the format of the artifact: major and minor.
    pub format: (u32, u32),
    /// Version of the compiler.
    pub compiler: String,
    /// The name of the model, with which its symbols begin.
    pub name: String,
    /// The processor, by the name of the target: `x86_64-v3`, `native`.
    pub target: String,
    /// The inputs, in order.
    pub inputs: Vec<TensorInfo>,
    /// The outputs, in order.
    pub outputs: Vec<TensorInfo>,
    /// Dynamic dimensions with their least and greatest extents.
    pub dims: Vec<(String, u64, u64)>,
    /// From one extent of each dimension to the next, unless all steps are 1. Since format 1.7.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<u64>,
    /// Numbers that decide shapes and become known in a run, with the least and the most that each may be. Since format 1.8.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub found: Vec<(String, u64, u64)>,
    /// Bytes of what goes from part to part of a model that runs in parts. Since format 1.8.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub kept_bytes: u64,
    /// The block of weights.
    pub weights: WeightsInfo,
    /// The code of a model whose kernels run on a GPU; `target` is the processor of the program then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuInfo>,
    /// Bytes of the tables that describe the plans.
    pub image_bytes: u64,
    /// The plans.
    pub variants: Vec<VariantInfo>,
    /// The generated kernels, in the order of their numbers.
    pub kernels: Vec<KernelInfo>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// An input or output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorInfo {
    /// Its name in the model.
    pub name: String,
    /// Element type, as [`tensorc_abi::DType::name`] gives it.
    pub dtype: String,
    /// Extents, or names of dynamic dimensions; `?` for an extent that follows from these.
    pub dims: Vec<String>,
}

/// The block of a model's weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WeightsInfo {
    /// Whether the block is inside the artifact, rather than in a file of its own.
    pub embedded: bool,
    /// Bytes of the block.
    pub bytes: u64,
    /// XXH3 with 128 bits of the block, as hexadecimal digits.
    pub hash: String,
}

/// A plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VariantInfo {
    /// The part of the model that it is a plan of. Since format 1.8.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub part: u64,
    /// Extents of [`Manifest::dims`], and behind the first part numbers of [`Manifest::found`]; of a plan for many shapes, the
    /// largest.
    pub extents: Vec<u64>,
    /// Whether it is a plan for many shapes: what it takes of memory is the most for any of them. Since format 1.7.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub many: bool,
    /// Number of steps.
    pub steps: u64,
    /// Bytes of intermediate tensors.
    pub arena_bytes: u64,
    /// Working memory of steps in the arena. Left out is what ends before that of another step for every number of workers.
    /// Since format 1.4.
    #[serde(default)]
    pub scratch: Vec<ScratchInfo>,
    /// Before format 1.4: bytes of working memory for each worker, behind the intermediate tensors.
    #[serde(default, skip_serializing)]
    pub scratch_bytes: u64,
}

/// Working memory of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScratchInfo {
    /// Where it begins in the arena, in bytes.
    pub offset: u64,
    /// Bytes for each worker.
    pub bytes: u64,
}

impl VariantInfo {
    /// Where working memory begins, and its bytes for each worker.
    fn scratch(&self) -> impl Iterator<Item = ScratchInfo> {
        let behind = ScratchInfo { offset: self.arena_bytes, bytes: self.scratch_bytes };
        self.scratch.iter().copied().chain([behind])
    }

    /// Bytes of intermediate tensors and working memory in a run by so many workers.
    pub fn run_bytes(&self, workers: u64) -> u64 {
        let end = |s: ScratchInfo| s.offset.saturating_add(s.bytes.saturating_mul(workers));
        self.scratch().map(end).fold(self.arena_bytes, u64::max)
    }
}

/// A generated kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelInfo {
    /// Its name in the plans.
    pub name: String,
    /// Bytes of machine code; of a kernel for a GPU, those of its PTX.
    pub code_bytes: u64,
    /// How it is launched, if it is a kernel for a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<LaunchInfo>,
    /// Its text in the kernel language.
    pub kir: String,
}

/// Code for a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuInfo {
    /// The architecture, as compilers name it: `sm_80`.
    pub architecture: String,
    /// Bytes of the PTX.
    pub ptx_bytes: u64,
    /// Bytes of machine code for the architecture; 0 if there is none.
    pub cubin_bytes: u64,
}

/// How a kernel is launched on a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LaunchInfo {
    /// Blocks of the grid.
    pub blocks: u64,
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Registers of a thread, where there is machine code.
    pub registers: Option<u32>,
    /// Bytes of registers that a thread keeps in memory.
    pub spilled_bytes: Option<u32>,
}

impl Manifest {
    /// JSON, ended by a line break.
    pub fn to_json(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec_pretty(self).unwrap_or_default();
        text.push(b'\n');
        text
    }

    /// What the section of an object holds: the JSON in the zlib format.
    pub fn to_section(&self) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        // Writing to memory does not fail.
        let written = encoder.write_all(&serde_json::to_vec(self).unwrap_or_default());
        written.and_then(|()| encoder.finish()).unwrap_or_default()
    }

    /// Reads the manifest of an ELF file.
    ///
    /// # Errors
    /// It is none, or none of tensorc's, or of a format that this reader does not know.
    pub fn of_elf(file: &[u8]) -> Result<Manifest, ArtifactError> {
        let elf = object::File::parse(file).map_err(|_| ArtifactError::NoArtifact)?;
        let section = elf.section_by_name(MANIFEST_SECTION).ok_or(ArtifactError::NoArtifact)?;
        let mut json = vec![];
        let data = section.data().map_err(|_| ArtifactError::Damaged)?;
        ZlibDecoder::new(data).take(MAX_MANIFEST_BYTES).read_to_end(&mut json).map_err(|_| ArtifactError::Damaged)?;
        Manifest::from_json(&json)
    }

    /// Reads JSON.
    ///
    /// # Errors
    /// It is no manifest, or of a format that this reader does not know.
    pub fn from_json(json: &[u8]) -> Result<Manifest, ArtifactError> {
        #[derive(Deserialize)]
        struct FormatVersion {
            format: (u32, u32),
        }
        // The version first: a newer manifest may have other fields.
        let FormatVersion { format: (major, minor) } =
            serde_json::from_slice(json).map_err(|_| ArtifactError::NoArtifact)?;
        if !VERSION.reads(ImageVersion { major, minor }) {
            return Err(ArtifactError::Version { major, minor });
        }
        serde_json::from_slice(json).map_err(|_| ArtifactError::Damaged)
    }

    /// Dynamic dimensions with their least and greatest extents, and the step from one extent to the next.
    pub fn ranges(&self) -> impl Iterator<Item = (&str, u64, u64, u64)> {
        let step = |i: usize| self.steps.get(i).copied().unwrap_or(1);
        self.dims.iter().enumerate().map(move |(i, (name, min, max))| (&**name, *min, *max, step(i)))
    }

    /// Bytes of intermediate tensors: the greatest of all variants.
    pub fn arena_bytes(&self) -> u64 {
        self.variants.iter().map(|v| v.arena_bytes).max().unwrap_or(0)
    }

    /// Bytes of intermediate tensors and working memory in a run by so many workers: the greatest of all variants, beside what goes
    /// from part to part.
    pub fn run_bytes(&self, workers: u64) -> u64 {
        let variants = self.variants.iter().map(|v| v.run_bytes(workers)).max();
        variants.unwrap_or(0).saturating_add(self.kept_bytes)
    }

    /// The most bytes that another worker adds.
    pub fn scratch_bytes(&self) -> u64 {
        self.variants.iter().flat_map(|v| v.scratch().map(|s| s.bytes)).max().unwrap_or(0)
    }
}
