//! What runs of one combination of shapes execute: code for many shapes, until there is some for this one.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use tensorc_ir::DenseType;

use crate::compiler::{Compiler, Specialize};
use crate::part_code::RunCode;
use crate::parts::Parts;

/// A combination of input shapes that a model was run with.
pub(crate) struct HotSession {
    code: Mutex<Arc<RunCode>>,
    /// What the code was compiled from.
    parts: Arc<Parts>,
    runs: AtomicU32,
    /// Whether code for these shapes alone is being made, or was.
    is_specialised: AtomicBool,
}

/// Makes code in the background, one at a time.
#[derive(Clone, Default)]
pub(crate) struct Background(Arc<AtomicBool>);

impl HotSession {
    pub fn new(code: RunCode, parts: Arc<Parts>) -> HotSession {
        let code = Mutex::new(Arc::new(code));
        HotSession { code, parts, runs: AtomicU32::new(0), is_specialised: AtomicBool::new(false) }
    }

    /// The code that there is now.
    pub fn code(&self) -> Arc<RunCode> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Arc<RunCode>> {
        self.code.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a run with inputs of these types. Enough of them start a compilation for these alone, unless another is going on: what
    /// is compiled replaces the code of later runs. If nothing comes of it, the code stays.
    pub fn ran(self: &Arc<Self>, background: &Background, compiler: &Compiler, types: impl FnOnce() -> Vec<DenseType>) {
        let Specialize::After(count) = compiler.options().specialize else { return };
        let runs = self.runs.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if runs < count || self.is_specialised.load(Ordering::Relaxed) || background.0.swap(true, Ordering::Acquire) {
            return;
        }
        self.is_specialised.store(true, Ordering::Relaxed);
        let (session, compiler, types) = (self.clone(), compiler.clone(), types());
        let busy = BusyFlag(background.0.clone());
        let work = move || {
            let _busy = busy;
            if let Some(code) = session.parts.specialised(&compiler, &types) {
                *session.lock() = Arc::new(code);
            }
        };
        // Without a thread the code stays.
        drop(thread::Builder::new().name("tensorc-specialise".to_owned()).spawn(work));
    }
}

/// Is cleared when the work ends, however it does.
struct BusyFlag(Arc<AtomicBool>);

impl Drop for BusyFlag {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
