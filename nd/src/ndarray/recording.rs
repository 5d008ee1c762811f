//! Recording calls: what their results know of them.

use std::sync::Arc;

use smallvec::SmallVec;

use super::array::NDArray;
use super::program::ArrayProgram;
use super::resolved_call::Formal;
use super::tape::{Entry, Recorded, RecordedOperand, SavedCall};

/// An operand as a call reads it now.
pub(super) fn recorded(array: &NDArray) -> RecordedOperand {
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

/// Records a call with its operands in formal order, and marks its results.
pub(super) fn record(program: &Arc<ArrayProgram>, operands: &[Formal<'_>], results: &mut [NDArray]) {
    let operands = operands.iter().filter_map(|formal| match formal {
        Formal::Array(array) => Some(recorded(array)),
        other => Some(RecordedOperand::Constant(other.source()?)),
    });
    attach(program, operands.collect(), results);
}

/// As [`record`], with operands that are all arrays.
pub(super) fn record_arrays(program: &Arc<ArrayProgram>, operands: &[&NDArray], results: &mut [NDArray]) {
    attach(program, operands.iter().map(|array| recorded(array)).collect(), results);
}

pub(super) fn attach(program: &Arc<ArrayProgram>, operands: SmallVec<[RecordedOperand; 3]>, results: &mut [NDArray]) {
    let views = if program.keeps_results() { results.iter().map(|r| r.view().clone()).collect() } else { vec![] };
    let call = Recorded::new(program.clone(), SavedCall { operands, results: views });
    for (port, result) in results.iter_mut().enumerate().filter(|(_, result)| result.dtype().is_float()) {
        result.set_entry(Some(Entry::Result { call: call.clone(), port }));
    }
}
