//! A primitive that the backward pass visits.

use tensorc_ir::diag::{Diagnostic, DiagnosticCode, Result};
use tensorc_ir::graph::Value;

/// A primitive whose results have received gradients.
pub(super) struct Visit<'a> {
    pub args: &'a [Value],
    pub results: &'a [Value],
    pub heads: &'a [Option<Value>],
    /// Which operands' gradients are asked for.
    pub wanted: &'a [bool],
}

impl Visit<'_> {
    /// The gradient of the only result.
    pub fn head(&self) -> Result<Value> {
        let head = self.heads.first().copied().flatten();
        head.ok_or_else(|| Diagnostic::new(DiagnosticCode::Internal, "a primitive without a gradient is visited"))
    }
}
