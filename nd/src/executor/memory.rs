//! Memory for intermediate values that executors may share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tensorc_runtime::Device;
use tensorc_runtime::plan::SharedArena;

use crate::error::Error;
use crate::ndarray::{NDArray, Runtime};

/// An arena, and whose values are in it. Cloning shares it.
#[derive(Clone, Default)]
pub(super) struct SharedMemory(Arc<Inner>);

#[derive(Default)]
struct Inner {
    arena: SharedArena,
    /// Orders what uses the arena in the engine: every run writes it.
    token: Mutex<Option<NDArray>>,
    /// The forward pass whose values the arena holds, once everything pushed is done.
    owner: Mutex<Pass>,
}

/// A training forward pass, counted per memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pass(u64);

impl SharedMemory {
    pub fn arena(&self) -> &SharedArena {
        &self.0.arena
    }

    /// The array that every run in this memory writes; `device` is where the first does.
    pub fn token(&self, rt: &Runtime, device: Device) -> Result<NDArray, Error> {
        let mut token = lock(&self.0.token);
        match &*token {
            Some(token) => Ok(token.clone()),
            None => {
                let made = rt.empty(device, tensorc_abi::DType::U8, &[1])?;
                Ok(token.insert(made).clone())
            }
        }
    }

    /// A run that overwrites what is there.
    pub fn begin(&self) -> Pass {
        let mut owner = lock(&self.0.owner);
        owner.0 += 1;
        *owner
    }

    /// Whether the values of a pass are still there.
    pub fn holds(&self, pass: Pass) -> bool {
        *lock(&self.0.owner) == pass
    }

    /// Bytes of the arena at present.
    pub fn bytes(&self) -> usize {
        self.0.arena.bytes()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
