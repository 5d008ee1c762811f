//! Models compiled ahead of time, used from Rust: the C functions of a library that is loaded or linked.
//!
//! An [`Artifact`] checks its file before any code of it runs: libraries are sealed, and a broken seal, a manifest of
//! an unknown format or another machine's code are errors. A [`ModelContext`] has the memory of one run at a time.
//! Work is shared among the threads of a [`Pool`](crate::Pool), as for models compiled in this process.

mod context;
mod linked;
mod manifest;

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libloading::Library;
use tensorc_abi::artifact::{EntryPoints, Status, Weights, status};
use tensorc_abi::image::VERSION;
use tensorc_abi::seal;

pub use context::ModelContext;
pub use linked::{Port, PortExtent};
/// Types of the C interface.
pub use tensorc_abi::artifact as ffi;

pub use manifest::{GpuInfo, KernelInfo, LaunchInfo, Manifest, ScratchInfo, TensorInfo, VariantInfo, WeightsInfo};

/// Why a compiled model cannot be loaded or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArtifactError {
    /// A file cannot be read.
    #[error("{path}: {source}", path = path.display())]
    Read {
        /// The file of the library.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is no ELF file with a manifest of tensorc's, or the JSON is no manifest.
    #[error("not a compiled model")]
    NoArtifact,
    /// The seal is broken, or the manifest cannot be decoded.
    #[error("the compiled model is damaged, or was changed after linking: its seal is broken")]
    Damaged,
    /// The format is one that this version does not read.
    #[error(
        "the compiled model has format {major}.{minor}, this version of tensorc reads {known}.0 to {known}.{last}",
        known = VERSION.major, last = VERSION.minor
    )]
    Version {
        /// Major number of the format.
        major: u32,
        /// Minor number of the format.
        minor: u32,
    },
    /// The code is for another architecture.
    #[error("the compiled model is for {target}, not for this machine")]
    Target {
        /// [`Manifest::target`].
        target: String,
    },
    /// The system's loader refuses the library, for this reason.
    #[error("the library cannot be loaded: {0}")]
    Load(String),
    /// A path has a zero byte, with which paths end in C.
    #[error("the path {path:?} has a zero in it")]
    Path {
        /// The path.
        path: PathBuf,
    },
    /// The file of weights cannot be read, or is not the model's.
    #[error("weights {path}: {message}", path = path.display())]
    Weights {
        /// The file.
        path: PathBuf,
        /// What the model says.
        message: String,
    },
    /// A function of the model has failed.
    #[error("{message}")]
    Failed {
        /// One of [`status`].
        status: Status,
        /// What went wrong, in words.
        message: String,
    },
}

/// How an artifact is loaded: where its weights are, and where it runs.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// The file of weights; by default the library's path with the extension `weights`. Models with embedded weights
    /// need none.
    pub weights: Option<PathBuf>,
    /// Do not read the weights to check their hash: the file is known to be intact.
    pub trusted: bool,
    /// Where a model for a GPU runs.
    pub gpu: GpuOptions,
}

/// Where a model for a GPU runs.
#[derive(Clone, Debug, Default)]
pub struct GpuOptions {
    /// The number of the GPU.
    pub device: u32,
    /// The library of the driver, if it is not the system's.
    pub driver: Option<PathBuf>,
    /// Wait for every kernel, so that an error names the one that failed.
    pub stepwise: bool,
}

/// A compiled model with its weights. Cloning shares them.
#[derive(Clone)]
pub struct Artifact(Arc<Inner>);

/// Numbers of tensors.
#[derive(Clone, Copy)]
struct TensorCounts {
    inputs: usize,
    outputs: usize,
}

struct Inner {
    entry: EntryPoints,
    counts: TensorCounts,
    manifest: Option<Manifest>,
    weights: Weights,
    has_weights: bool,
    gpu: GpuOptions,
    /// The path of the driver, as C has it.
    driver: Option<CString>,
    /// Keeps the code in memory.
    _library: Option<Library>,
}

// SAFETY: weights are read only, and the functions of a model may be called from any thread.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: every context holds a reference to this, so none is left.
        unsafe { (self.entry.weights_close)(&raw mut self.weights) };
    }
}

