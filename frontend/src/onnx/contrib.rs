//! Operators that ONNX Runtime adds and that are standard operators in another form.

use super::upgrade::{Rewrite, grid_sample_modes, int};

impl Rewrite<'_> {
    /// Makes the node one of a standard operator.
    fn standardise(&mut self, op: &str) {
        (self.node.domain, self.node.op_type) = (None, Some(op.to_owned()));
    }
}

/// The axis is a scalar operand.
pub(super) fn expand_dims(r: &mut Rewrite<'_>) -> Result<(), String> {
    r.standardise("Unsqueeze");
    let shape = r.i64s(&[1]);
    let axis = r.input(1).to_owned();
    let axes = r.insert("Reshape", &[&axis, &shape], vec![]);
    r.set_input(1, axes);
    Ok(())
}

pub(super) fn grid_sample(r: &mut Rewrite<'_>) -> Result<(), String> {
    r.standardise("GridSample");
    grid_sample_modes(r)
}

/// The step may be absent.
pub(super) fn range(r: &mut Rewrite<'_>) -> Result<(), String> {
    r.standardise("Range");
    if r.input(2).is_empty() {
        let one = r.scalar_like(1.0, 0);
        r.set_input(2, one);
    }
    Ok(())
}

/// Elements in the order in which they come first, the place of each operand element among them, and counts.
pub(super) fn unique(r: &mut Rewrite<'_>) -> Result<(), String> {
    r.standardise("Unique");
    r.node.attribute.push(int("sorted", 0));
    r.node.output.insert(1.min(r.node.output.len()), String::new());
    Ok(())
}
