//! Runs of a compiled model.

use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};

use tensorc_abi::DType;
use tensorc_abi::artifact::{GpuHandle, InitOn, Parallel, Status, Task, Tensor, Weights, status};

use super::{Artifact, ArtifactError};
use crate::pool::Pool;
use crate::tensor::{TensorMut, TensorRef};

/// The memory of one run of an [`Artifact`] at a time. Threads that run it at the same time have one each.
pub struct ModelContext<'p> {
    artifact: Artifact,
    raw: *mut c_void,
    /// The model keeps its address.
    _parallel: Box<Parallel>,
    found: Vec<Vec<u64>>,
    pool: std::marker::PhantomData<&'p Pool>,
}

// SAFETY: a context may be used from any thread, by one at a time.
unsafe impl Send for ModelContext<'_> {}

impl Artifact {
    /// Makes the memory of a run, whose work the threads of a pool share; that of a model for a GPU is done there. The memory is as
    /// large as the largest shapes take; what smaller ones leave alone is not touched.
    ///
    /// # Errors
    /// Memory is short, or the model was linked without the weights it needs; the GPU or its driver is missing, or does
    /// not take the model's code.
    pub fn context<'p>(&self, pool: &'p Pool) -> Result<ModelContext<'p>, ArtifactError> {
        self.make(pool, null_mut(), 0)
    }

    /// As [`Artifact::context`], in memory of the caller's, at a multiple of 64 bytes. Runs allocate nothing. It may be less than
    /// the largest shapes take ([`Artifact::memory_for`]): a run for which it is too small is an error.
    ///
    /// # Errors
    /// As [`Artifact::context`]; the memory is not aligned, or too small for any run.
    pub fn context_in<'p>(&self, pool: &'p Pool, memory: &'p mut [u8]) -> Result<ModelContext<'p>, ArtifactError> {
        self.make(pool, memory.as_mut_ptr(), memory.len() as u64)
    }

    /// Bytes of memory that a context takes for any shapes, with a number of threads.
    pub fn memory_bytes(&self, threads: usize) -> u64 {
        // SAFETY: the function is the model's.
        unsafe { (self.0.entry.memory_bytes)(threads as u32) }
    }

    /// Bytes of memory that a context takes for inputs of these shapes, with a number of threads; `None` if the model was not
    /// compiled for them, or by a version that does not say.
    pub fn memory_for(&self, shapes: &[&[u64]], threads: usize) -> Option<u64> {
        let function = self.0.entry.memory_for.filter(|_| shapes.len() == self.0.counts.inputs)?;
        let dims: Vec<Vec<i64>> = shapes.iter().map(|dims| signed(dims)).collect();
        let inputs: Vec<Tensor> = dims.iter().map(|dims| tensor(DType::U8, dims, null_mut(), 0)).collect();
        // SAFETY: there are as many inputs as the model has.
        Some(unsafe { function(inputs.as_ptr(), threads as u32) }).filter(|bytes| *bytes > 0)
    }

    fn make<'p>(&self, pool: &'p Pool, memory: *mut u8, bytes: u64) -> Result<ModelContext<'p>, ArtifactError> {
        let parallel = Box::new(Parallel {
            parallel_for: Some(parallel_for),
            pool: std::ptr::from_ref(pool).cast_mut().cast(),
            workers: pool.threads() as u32,
        });
        let weights: *const Weights = if self.0.has_weights { &raw const self.0.weights } else { null() };
        let memory = memory.cast();
        let raw = match self.0.entry.init_on {
            Some(init_on) => self.on_gpu(init_on, memory, bytes, weights)?,
            None => {
                let mut raw = null_mut();
                // SAFETY: weights, pool and the caller's memory outlive the context.
                let code = unsafe { (self.0.entry.init)(&raw mut raw, memory, bytes, weights, &raw const *parallel) };
                if code != status::OK {
                    return Err(failed(code, status::text(code)));
                }
                raw
            }
        };
        let (artifact, found) = (self.clone(), vec![]);
        Ok(ModelContext { artifact, raw, _parallel: parallel, found, pool: std::marker::PhantomData })
    }
}