impl Artifact {
    /// Loads a shared library that `tensorc compile` made, and its weights.
    ///
    /// # Errors
    /// The file is no sealed library of tensorc's for this machine and version, or the weights are not its own.
    pub fn load(path: impl AsRef<Path>, options: &LoadOptions) -> Result<Artifact, ArtifactError> {
        let path = path.as_ref();
        let file = std::fs::read(path).map_err(|source| ArtifactError::Read { path: path.to_owned(), source })?;
        let Some(content) = seal::open(&file) else {
            // Whoever made it did not make it for loading: a better reason than the seal.
            Manifest::of_elf(&file)?;
            return Err(ArtifactError::Damaged);
        };
        let manifest = Manifest::of_elf(content)?;
        let target = manifest.target.split('-').next().unwrap_or_default();
        if target != std::env::consts::ARCH && target != "native" {
            return Err(ArtifactError::Target { target: manifest.target });
        }
        // A name without a slash would be searched for in the system's folders.
        let absolute =
            std::path::absolute(path).map_err(|source| ArtifactError::Read { path: path.to_owned(), source })?;
        let load = |e: libloading::Error| ArtifactError::Load(e.to_string());
        // SAFETY: the seal says that this is a library made by tensorc, whose code runs nothing when it is loaded.
        let library = unsafe { Library::new(absolute) }.map_err(load)?;
        // SAFETY: the functions of a model have these types.
        let entry = unsafe { entry_points(&library, &manifest.name, manifest.gpu.is_some()) }.map_err(load)?;
        let in_file = manifest.weights.bytes > 0 && !manifest.weights.embedded;
        let weights = options.weights.clone().unwrap_or_else(|| path.with_extension("weights"));
        let options = LoadOptions { weights: in_file.then_some(weights), ..options.clone() };
        let counts = TensorCounts { inputs: manifest.inputs.len(), outputs: manifest.outputs.len() };
        Artifact::new(entry, counts, Some(manifest), &options, Some(library))
    }

    fn new(
        entry: EntryPoints,
        counts: TensorCounts,
        manifest: Option<Manifest>,
        options: &LoadOptions,
        library: Option<Library>,
    ) -> Result<Artifact, ArtifactError> {
        let text = |path: &Path| {
            let fail = |_| ArtifactError::Path { path: path.to_owned() };
            CString::new(path.as_os_str().as_encoded_bytes()).map_err(fail)
        };
        let mut weights = Weights::NONE;
        if let Some(path) = &options.weights {
            let file = text(path)?;
            let flags = if options.trusted { Weights::TRUSTED } else { 0 };
            // SAFETY: the path is a text, and the record is ours.
            let code = unsafe { (entry.weights_open)(file.as_ptr(), flags, &raw mut weights) };
            if code != status::OK {
                let message = status::text(code).to_string_lossy().into_owned();
                return Err(ArtifactError::Weights { path: path.clone(), message });
            }
        }
        let gpu = options.gpu.clone();
        let driver = gpu.driver.as_deref().map(text).transpose()?;
        let has_weights = options.weights.is_some();
        Ok(Artifact(Arc::new(Inner { entry, counts, manifest, weights, has_weights, gpu, driver, _library: library })))
    }

    /// What the model says of itself; none if it is linked.
    pub fn manifest(&self) -> Option<&Manifest> {
        self.0.manifest.as_ref()
    }
}

impl std::fmt::Debug for Artifact {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Artifact").field("name", &self.manifest().map(|m| &m.name)).finish_non_exhaustive()
    }
}

/// The functions of a model.
///
/// # Safety
/// The library defines them with the types of [`EntryPoints`].
unsafe fn entry_points(library: &Library, name: &str, gpu: bool) -> Result<EntryPoints, libloading::Error> {
    macro_rules! get {
        ($suffix:literal) => {
            // SAFETY: by the caller's contract.
            *unsafe { library.get(format!("{name}_{}", $suffix).as_bytes()) }?
        };
    }
    Ok(EntryPoints {
        memory_bytes: get!("memory_bytes"),
        // SAFETY: by the caller's contract.
        memory_for: unsafe { library.get(format!("{name}_memory_for").as_bytes()) }.ok().map(|function| *function),
        init: get!("init"),
        init_on: if gpu { Some(get!("init_on")) } else { None },
        describe: get!("describe"),
        run: get!("run"),
        error: get!("error"),
        free: get!("free"),
        weights_open: get!("weights_open"),
        weights_view: get!("weights_view"),
        weights_close: get!("weights_close"),
    })
}
