//! Kernels with other numbers in place of those that depend on symbols.

use super::{Kernel, Stmt};
use crate::extent::Extent;

impl Kernel {
    /// The kernel with other numbers. Those of kernels for GPUs depend on no symbols, and stay.
    pub fn renumbered(&self, number: &dyn Fn(Extent) -> Extent) -> Kernel {
        let mut kernel = self.clone();
        kernel.buffers.iter_mut().for_each(|buffer| buffer.len = number(buffer.len));
        kernel.body.iter_mut().for_each(|stmt| renumber(stmt, number));
        kernel
    }
}

fn renumber(stmt: &mut Stmt, number: &dyn Fn(Extent) -> Extent) {
    match stmt {
        Stmt::For { lo, hi, body, .. } => {
            [lo, hi].into_iter().for_each(|end| *end = end.renumbered(number));
            body.iter_mut().for_each(|stmt| renumber(stmt, number));
        }
        Stmt::LetIndex { index, .. } | Stmt::Load { index, .. } | Stmt::Store { index, .. } => {
            *index = index.renumbered(number);
        }
        Stmt::VectorMath { start, len, .. } => {
            [start, len].into_iter().for_each(|index| *index = index.renumbered(number));
        }
        Stmt::If { then, otherwise, .. } => {
            then.iter_mut().chain(otherwise).for_each(|stmt| renumber(stmt, number));
        }
        _ => {}
    }
}
