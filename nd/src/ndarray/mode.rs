//! What this thread does with calls besides making them: record them, run them for training.

use std::cell::Cell;
use std::marker::PhantomData;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mode {
    recording: bool,
    training: bool,
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode { recording: false, training: false }) };
}

/// A mode of this thread, until the value is dropped; then the mode before it holds again.
#[must_use = "the mode ends when the scope is dropped"]
#[derive(Debug)]
pub struct ModeGuard {
    before: Mode,
    /// Modes belong to threads.
    _thread: PhantomData<*const ()>,
}

impl ModeGuard {
    fn enter(change: impl FnOnce(Mode) -> Mode) -> ModeGuard {
        let before = MODE.get();
        MODE.set(change(before));
        ModeGuard { before, _thread: PhantomData }
    }
}

impl Drop for ModeGuard {
    fn drop(&mut self) {
        MODE.set(self.before);
    }
}

/// Calls of this thread are recorded and run for training.
pub fn record() -> ModeGuard {
    ModeGuard::enter(|_| Mode { recording: true, training: true })
}

/// Calls are recorded, but run as for prediction: dropout does nothing.
pub fn record_prediction() -> ModeGuard {
    ModeGuard::enter(|_| Mode { recording: true, training: false })
}

/// Calls are neither recorded nor run for training.
pub fn pause() -> ModeGuard {
    ModeGuard::enter(|_| Mode { recording: false, training: false })
}

/// Calls run for training; whether they are recorded stays as it is.
pub fn train_mode() -> ModeGuard {
    ModeGuard::enter(|mode| Mode { training: true, ..mode })
}

/// Calls run as for prediction; whether they are recorded stays as it is.
pub fn predict_mode() -> ModeGuard {
    ModeGuard::enter(|mode| Mode { training: false, ..mode })
}

/// Whether calls of this thread are recorded.
pub fn is_recording() -> bool {
    MODE.get().recording
}

/// Whether calls of this thread compute as in training.
pub fn is_training() -> bool {
    MODE.get().training
}
