//! Convolutions by cuDNN, through the interface of `cudnnConvolutionForward`.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::cudnn::result::CudnnError;
use cudarc::cudnn::sys;
use cudarc::driver::sys::CUstream;
use tensorc_abi::{Conv2d, DType, VendorCall};

use super::super::Shared;
use super::{ONE, Owned, ZERO, scalar};

/// The functions that are called.
const FUNCTIONS: [&str; 16] = [
    "cudnnCreate",
    "cudnnDestroy",
    "cudnnSetStream",
    "cudnnCreateTensorDescriptor",
    "cudnnSetTensor4dDescriptor",
    "cudnnDestroyTensorDescriptor",
    "cudnnCreateFilterDescriptor",
    "cudnnSetFilter4dDescriptor",
    "cudnnDestroyFilterDescriptor",
    "cudnnCreateConvolutionDescriptor",
    "cudnnSetConvolution2dDescriptor",
    "cudnnSetConvolutionGroupCount",
    "cudnnSetConvolutionMathType",
    "cudnnDestroyConvolutionDescriptor",
    "cudnnGetConvolutionForwardAlgorithm_v7",
    "cudnnConvolutionForward",
];
/// Algorithms that are asked for.
const ALGORITHMS: usize = sys::cudnnConvolutionFwdAlgo_t::CUDNN_CONVOLUTION_FWD_ALGO_COUNT as usize;

type CudnnStatus = sys::cudnnStatus_t;

/// The library with a handle, which one thread at a time uses.
#[derive(derive_more::Debug)]
#[debug("cuDNN")]
pub(in crate::gpu::cuda) struct Library(Mutex<Owned<sys::cudnnContext, CudnnStatus>>);

// SAFETY: the handle is used under a lock.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    fn open() -> Result<Library, String> {
        // SAFETY: the call looks for a library and loads it.
        if !unsafe { sys::is_culib_present() } {
            return Err("cuDNN is not installed here (libcudnn.so was not found)".into());
        }
        // The bindings panic without one.
        // SAFETY: the library is there; symbols are not used, so their type does not matter.
        let has = |name: &&str| unsafe { sys::culib().get::<*const c_void>(name.as_bytes()) }.is_ok();
        if let Some(name) = FUNCTIONS.iter().find(|name| !has(name)) {
            return Err(format!("the cuDNN that is installed here has no {name}"));
        }
        // SAFETY: the context is entered, and the place for the handle is valid.
        let made = Owned::new(|at| unsafe { sys::cudnnCreate(at) }.result(), sys::cudnnDestroy);
        made.map(|handle| Library(Mutex::new(handle))).map_err(|e| format!("cuDNN cannot be used: {}", text(e)))
    }
}

fn text(e: CudnnError) -> String {
    format!("{:?}", e.0)
}

/// The descriptors of a convolution.
struct Descriptors {
    x: Owned<sys::cudnnTensorStruct, CudnnStatus>,
    w: Owned<sys::cudnnFilterStruct, CudnnStatus>,
    y: Owned<sys::cudnnTensorStruct, CudnnStatus>,
    conv: Owned<sys::cudnnConvolutionStruct, CudnnStatus>,
}

/// A convolution with an algorithm for it.
pub(in crate::gpu::cuda) struct Convolution {
    descriptors: Descriptors,
    algorithm: sys::cudnnConvolutionFwdAlgo_t,
    workspace: usize,
    /// The last to go.
    pub shared: Arc<Shared>,
}

// SAFETY: descriptors are only read.
unsafe impl Send for Convolution {}
// SAFETY: as above.
unsafe impl Sync for Convolution {}

impl Convolution {
    pub fn new(shared: &Arc<Shared>, call: &VendorCall, conv: &Conv2d) -> Result<Convolution, String> {
        let library = shared.libraries.cudnn.get_or_init(Library::open).as_ref().map_err(String::clone)?;
        let refused = |e| format!("cuDNN refuses the convolution: {}", text(e));
        let descriptors = Descriptors::new(call, conv).map_err(refused)?;
        let found = descriptors.algorithm(library, call).map_err(refused)?;
        let algorithm = found.ok_or_else(|| {
            format!("cuDNN has no algorithm for the convolution with {} bytes of working memory", call.workspace)
        })?;
        Ok(Convolution { shared: shared.clone(), descriptors, algorithm, workspace: call.workspace as usize })
    }

    /// See [`super::Call::launch`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn launch(&self, stream: CUstream, arguments: &[*mut u8]) -> Result<(), String> {
        let library = self.shared.libraries.cudnn.get().and_then(|library| library.as_ref().ok());
        let (Some(library), [x, w, y, memory @ ..]) = (library, arguments) else {
            return Err("a call with too few arguments".into());
        };
        let memory = memory.first().copied().unwrap_or(std::ptr::null_mut());
        let handle = library.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of = &self.descriptors;
        // SAFETY: the handle and the descriptors are alive, the stream is the caller's, and the addresses are those of tensors that the
        // descriptors describe.
        unsafe {
            sys::cudnnSetStream(handle.handle, stream.cast()).result().map_err(text)?;
            let outcome = sys::cudnnConvolutionForward(
                handle.handle,
                scalar(&ONE),
                of.x.handle,
                x.cast_const().cast(),
                of.w.handle,
                w.cast_const().cast(),
                of.conv.handle,
                self.algorithm,
                memory.cast(),
                self.workspace,
                scalar(&ZERO),
                of.y.handle,
                y.cast(),
            );
            outcome.result().map_err(text)
        }
    }
}