impl Artifact {
    /// Makes a context on a GPU.
    fn on_gpu(
        &self,
        init: InitOn,
        memory: *mut c_void,
        bytes: u64,
        weights: *const Weights,
    ) -> Result<*mut c_void, ArtifactError> {
        let inner = &self.0;
        let mut gpu = GpuHandle {
            device: inner.gpu.device,
            flags: if inner.gpu.stepwise { GpuHandle::STEPWISE } else { 0 },
            driver: inner.driver.as_ref().map_or(null(), |path| path.as_ptr()),
            ..GpuHandle::FIRST
        };
        let mut raw = null_mut();
        // SAFETY: the weights and the caller's memory outlive the context. That the library is a driver is the caller's word,
        // as it is the system's for its own.
        let code = unsafe { init(&raw mut raw, &raw mut gpu, memory, bytes, weights) };
        match (code, CStr::from_bytes_until_nul(&gpu.message)) {
            (status::OK, _) => Ok(raw),
            (code, Ok(message)) if !message.is_empty() => Err(failed(code, message)),
            (code, _) => Err(failed(code, status::text(code))),
        }
    }
}

fn failed(status: Status, message: &CStr) -> ArtifactError {
    ArtifactError::Failed { status, message: message.to_string_lossy().into_owned() }
}

impl Drop for ModelContext<'_> {
    fn drop(&mut self) {
        // SAFETY: it came from `init`, and is not used any more.
        unsafe { (self.artifact.0.entry.free)(self.raw) };
    }
}

impl ModelContext<'_> {
    /// Element types and shapes of the outputs for inputs of some types and shapes; of extents that depend on values, the greatest.
    ///
    /// # Errors
    /// The model was not compiled for these inputs.
    pub fn outputs(&mut self, inputs: &[(DType, &[u64])]) -> Result<Vec<(DType, Vec<u64>)>, ArtifactError> {
        let dims: Vec<Vec<i64>> = inputs.iter().map(|(_, dims)| signed(dims)).collect();
        let inputs: Vec<Tensor> =
            inputs.iter().zip(&dims).map(|((dtype, _), dims)| tensor(*dtype, dims, null_mut(), 0)).collect();
        let counts = self.artifact.0.counts;
        let mut outputs = vec![tensor(DType::F32, &[], null_mut(), 0); counts.outputs];
        check_count("inputs", inputs.len(), counts.inputs)?;
        // SAFETY: there are as many tensors as the model has.
        let code = unsafe { (self.artifact.0.entry.describe)(self.raw, inputs.as_ptr(), outputs.as_mut_ptr()) };
        self.check(code)?;
        let described = outputs.iter().map(|out| {
            let dtype = DType::ALL.into_iter().find(|d| *d as u32 == out.dtype).unwrap_or(DType::U8);
            // SAFETY: the model has entered the address of extents, which live until the next call.
            (dtype, unsafe { unsigned(out) })
        });
        Ok(described.collect())
    }

    /// Runs the model: reads the inputs, fills the outputs, each in the order of its signature. Results are
    /// bit-identical to those of the model compiled in this process, with any number of threads. An output whose extents depend on
    /// values starts at the beginning of its memory; [`ModelContext::found_shapes`] gives its extents.
    ///
    /// # Errors
    /// A tensor's number, type, shape or size is not the model's; a value is none that its operator or the model takes.
    pub fn run(&mut self, inputs: &[TensorRef<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), ArtifactError> {
        let counts = self.artifact.0.counts;
        check_count("inputs", inputs.len(), counts.inputs)?;
        check_count("outputs", outputs.len(), counts.outputs)?;
        let dims: Vec<Vec<i64>> =
            inputs.iter().map(|t| signed(t.dims)).chain(outputs.iter().map(|t| signed(t.dims))).collect();
        let (of_inputs, of_outputs) = dims.split_at(inputs.len());
        let reads: Vec<Tensor> = inputs
            .iter()
            .zip(of_inputs)
            .map(|(t, dims)| tensor(t.dtype, dims, t.data.as_ptr().cast_mut(), t.data.len()))
            .collect();
        let mut writes: Vec<Tensor> = outputs
            .iter_mut()
            .zip(of_outputs)
            .map(|(t, dims)| tensor(t.dtype, dims, t.data.as_mut_ptr(), t.data.len()))
            .collect();
        // SAFETY: there are as many tensors as the model has, of memory with the sizes given, which do not overlap.
        let code = unsafe { (self.artifact.0.entry.run)(self.raw, reads.as_ptr(), writes.as_mut_ptr()) };
        self.found.clear();
        self.check(code)?;
        if writes.iter().zip(of_outputs).any(|(out, given)| out.dims != given.as_ptr()) {
            // SAFETY: the model has entered the addresses of extents, which live until the next call.
            self.found.extend(writes.iter().map(|out| unsafe { unsigned(out) }));
        }
        Ok(())
    }

    /// The output shapes of the last run, if shapes of the model depend on values. Empty for other models, whose output shapes
    /// [`ModelContext::outputs`] gives.
    pub fn found_shapes(&self) -> &[Vec<u64>] {
        &self.found
    }

    fn check(&self, code: Status) -> Result<(), ArtifactError> {
        if code == status::OK {
            return Ok(());
        }
        // SAFETY: the context lives, and its message is a text until the next call.
        let message = unsafe { CStr::from_ptr((self.artifact.0.entry.error)(self.raw)) };
        Err(failed(code, if message.is_empty() { status::text(code) } else { message }))
    }
}

