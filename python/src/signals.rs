//! Work without the interpreter's lock, which Ctrl-C ends.

use std::cell::Cell;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use tensorc::runtime::Interrupter;

/// How often signals are looked at while something runs. That takes the interpreter's lock.
const PERIOD: Duration = Duration::from_millis(20);

thread_local! {
    /// When a thread that called from Python looked last; `None` for other threads, and when nothing runs.
    static LOOKED: Cell<Option<Instant>> = const { Cell::new(None) };
    /// What the handler of a signal has raised.
    static RAISED: Cell<Option<PyErr>> = const { Cell::new(None) };
}

/// What ends work when a signal's handler raises an exception in the thread that called from Python.
pub fn interrupter() -> Interrupter {
    Interrupter::new(|| {
        let Some(last) = LOOKED.get() else { return false };
        let now = Instant::now();
        if now.duration_since(last) < PERIOD {
            return false;
        }
        LOOKED.set(Some(now));
        let raised = Python::attach(|py| py.check_signals().err());
        let any = raised.is_some();
        RAISED.set(raised);
        any
    })
}

/// Does work that asks [`interrupter`] without the interpreter's lock.
///
/// # Errors
/// What a signal's handler has raised meanwhile.
pub fn interruptible<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> PyResult<T> {
    let done = py.detach(|| {
        LOOKED.set(Some(Instant::now()));
        let done = work();
        LOOKED.set(None);
        done
    });
    match RAISED.take() {
        Some(raised) => Err(raised),
        None => Ok(done),
    }
}
