//! What a run of a graph does besides computing outputs: inputs it updates, what it confirms, its phases.

use std::collections::BTreeSet;

use super::{Check, Graph, NodeId, Value};
use crate::diag::Result;

impl Graph {
    /// States that input `of` is mutable memory, which holds `value` after the run: auxiliary state, parameters
    /// that are trained, gradients that are added to. Reads of the input see the old value.
    pub fn add_update(&mut self, of: NodeId, value: Value) {
        self.updates.push((of, value));
    }

    /// Inputs that are updated, with their next values.
    pub fn updates(&self) -> &[(NodeId, Value)] {
        &self.updates
    }

    /// Updated inputs by their position in the signature, ascending, with their next values.
    pub fn states(&self) -> Vec<(usize, Value)> {
        let next = |id: &NodeId| self.updates.iter().find(|(of, _)| of == id).map(|(_, v)| *v);
        self.inputs.iter().enumerate().filter_map(|(i, id)| next(id).map(|v| (i, v))).collect()
    }

    /// Makes every input constant memory again.
    pub fn clear_updates(&mut self) {
        self.updates.clear();
    }

    /// Adds a requirement that a run confirms.
    pub fn add_check(&mut self, check: Check) {
        self.checks.push(check);
    }

    /// The requirements that a run confirms.
    pub fn checks(&self) -> &[Check] {
        &self.checks
    }

    /// Runs confirm nothing.
    pub fn clear_checks(&mut self) {
        self.checks.clear();
    }

    /// The first `outputs` outputs, and what they need, make up the first phase of the run; all else,
    /// updates included, the second. The phases can be run one at a time.
    pub fn set_boundary(&mut self, outputs: Option<usize>) {
        self.boundary = outputs;
    }

    /// Number of outputs that the first phase delivers; `None` if there is one phase.
    pub fn boundary(&self) -> Option<usize> {
        self.boundary
    }

    /// What the outputs before the boundary need, and checks that need no other inputs; `None` without a boundary.
    pub fn first_phase(&self) -> Option<BTreeSet<NodeId>> {
        let first = self.outputs.iter().take(self.boundary?).map(|(_, v)| v.node);
        let mut phase = self.ancestors(first);
        for check in &self.checks {
            let needed = self.ancestors([check.value.node]);
            if needed.iter().all(|node| phase.contains(node) || !self.inputs.contains(node)) {
                phase.extend(needed);
            }
        }
        Some(phase)
    }

    /// Takes over updates, checks and boundary from the graph this one is a copy of; `map` gives the
    /// copies of values.
    pub fn keep_effects(&mut self, old: &Graph, map: impl Fn(Value) -> Result<Value>) -> Result<()> {
        self.boundary = old.boundary;
        for check in &old.checks {
            self.checks.push(Check { value: map(check.value)?, requirement: check.requirement.clone() });
        }
        for (of, v) in &old.updates {
            self.updates.push((map(Value { node: *of, port: 0 })?.node, map(*v)?));
        }
        Ok(())
    }
}