fn check_count(side: &str, given: usize, expected: usize) -> Result<(), ArtifactError> {
    match expected == given {
        true => Ok(()),
        false => {
            let message = format!("the model has {expected} {side}, {given} are given");
            Err(ArtifactError::Failed { status: status::ARGUMENT, message })
        }
    }
}

fn signed(dims: &[u64]) -> Vec<i64> {
    dims.iter().map(|dim| *dim as i64).collect()
}

/// The extents of a tensor.
///
/// # Safety
/// As many as its rank lie at their address, or it has none.
unsafe fn unsigned(tensor: &Tensor) -> Vec<u64> {
    if tensor.rank == 0 {
        return vec![];
    }
    // SAFETY: by the caller's contract.
    let dims = unsafe { std::slice::from_raw_parts(tensor.dims, tensor.rank as usize) };
    dims.iter().map(|dim| *dim as u64).collect()
}

fn tensor(dtype: DType, dims: &[i64], data: *mut u8, bytes: usize) -> Tensor {
    Tensor { data, dims: dims.as_ptr(), rank: dims.len() as u32, dtype: dtype as u32, bytes: bytes as u64 }
}

/// Shares pieces of work among the threads of a [`Pool`].
///
/// # Safety
/// `pool` is a [`Pool`].
unsafe extern "C" fn parallel_for(pool: *mut c_void, count: u64, task: Task, argument: *mut c_void) {
    struct Argument(*mut c_void);
    // SAFETY: what it points to is made to be shared by tasks.
    unsafe impl Sync for Argument {}
    impl Argument {
        fn get(&self) -> *mut c_void {
            self.0
        }
    }
    let argument = Argument(argument);
    // SAFETY: by the caller's contract.
    let pool = unsafe { &*pool.cast::<Pool>() };
    let each = |worker: usize, range: std::ops::Range<u64>| {
        for index in range {
            // SAFETY: every piece is executed once, and the pool's threads have numbers of their own.
            unsafe { task(argument.get(), index, worker as u32) };
        }
    };
    if pool.run(count, 1, &each).is_err() {
        // Tasks are C functions, which do not unwind: only a broken pool gets here.
        std::process::abort();
    }
}
