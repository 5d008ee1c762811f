//! What an artifact says of itself: its signature, its parts and its kernels.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use object::{Object, ObjectSection};
use serde::{Deserialize, Serialize};
use tensorc_abi::artifact::MANIFEST_SECTION;
use tensorc_abi::image::{VERSION, Version};

use super::ArtifactError;

/// Most bytes of JSON that are read.
const LONGEST: u64 = 1 << 30;

/// The description of a compiled model, as JSON beside the artifact and in a section of it ([`MANIFEST_SECTION`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the format of the artifact: major and minor.
    pub format: (u32, u32),
    /// Version of the compiler.
    pub compiler: String,
    pub name: String,
    pub target: String,
    pub inputs: Vec<TensorInfo>,
    pub outputs: Vec<TensorInfo>,
    /// Dynamic dimensions with their least and greatest extents.
    pub dims: Vec<(String, u64, u64)>,
    pub weights: WeightsInfo,
    /// Of a model whose kernels run on a GPU; `target` is the processor of the program then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuInfo>,
    /// Bytes of the tables that describe the plans.
    pub image_bytes: u64,
    pub variants: Vec<VariantInfo>,
    pub kernels: Vec<KernelInfo>,
}

/// An input or output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorInfo {
    pub name: String,
    pub dtype: String,
    /// Extents, or names of dynamic dimensions; `?` for an extent that follows from these.
    pub dims: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WeightsInfo {
    pub embedded: bool,
    pub bytes: u64,
    /// XXH3 with 128 bits of the block, as hexadecimal digits.
    pub hash: String,
}

/// A plan for fixed shapes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VariantInfo {
    /// Extents of [`Manifest::dims`].
    pub extents: Vec<u64>,
    pub steps: u64,
    pub arena_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelInfo {
    pub name: String,
    /// Of a kernel for a GPU, those of its PTX.
    pub code_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<LaunchInfo>,
    /// Its text in the kernel language.
    pub kir: String,
}

/// Code for a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuInfo {
    /// As compilers name it: `sm_80`.
    pub architecture: String,
    pub ptx_bytes: u64,
    /// Of machine code for the architecture; 0 if there is none.
    pub cubin_bytes: u64,
}

/// How a kernel is launched on a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LaunchInfo {
    pub blocks: u64,
    /// Threads of a block.
    pub threads: u32,
    /// Shared memory of a block.
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
        ZlibDecoder::new(data).take(LONGEST).read_to_end(&mut json).map_err(|_| ArtifactError::Damaged)?;
        Manifest::from_json(&json)
    }

    /// Reads JSON.
    ///
    /// # Errors
    /// It is no manifest, or of a format that this reader does not know.
    pub fn from_json(json: &[u8]) -> Result<Manifest, ArtifactError> {
        #[derive(Deserialize)]
        struct Format {
            format: (u32, u32),
        }
        // The version first: a newer manifest may have other fields.
        let Format { format: (major, minor) } = serde_json::from_slice(json).map_err(|_| ArtifactError::NoArtifact)?;
        if !VERSION.reads(Version { major, minor }) {
            return Err(ArtifactError::Version { major, minor });
        }
        serde_json::from_slice(json).map_err(|_| ArtifactError::Damaged)
    }

    /// Bytes of intermediate tensors: the greatest of all variants.
    pub fn arena_bytes(&self) -> u64 {
        self.variants.iter().map(|v| v.arena_bytes).max().unwrap_or(0)
    }
}
