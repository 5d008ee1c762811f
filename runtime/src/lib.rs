//! The run-time half of tensorc: threads, memory, and the executor of compiled plans.
//!
//! [`plan::Executable`] is a compiled [`tensorc_abi::Plan`] joined with machine code and weights;
//! it is shared between threads. [`plan::Context`] is the mutable state of one run at a time, and
//! [`Pool`] the threads that runs are spread over. Nothing here depends on the compiler.
//!
//! ```
//! use std::sync::atomic::{AtomicU64, Ordering};
//! use tensorc_runtime::Pool;
//!
//! let (pool, sum) = (Pool::new(2)?, AtomicU64::new(0));
//! pool.run(100, 10, &|_, tasks| {
//!     sum.fetch_add(tasks.sum::<u64>(), Ordering::Relaxed);
//! })?;
//! assert_eq!(sum.into_inner(), 4950);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]

pub mod array;
pub mod artifact;
mod bounds;
mod control_groups;
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

pub use control_groups::memory_limit;
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
pub use threads::{ThreadLimits, available_threads, thread_limits};
pub use weights::{WeightCache, WeightError, WeightStorage, pack_weight};
