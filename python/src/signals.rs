//! Work without the interpreter's lock, which Ctrl-C ends.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use tensorc::runtime::Interrupter;

use crate::errors::Class;

/// How often signals are looked at while something runs. That takes the interpreter's lock.
const PERIOD: Duration = Duration::from_millis(20);

thread_local! {
    /// When a thread that called from Python looked last; `None` for other threads, and when nothing runs.
    static LOOKED: Cell<Option<Instant>> = const { Cell::new(None) };
    /// What the handler of a signal has raised.
    static RAISED: Cell<Option<PyErr>> = const { Cell::new(None) };
    /// What else ends the work of a thread that called from Python.
    static STOP: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// What another thread sets to end a run.
#[pyclass(frozen, module = "tensorc._tensorc")]
pub struct StopFlag(Arc<AtomicBool>);

#[pymethods]
impl StopFlag {
    #[new]
    fn new() -> StopFlag {
        StopFlag(Arc::default())
    }

    fn set(&self, stop: bool) {
        self.0.store(stop, Ordering::Relaxed);
    }
}

/// That a run was ended by its flag.
fn stopped(py: Python<'_>) -> PyErr {
    Class::Fail.error(py, "Exiting due to terminate flag being set to true.", None)
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
        let is_stopped = STOP.with_borrow(|flag| flag.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed)));
        let raised = Python::attach(|py| match is_stopped {
            true => Some(stopped(py)),
            false => py.check_signals().err(),
        });
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

/// As [`interruptible`]; the work also ends once a flag is set, which is looked at before.
///
/// # Errors
/// The flag was set, or what a signal's handler has raised meanwhile.
pub fn stoppable<T: Send>(py: Python<'_>, flag: Option<&StopFlag>, work: impl FnOnce() -> T + Send) -> PyResult<T> {
    let Some(flag) = flag else { return interruptible(py, work) };
    if flag.0.load(Ordering::Relaxed) {
        return Err(stopped(py));
    }
    let around = STOP.replace(Some(flag.0.clone()));
    let done = interruptible(py, work);
    STOP.set(around);
    done
}
