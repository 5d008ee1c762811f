//! Products by cuBLASLt.
//!
//! The library knows matrices by columns. What lies by rows is the transpose of such a matrix, so that it is asked for the
//! transpose of the result, with the operands in turn.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::cublaslt::result::CublasError;
use cudarc::cublaslt::{result, sys};
use cudarc::driver::sys::CUstream;
use tensorc_abi::vendor::{LibraryBatch, LibraryMatrix};
use tensorc_abi::{BatchedGemm, DType, VendorCall};

use super::super::Shared;
use super::{ONE, Owned, ZERO, scalar};

/// The functions that are called.
const FUNCTIONS: [&str; 13] = [
    "cublasLtCreate",
    "cublasLtDestroy",
    "cublasLtMatmul",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatmulDescDestroy",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutSetAttribute",
    "cublasLtMatrixLayoutDestroy",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatmulPreferenceDestroy",
];
/// At multiples of what arguments of steps begin.
const ALIGNMENT: u64 = 16;

/// Values of `cublasOperation_t`.
const AS_IT_IS: i32 = 0;
const TRANSPOSED: i32 = 1;

type CublasStatus = sys::cublasStatus_t;
type CublasLayout = Owned<sys::cublasLtMatrixLayoutOpaque_t, CublasStatus>;

/// The library with a handle, which any thread may use.
#[derive(derive_more::Debug)]
#[debug("cuBLASLt({:p})", self.0.handle)]
pub(in crate::gpu::cuda) struct Library(Owned<sys::cublasLtContext, CublasStatus>);

// SAFETY: the library's handles may be used by any thread that entered the context, also at the same time.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    fn open() -> Result<Library, String> {
        // SAFETY: the call looks for a library and loads it.
        if !unsafe { sys::is_culib_present() } {
            return Err("cuBLASLt is not installed here (libcublasLt.so was not found)".into());
        }
        // The bindings panic without one.
        // SAFETY: the library is there; symbols are not used, so their type does not matter.
        let has = |name: &&str| unsafe { sys::culib().get::<*const c_void>(name.as_bytes()) }.is_ok();
        if let Some(name) = FUNCTIONS.iter().find(|name| !has(name)) {
            return Err(format!("the cuBLASLt that is installed here has no {name}"));
        }
        // SAFETY: the context is entered, and the place for the handle is valid.
        let made = Owned::new(|at| unsafe { sys::cublasLtCreate(at) }.result(), sys::cublasLtDestroy);
        made.map(Library).map_err(|e| format!("cuBLASLt cannot be used: {}", text(e)))
    }
}

fn text(e: CublasError) -> String {
    format!("{:?}", e.0)
}

/// A product with an algorithm for it.
pub(in crate::gpu::cuda) struct Product {
    call: BatchedGemm,
    batch: LibraryBatch,
    element: i64,
    bias: bool,
    /// The bias is an attribute of the operation.
    operation: Mutex<Owned<sys::cublasLtMatmulDescOpaque_t, CublasStatus>>,
    /// Of the library's left operand, which is our right one, its right operand, and the result.
    layouts: [CublasLayout; 3],
    algorithm: sys::cublasLtMatmulAlgo_t,
    workspace: usize,
    /// The last to go.
    pub shared: Arc<Shared>,
}

// SAFETY: descriptors are only read but for the operation, which is used under a lock.
unsafe impl Send for Product {}
// SAFETY: as above.
unsafe impl Sync for Product {}

impl Product {
    pub fn new(shared: &Arc<Shared>, call: &VendorCall, product: &BatchedGemm, bias: bool) -> Result<Product, String> {
        let library = shared.libraries.cublaslt.get_or_init(Library::open).as_ref().map_err(String::clone)?;
        let batch = LibraryBatch::of(product).ok_or("cuBLASLt does not take operands that lie so")?;
        Product::prepare(shared, library, call, (product, batch, bias)).map_err(|e| match e.0 {
            CublasStatus::CUBLAS_STATUS_NOT_SUPPORTED => {
                format!("cuBLASLt has no algorithm for the product ({})", text(e))
            }
            _ => format!("cuBLASLt refuses the product: {}", text(e)),
        })
    }

