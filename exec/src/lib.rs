//! What the steps of a plan do, on processors and on devices.
//!
//! A plan is executed from records, those of [`tensorc_abi::image`]: `records` makes them of a plan, [`Step::resolve`] finds
//! the code that one calls, `sizes` executes the size program of a plan for many shapes, `run` executes steps on the workers of a host and enqueues them on a device. Hosts bring memory,
//! threads and streams: `rt/` for models compiled ahead of time, the crate `runtime` for plans in memory. They implement
//! [`Code`], [`Workers`] and [`Queue`].
//!
//! ```
//! use tensorc_exec::SERIAL_NS;
//! use tensorc_exec::sizes::grain;
//!
//! // Work that takes less than waking a thread stays on one.
//! assert_eq!(grain(8, SERIAL_NS / 2), 8);
//! assert_eq!(grain(8, 100 * SERIAL_NS), 1);
//! ```
#![cfg_attr(not(any(feature = "plan", test)), no_std)]
#![warn(missing_docs)]

mod flow;
#[cfg(feature = "plan")]
mod records;
#[cfg(feature = "plan")]
mod region;
pub mod routine;
mod run;
pub mod sizes;
mod step;

#[cfg(feature = "plan")]
pub use records::{BYTES_PER_NS, Measure, Records, Refused, does_something, estimated_ns, flops_per_ns, working_bytes};
#[cfg(feature = "plan")]
pub use region::regions;

pub use flow::{Flow, Tensors};
pub use run::{DeviceStep, MAX_STEPS, Memory, Queue, Workers, bind, run};
pub use sizes::SERIAL_NS;
#[cfg(feature = "plan")]
pub use step::Place;
pub use step::{Code, LibraryCall, Routine, Step, Work, WorkerMemory, worker_stride};
