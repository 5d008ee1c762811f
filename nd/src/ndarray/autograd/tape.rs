//! What is recorded: calls, and where the arrays they read came from.
//!
//! A handle knows the call that made its array, a call what it read: the tape is this web of references, and goes
//! when the last handle to a result goes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;
use tensorc_runtime::array::{ArrayOperand, ArrayView};

use super::{GradReq, scope};
use crate::error::{AutogradError, Error};
use crate::ndarray::NDArray;
use crate::ndarray::call::Formal;
use crate::ndarray::front::source;
use crate::ndarray::program::ArrayProgram;

/// Orders recorded calls: operands have lower numbers than results.
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// An array that gradients are taken by.
pub(in crate::ndarray) struct Variable {
    pub gradient: NDArray,
    pub request: GradReq,
}

/// Where the value of an array came from.
#[derive(Clone)]
pub(in crate::ndarray) enum Entry {
    Variable(Arc<Variable>),
    Result { call: Arc<Recorded>, port: usize },
}

/// A call that was made while recording.
pub(in crate::ndarray) struct Recorded {
    pub number: u64,
    pub program: Arc<ArrayProgram>,
    /// `None` after a backward pass that did not retain it.
    kept: Mutex<Option<SavedCall>>,
}

/// What backward passes need of a call.
#[derive(Clone, Default)]
pub(super) struct SavedCall {
    /// By input of the program.
    pub operands: SmallVec<[RecordedOperand; 3]>,
    /// Results, where gradients may read them.
    pub results: Vec<ArrayView>,
}

#[derive(Clone)]
pub(super) enum RecordedOperand {
    /// A number or a tensor of the host: nothing flows back.
    Constant(ArrayOperand),
    Array {
        view: ArrayView,
        /// Of the view's memory, when the call was made.
        version: u64,
        entry: Option<Entry>,
    },
    /// The result of an element-wise call, which is computed again.
    Again { call: Arc<Recorded>, port: usize },
}

impl Recorded {
    fn new(program: Arc<ArrayProgram>, kept: SavedCall) -> Arc<Recorded> {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Arc::new(Recorded { number, program, kept: Mutex::new(Some(kept)) })
    }

    /// What was kept.
    pub(super) fn kept(&self) -> Result<SavedCall, Error> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.clone().ok_or_else(|| AutogradError::Freed { op: self.program.name.to_string() }.into())
    }

    pub fn is_freed(&self) -> bool {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    pub fn free(&self) {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(kept);
    }
}

/// Long chains are taken apart one by one: dropping them from within each other would exhaust the stack.
impl Drop for Recorded {
    fn drop(&mut self) {
        let mut waiting: Vec<SavedCall> =
            self.kept.get_mut().unwrap_or_else(PoisonError::into_inner).take().into_iter().collect();
        while let Some(kept) = waiting.pop() {
            for operand in kept.operands {
                let call = match operand {
                    RecordedOperand::Again { call, .. }
                    | RecordedOperand::Array { entry: Some(Entry::Result { call, .. }), .. } => call,
                    _ => continue,
                };
                if let Some(mut last) = Arc::into_inner(call) {
                    waiting.extend(last.kept.get_mut().unwrap_or_else(PoisonError::into_inner).take());
                }
            }
        }
    }
}

impl RecordedOperand {
    pub fn array(array: &NDArray) -> RecordedOperand {
        let entry = array.entry().filter(|entry| !entry.is_freed() && array.dtype().is_float());
        match entry {
            Some(Entry::Result { call, port }) if call.program.elementwise => {
                RecordedOperand::Again { call: call.clone(), port: *port }
            }
            entry => {
                let view = array.view().clone();
                RecordedOperand::Array { version: view.chunk().version(), view, entry: entry.cloned() }
            }
        }
    }
}

impl Entry {
    fn is_freed(&self) -> bool {
        matches!(self, Entry::Result { call, .. } if call.is_freed())
    }
}

/// Whether a call with these arrays is to be recorded.
pub(in crate::ndarray) fn concerns<'a>(arrays: impl IntoIterator<Item = &'a NDArray>) -> bool {
    scope::is_recording() && arrays.into_iter().any(|array| array.entry().is_some())
}

/// Refuses to write an array that recorded calls read or made, and to write what is to be recorded to an array that
/// exists: the gradient would not see it.
pub(in crate::ndarray) fn refuse_in_place<'a>(
    op: &str,
    operands: impl IntoIterator<Item = &'a NDArray>,
    targets: impl IntoIterator<Item = &'a NDArray>,
) -> Result<(), Error> {
    match concerns(operands) || concerns(targets) {
        true => Err(AutogradError::InPlace { op: op.to_owned() }.into()),
        false => Ok(()),
    }
}

/// Records a call with its operands in formal order, and marks its results.
pub(in crate::ndarray) fn record(program: &Arc<ArrayProgram>, operands: &[Formal<'_>], results: &mut [NDArray]) {
    let operands = operands.iter().filter_map(|formal| match formal {
        Formal::Array(array) => Some(RecordedOperand::array(array)),
        other => Some(RecordedOperand::Constant(source(other)?)),
    });
    attach(program, operands.collect(), results);
}

/// As [`record`], with operands that are all arrays.
pub(in crate::ndarray) fn record_arrays(program: &Arc<ArrayProgram>, operands: &[&NDArray], results: &mut [NDArray]) {
    attach(program, operands.iter().map(|array| RecordedOperand::array(array)).collect(), results);
}

pub(super) fn attach(program: &Arc<ArrayProgram>, operands: SmallVec<[RecordedOperand; 3]>, results: &mut [NDArray]) {
    let views = if program.keeps_results() { results.iter().map(|r| r.view().clone()).collect() } else { vec![] };
    let call = Recorded::new(program.clone(), SavedCall { operands, results: views });
    for (port, result) in results.iter_mut().enumerate().filter(|(_, result)| result.dtype().is_float()) {
        result.set_entry(Some(Entry::Result { call: call.clone(), port }));
    }
}
