//! Recorded work of a CUDA stream.

use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::Shared;
use crate::driver::DriverError;

/// A graph that can be launched.
pub(super) struct Recorded {
    shared: Arc<Shared>,
    handle: sys::CUgraphExec,
}

// SAFETY: as for `Shared`.
unsafe impl Send for Recorded {}
// SAFETY: as above; launches of one graph follow each other.
unsafe impl Sync for Recorded {}

impl Recorded {
    /// Takes over what a stream has recorded.
    pub fn new(shared: Arc<Shared>, graph: sys::CUgraph) -> Result<Recorded, DriverError> {
        // SAFETY: the graph was just recorded, in the context that is entered.
        let made = unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) };
        // SAFETY: the graph is this function's own; what was made of it does not need it.
        let gone = unsafe { result::graph::destroy(graph) };
        let handle = shared.check(made)?;
        let recorded = Recorded { shared, handle };
        recorded.shared.check(gone)?;
        Ok(recorded)
    }

    pub fn handle(&self) -> sys::CUgraphExec {
        self.handle
    }

    pub fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if self.shared.enter().is_ok() {
            // SAFETY: nobody else has the handle, and what it launched has ended.
            let _ = unsafe { result::graph::exec_destroy(self.handle) };
        }
    }
}