    fn prepare(
        shared: &Arc<Shared>,
        library: &Library,
        call: &VendorCall,
        (product, batch, bias): (&BatchedGemm, LibraryBatch, bool),
    ) -> Result<Product, CublasError> {
        let BatchedGemm { m, n, k, .. } = *product;
        let dtype = type_of(call.dtype);
        let [a, b, c] = batch.matrices;
        let (element, shapes) = (call.dtype.size() as i64, [(b, k, n, 1), (a, m, k, 0), (c, m, n, 2)]);
        let mut layouts = vec![];
        for (matrix, rows, columns, at) in shapes {
            layouts.push(layout(matrix, dtype, (rows, columns), (batch.count, batch.strides[at]))?);
        }
        let [Some(left), Some(right), Some(result)] = [0, 1, 2].map(|_| layouts.pop()) else {
            return Err(CublasError(CublasStatus::CUBLAS_STATUS_INTERNAL_ERROR));
        };
        let layouts = [result, right, left];
        let operation = operation(call, [b, a], bias)?;
        let preference = preference(product, &batch, element, call.workspace)?;
        // SAFETY: all descriptors are alive.
        let found = unsafe {
            result::get_matmul_algo_heuristic(
                library.0.handle,
                operation.handle,
                layouts[0].handle,
                layouts[1].handle,
                layouts[2].handle,
                layouts[2].handle,
                preference.handle,
            )
        }?;
        Ok(Product {
            shared: shared.clone(),
            call: *product,
            batch,
            element,
            bias,
            operation: Mutex::new(operation),
            layouts,
            algorithm: found.algo,
            workspace: call.workspace as usize,
        })
    }

    /// See [`super::Call::launch`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn launch(&self, stream: CUstream, arguments: &[*mut u8]) -> Result<(), String> {
        let result = if self.bias { 3 } else { 2 };
        let library = self.shared.libraries.cublaslt.get().and_then(|library| library.as_ref().ok());
        let (Some(library), true) = (library, arguments.len() >= result + 1 + usize::from(self.workspace > 0)) else {
            return Err("a call with too few arguments".into());
        };
        let memory = if self.workspace > 0 { arguments[result + 1] } else { std::ptr::null_mut() };
        let operation = self.operation.lock().unwrap_or_else(PoisonError::into_inner);
        if self.bias {
            let address = arguments[2].cast_const();
            set(&operation, sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &address)
                .map_err(text)?;
        }
        for offsets in self.batch.offsets(&self.call) {
            let at = |argument: usize, i: usize| {
                arguments[argument].wrapping_offset((offsets[i] * self.element) as isize).cast::<c_void>()
            };
            let [left, right, into] = &self.layouts;
            // SAFETY: the descriptors are alive, and the addresses are those of operands that lie as they say, by the caller's
            // promise and the plan's verifier.
            let outcome = unsafe {
                result::matmul(
                    library.0.handle,
                    operation.handle,
                    scalar(&ONE),
                    scalar(&ZERO),
                    at(1, 1),
                    left.handle,
                    at(0, 0),
                    right.handle,
                    at(result, 2),
                    into.handle,
                    at(result, 2),
                    into.handle,
                    &raw const self.algorithm,
                    memory.cast(),
                    self.workspace,
                    stream.cast(),
                )
            };
            outcome.map_err(text)?;
        }
        Ok(())
    }
}

fn type_of(dtype: DType) -> sys::cudaDataType {
    match dtype {
        DType::F16 => sys::cudaDataType::CUDA_R_16F,
        DType::BF16 => sys::cudaDataType::CUDA_R_16BF,
        _ => sys::cudaDataType::CUDA_R_32F,
    }
}

/// A matrix of `rows` × `columns` as the library sees it: what lies by rows is transposed.
fn layout(
    matrix: LibraryMatrix,
    dtype: sys::cudaDataType,
    (rows, columns): (u64, u64),
    (count, stride): (u64, i64),
) -> Result<CublasLayout, CublasError> {
    let (down, across) = if matrix.by_rows { (columns, rows) } else { (rows, columns) };
    // SAFETY: the place for the handle is valid.
    let create =
        |at| unsafe { sys::cublasLtMatrixLayoutCreate(at, dtype, down, across, matrix.leading as i64) }.result();
    let layout = Owned::new(create, sys::cublasLtMatrixLayoutDestroy)?;
    use sys::cublasLtMatrixLayoutAttribute_t::{
        CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT as COUNT, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET as STRIDE,
    };
    let count = count as i32;
    // SAFETY: the layout is alive, and the attributes are numbers of these types.
    unsafe {
        result::set_matrix_layout_attribute(layout.handle, COUNT, (&raw const count).cast(), size_of_val(&count))?;
        result::set_matrix_layout_attribute(layout.handle, STRIDE, (&raw const stride).cast(), size_of_val(&stride))?;
    }
    Ok(layout)
}

