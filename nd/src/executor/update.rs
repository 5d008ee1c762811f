//! What an optimizer tells an executor, so that its steps become part of the compiled plan.

use tensorc_ir::DenseType;
use tensorc_ir::build::Builder;
use tensorc_ir::diag::Diagnostic;
use tensorc_ir::graph::Value;

/// A weight after a step, and the optimizer's states.
pub struct Emission {
    /// The new weight.
    pub weight: Value,
    /// The new states, in their order.
    pub states: Vec<Value>,
}

/// One step of an optimizer as operators of a graph.
pub trait UpdateRule {
    /// Names and types of the states kept for a weight of this type; they begin as zeros.
    fn states(&self, weight: &DenseType) -> Vec<(&'static str, DenseType)>;

    /// How many numbers a weight's step depends on, such as the learning rate. They are given anew for every
    /// step.
    fn numbers(&self) -> usize;

    /// Adds the step. `gradient` has the type of `weight`; the numbers are f32 of rank 0.
    ///
    /// # Errors
    /// An operator does not take these types.
    fn emit(
        &self,
        b: &mut Builder<'_>,
        weight: Value,
        gradient: Value,
        states: &[Value],
        numbers: &[Value],
    ) -> Result<Emission, Diagnostic>;
}
