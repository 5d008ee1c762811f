//! Models that are linked into the program: what their generated Rust bindings are made of.

use std::path::Path;

use tensorc_abi::DType;
use tensorc_abi::artifact::EntryPoints;

use super::{Artifact, ArtifactError, LoadOptions, TensorCounts};

/// An input or output of a model, as its bindings state it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// As in the model, whatever the bindings call it.
    pub name: &'static str,
    /// Element type.
    pub dtype: DType,
    /// Extents, outermost first.
    pub dims: &'static [PortExtent],
}

/// An extent of a [`Port`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortExtent {
    /// A fixed extent.
    Fixed(u64),
    /// That of the dynamic dimension of this name.
    Named(&'static str),
    /// It follows from the others; the model computes it.
    Open,
}

impl Artifact {
    /// A model that is linked into this program, which its Rust bindings call (`tensorc compile --emit=rust`). The
    /// weights are inside, or in the file at `weights`.
    ///
    /// # Errors
    /// The weights are not its own, or the file cannot be read.
    ///
    /// # Safety
    /// The functions are those of one model that `tensorc compile` made, with these inputs and outputs.
    pub unsafe fn linked(
        entry: EntryPoints,
        inputs: &[Port],
        outputs: &[Port],
        weights: Option<&Path>,
    ) -> Result<Artifact, ArtifactError> {
        let counts = TensorCounts { inputs: inputs.len(), outputs: outputs.len() };
        let options = LoadOptions { weights: weights.map(Path::to_owned), ..LoadOptions::default() };
        Artifact::new(entry, counts, None, &options, None)
    }
}

/// An [`Artifact`] of the functions with these names, for generated bindings alone: nothing checks that they are a
/// model's. Here rather than there, so that bindings hold no unsafe code.
#[doc(hidden)]
#[macro_export]
macro_rules! linked_artifact {
    ($inputs:expr, $outputs:expr, $weights:expr; $memory_bytes:ident $memory_for:ident $init:ident
     $describe:ident $run:ident $error:ident $free:ident $weights_open:ident $weights_view:ident $weights_close:ident) => {{
        use ::core::ffi::{c_char, c_void};
        use $crate::artifact::ffi::{EntryPoints, Parallel, Status, Tensor, Weights};
        unsafe extern "C" {
            fn $memory_bytes(workers: u32) -> u64;
            fn $memory_for(inputs: *const Tensor, workers: u32) -> u64;
            fn $init(
                out: *mut *mut c_void,
                memory: *mut c_void,
                bytes: u64,
                weights: *const Weights,
                parallel: *const Parallel,
            ) -> Status;
            fn $describe(context: *mut c_void, inputs: *const Tensor, outputs: *mut Tensor) -> Status;
            fn $run(context: *mut c_void, inputs: *const Tensor, outputs: *mut Tensor) -> Status;
            fn $error(context: *const c_void) -> *const c_char;
            fn $free(context: *mut c_void);
            fn $weights_open(path: *const c_char, flags: u32, out: *mut Weights) -> Status;
            fn $weights_view(file: *const c_void, bytes: u64, flags: u32, out: *mut Weights) -> Status;
            fn $weights_close(weights: *mut Weights);
        }
        let entry = EntryPoints {
            memory_bytes: $memory_bytes,
            memory_for: Some($memory_for),
            init: $init,
            init_on: None,
            describe: $describe,
            run: $run,
            error: $error,
            free: $free,
            weights_open: $weights_open,
            weights_view: $weights_view,
            weights_close: $weights_close,
        };
        // SAFETY: these are the functions of the model that the bindings were written for, with its signature.
        unsafe { $crate::artifact::Artifact::linked(entry, &$inputs, &$outputs, $weights) }
    }};
}
