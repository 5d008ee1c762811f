//! The run-time half of tensorc: threads, memory, and the executor of compiled plans.
//!
//! [`plan::Executable`] is a compiled [`tensorc_abi::Plan`] joined with machine code and weights;
//! it is shared between threads. [`plan::Context`] is the mutable state of one run at a time, and
//! [`Pool`] the threads that runs are spread over. Nothing here depends on the compiler.

#![warn(missing_docs)]

pub mod array;
pub mod artifact;
mod bounds;
pub mod device;
pub mod dlpack;
mod driver;
pub mod engine;
pub mod gpu;
pub mod host_tensor;
mod interrupter;
pub mod plan;
mod pool;
pub mod profiler;
pub mod resource;
pub mod roofline;
pub mod storage;
mod tensor;
pub mod threads;
mod weights;

pub use device::{Device, DeviceKind};
pub use engine::Engine;
/// The crate of the element types f16 and bf16.
pub use half;
pub use host_tensor::HostTensor;
pub use interrupter::Interrupter;
pub use plan::{Bindings, Context, Executable, RunError};
pub use pool::{Pool, PoolError, TaskPanic};
pub use profiler::Profiler;
pub use resource::{RandomStreams, TempSpace};
pub use storage::{MemoryBlock, Storage, StorageConfig};
pub use tensor::{Element, TensorMut, TensorRef};
pub use tensorc_abi::DType;
pub use tensorc_abi::memory::{AlignedBuffer, AllocError};
pub use threads::available_threads;
pub use weights::{WeightCache, WeightError, WeightStorage, pack_weight};
