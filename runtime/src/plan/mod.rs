//! Execution of compiled plans.
//!
//! [`verify`] checks a plan without knowledge of the planner that made it. [`Executable`] resolves
//! every step ahead of time, so that [`Context::run`] neither allocates nor hashes: it checks the
//! caller's tensors, writes their addresses into prepared argument tables and makes the calls.

mod arena;
mod bindings;
mod context;
mod device;
mod error;
mod executable;
mod external;
mod flow;
mod lanes;
mod poison;
mod trace;
mod verify;

pub use arena::SharedArena;
pub use bindings::{Bindings, DeviceBindings, DeviceTensor, Needs, Phase};
pub use context::Context;
pub use error::{InvalidPlan, LoadError, PlanEdge, PlanError, RunError};
pub use executable::{Executable, RenumberRoom};
pub use verify::{PlanReport, verify, verify_kernels, verify_unplaced};
