//! What is recorded: calls, and where the arrays they read came from.
//!
//! A handle knows the call that made its array, a call what it read: the tape is this web of references, and goes
//! when the last handle to a result goes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;
use tensorc_ir::DenseType;
use tensorc_runtime::array::{ArrayOperand, ArrayView};

use super::program::ArrayProgram;
use crate::error::{AutogradError, Error};
use crate::grad_req::GradReq;

/// Orders recorded calls: operands have lower numbers than results.
static NUMBER: AtomicU64 = AtomicU64::new(0);

/// An array that gradients are taken by.
pub(super) struct Variable {
    pub gradient: ArrayView,
    pub request: GradReq,
}

impl Variable {
    pub fn ty(&self) -> DenseType {
        DenseType::new(self.gradient.dtype(), self.gradient.dims())
    }
}

/// Where the value of an array came from.
#[derive(Clone)]
pub(super) enum Entry {
    Variable(Arc<Variable>),
    Result { call: Arc<Recorded>, port: usize },
}

/// A call that was made while recording.
pub(super) struct Recorded {
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
    pub fn new(program: Arc<ArrayProgram>, kept: SavedCall) -> Arc<Recorded> {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Arc::new(Recorded { number, program, kept: Mutex::new(Some(kept)) })
    }

    /// What was kept.
    pub fn kept(&self) -> Result<SavedCall, Error> {
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

impl Entry {
    pub fn is_freed(&self) -> bool {
        matches!(self, Entry::Result { call, .. } if call.is_freed())
    }
}