fn set<T>(
    operation: &Owned<sys::cublasLtMatmulDescOpaque_t, CublasStatus>,
    attribute: sys::cublasLtMatmulDescAttributes_t,
    value: &T,
) -> Result<(), CublasError> {
    let value = std::ptr::from_ref(value).cast();
    // SAFETY: the descriptor is alive; the attributes set here are of the types that are given.
    unsafe { result::set_matmul_desc_attribute(operation.handle, attribute, value, size_of::<T>()) }
}

/// What is computed of the library's operands.
fn operation(
    call: &VendorCall,
    operands: [LibraryMatrix; 2],
    bias: bool,
) -> Result<Owned<sys::cublasLtMatmulDescOpaque_t, CublasStatus>, CublasError> {
    use sys::cublasLtMatmulDescAttributes_t::{
        CUBLASLT_MATMUL_DESC_EPILOGUE as EPILOGUE, CUBLASLT_MATMUL_DESC_TRANSA as TRANSA,
        CUBLASLT_MATMUL_DESC_TRANSB as TRANSB,
    };
    let sums = match call.tf32 {
        true => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
        false => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
    };
    // SAFETY: the place for the handle is valid.
    let create = |at| unsafe { sys::cublasLtMatmulDescCreate(at, sums, sys::cudaDataType::CUDA_R_32F) }.result();
    let operation = Owned::new(create, sys::cublasLtMatmulDescDestroy)?;
    for (matrix, attribute) in operands.into_iter().zip([TRANSA, TRANSB]) {
        let transposed = if matrix.by_rows { AS_IT_IS } else { TRANSPOSED };
        set(&operation, attribute, &transposed)?;
    }
    if bias {
        set(&operation, EPILOGUE, &sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS)?;
    }
    Ok(operation)
}

/// Which algorithms will do: with the plan's working memory, and for addresses at multiples of what the operands' are.
fn preference(
    product: &BatchedGemm,
    batch: &LibraryBatch,
    element: i64,
    workspace: u64,
) -> Result<Owned<sys::cublasLtMatmulPreferenceOpaque_t, CublasStatus>, CublasError> {
    use sys::cublasLtMatmulPreferenceAttributes_t::{
        CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES as WORKSPACE,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES as ALIGNMENT_A,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES as ALIGNMENT_B,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES as ALIGNMENT_C,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES as ALIGNMENT_D,
    };
    // SAFETY: the place for the handle is valid.
    let create = |at| unsafe { sys::cublasLtMatmulPreferenceCreate(at) }.result();
    let preference = Owned::new(create, sys::cublasLtMatmulPreferenceDestroy)?;
    // The largest power of two that divides where a call's operand begins.
    let alignment = |i: usize| {
        let places = batch.offsets(product).map(|at| (at[i] * element).unsigned_abs() | ALIGNMENT);
        places.map(|place| 1 << place.trailing_zeros()).min().unwrap_or(1) as u32
    };
    let [a, b, c] = [alignment(0), alignment(1), alignment(2)];
    // SAFETY: the descriptor is alive, and the attributes are numbers of these types.
    unsafe {
        let set = |attribute, value: *const c_void, bytes| {
            result::set_matmul_pref_attribute(preference.handle, attribute, value, bytes)
        };
        set(WORKSPACE, (&raw const workspace).cast(), size_of_val(&workspace))?;
        for (attribute, bytes) in [(ALIGNMENT_A, b), (ALIGNMENT_B, a), (ALIGNMENT_C, c), (ALIGNMENT_D, c)] {
            set(attribute, (&raw const bytes).cast(), size_of_val(&bytes))?;
        }
    }
    Ok(preference)
}
