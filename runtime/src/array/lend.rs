//! Memory of arrays for other libraries, through DLPack.

use std::sync::{Arc, Mutex, PoisonError};

use super::chunk::Shared;
use super::launch::ReadError;
use super::space::ArraySpace;
use super::view::ArrayView;
use crate::dlpack::{DLManagedTensorVersioned, DlpackError, export};
use crate::engine::{Op, OpName};

/// Memory that could not be lent.
#[derive(Debug, thiserror::Error)]
pub enum LendError {
    /// Waiting for the memory or allocating it failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// DLPack cannot describe the memory.
    #[error(transparent)]
    Dlpack(#[from] DlpackError),
}

/// Waits for everything that uses the view's memory and lends it. The memory lives until the
/// receiver calls the deleter, and does not move any more.
///
/// Accesses through the pointer are not ordered with operations pushed later: whoever uses it waits
/// for those that write, and while it writes, nothing may be pushed that uses the memory.
///
/// # Errors
/// What computed the elements failed, or the memory is not the host's.
pub fn lend(space: &ArraySpace, name: &OpName, view: &ArrayView) -> Result<*mut DLManagedTensorVersioned, LendError> {
    let place = Arc::new(Mutex::new(None));
    let (into, chunk, done) = (place.clone(), view.chunk().clone(), space.engine().new_var());
    let var = view.chunk().var();
    let op = Op { device: view.device(), reads: &[var], writes: &[var, &done], ..Op::new(name) };
    let pushed = space.engine().push(op, move |_| {
        // SAFETY: the operation writes the chunk's variable.
        let shared = unsafe { chunk.share() }?;
        *into.lock().unwrap_or_else(PoisonError::into_inner) = Some(shared);
        Ok(())
    });
    pushed.map_err(|error| ReadError::Launch(error.into()))?;
    space.engine().wait_to_read(&done).map_err(ReadError::Failed)?;
    let shared = place.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(Shared { start, writable }) = shared else { return Err(DlpackError::Null.into()) };
    let data = start.wrapping_add(view.range().start);
    let owner = view.chunk().clone() as Arc<dyn std::any::Any + Send + Sync>;
    // SAFETY: the chunk keeps the memory and, being pinned, its address; the view lies inside it.
    Ok(unsafe { export(owner, data, view.dtype(), view.dims(), view.device(), !writable) }?)
}