fn type_of(dtype: DType) -> sys::cudnnDataType_t {
    match dtype {
        DType::F16 => sys::cudnnDataType_t::CUDNN_DATA_HALF,
        DType::BF16 => sys::cudnnDataType_t::CUDNN_DATA_BFLOAT16,
        _ => sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
    }
}

/// What multiplies: f32 is not rounded unless it may be.
fn math(call: &VendorCall) -> sys::cudnnMathType_t {
    match (call.dtype, call.tf32) {
        (DType::F32, false) => sys::cudnnMathType_t::CUDNN_FMA_MATH,
        (DType::F32, true) => sys::cudnnMathType_t::CUDNN_DEFAULT_MATH,
        _ => sys::cudnnMathType_t::CUDNN_TENSOR_OP_MATH,
    }
}

impl Descriptors {
    fn new(call: &VendorCall, conv: &Conv2d) -> Result<Descriptors, CudnnError> {
        let dtype = type_of(call.dtype);
        // The plan's verifier has checked that tensors have less than 2³¹ elements.
        let [n, groups] = [conv.batch, conv.groups].map(|extent| extent as c_int);
        let [input, output, kernel, strides, dilations, pads] =
            [conv.input, conv.output, conv.kernel, conv.strides, conv.dilations, conv.pads]
                .map(|pair| pair.map(|n| n as c_int));
        let (inputs, outputs) = (conv.in_channels as c_int, conv.out_channels as c_int * groups);
        // SAFETY: the places for handles are valid, and so are the handles that were made.
        unsafe {
            let tensor = |channels: c_int, [height, width]: [c_int; 2]| {
                let made =
                    Owned::new(|at| sys::cudnnCreateTensorDescriptor(at).result(), sys::cudnnDestroyTensorDescriptor)?;
                let format = sys::cudnnTensorFormat_t::CUDNN_TENSOR_NCHW;
                sys::cudnnSetTensor4dDescriptor(made.handle, format, dtype, n, channels, height, width).result()?;
                Ok::<_, CudnnError>(made)
            };
            let (x, y) = (tensor(inputs * groups, input)?, tensor(outputs, output)?);
            let w = Owned::new(|at| sys::cudnnCreateFilterDescriptor(at).result(), sys::cudnnDestroyFilterDescriptor)?;
            let format = sys::cudnnTensorFormat_t::CUDNN_TENSOR_NCHW;
            sys::cudnnSetFilter4dDescriptor(w.handle, dtype, format, outputs, inputs, kernel[0], kernel[1]).result()?;
            let create = |at| sys::cudnnCreateConvolutionDescriptor(at).result();
            let conv = Owned::new(create, sys::cudnnDestroyConvolutionDescriptor)?;
            let [[pad_h, pad_w], [down, across], [dilation_h, dilation_w]] = [pads, strides, dilations];
            // Filters are not turned around, and sums are f32.
            let mode = sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;
            let sums = sys::cudnnDataType_t::CUDNN_DATA_FLOAT;
            let c = conv.handle;
            sys::cudnnSetConvolution2dDescriptor(c, pad_h, pad_w, down, across, dilation_h, dilation_w, mode, sums)
                .result()?;
            sys::cudnnSetConvolutionGroupCount(c, groups).result()?;
            sys::cudnnSetConvolutionMathType(c, math(call)).result()?;
            Ok(Descriptors { x, w, y, conv })
        }
    }

    /// The fastest algorithm by the library's estimates that may be used; `None` without one.
    fn algorithm(
        &self,
        library: &Library,
        call: &VendorCall,
    ) -> Result<Option<sys::cudnnConvolutionFwdAlgo_t>, CudnnError> {
        let handle = library.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut results = [const { MaybeUninit::<sys::cudnnConvolutionFwdAlgoPerf_t>::zeroed() }; ALGORITHMS];
        let mut count = 0;
        // SAFETY: handle and descriptors are alive; there is room for as many results as are asked for.
        unsafe {
            sys::cudnnGetConvolutionForwardAlgorithm_v7(
                handle.handle,
                self.x.handle,
                self.w.handle,
                self.conv.handle,
                self.y.handle,
                ALGORITHMS as c_int,
                &raw mut count,
                results.as_mut_ptr().cast(),
            )
            .result()?;
        }
        let exact = math(call) == sys::cudnnMathType_t::CUDNN_FMA_MATH;
        let usable = |found: &sys::cudnnConvolutionFwdAlgoPerf_t| {
            let rounds = found.mathType != sys::cudnnMathType_t::CUDNN_FMA_MATH
                && found.mathType != sys::cudnnMathType_t::CUDNN_DEFAULT_MATH;
            found.status == CudnnStatus::CUDNN_STATUS_SUCCESS
                && found.memory as u64 <= call.workspace
                && !(exact && rounds)
        };
        // SAFETY: the library has written so many, and all zeros are a result, too.
        let found = results.iter().take(count.max(0) as usize).map(|result| unsafe { result.assume_init() });
        let Some(found) = found.into_iter().find(usable) else { return Ok(None) };
        if !exact {
            // SAFETY: the descriptor is alive.
            unsafe { sys::cudnnSetConvolutionMathType(self.conv.handle, found.mathType) }.result()?;
        }
        Ok(Some(found.algo))
    }
}
