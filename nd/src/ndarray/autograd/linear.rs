//! Recorded calls in order, with what each reads and where its gradients go, described independently of arrays.

use std::collections::BTreeMap;
use std::sync::Arc;

use tensorc_runtime::array::{ArrayOperand, ArrayView};

use crate::error::{AutogradError, Error};
use crate::ndarray::array::NDArray;
use crate::ndarray::program::KeyKind;
use crate::ndarray::tape::{Entry, Recorded, RecordedOperand, SavedCall, Variable};
use tensorc::ProgramKey;

/// Where a value is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueSource {
    Source(usize),
    /// A result of an element-wise call, by position of the call, and port.
    Step(usize, usize),
}

/// What a gradient is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Goal {
    Variable(usize),
    /// A result of a call.
    Step(usize, usize),
}

/// One call.
pub(super) struct TapeCall {
    pub call: Arc<Recorded>,
    /// By input of the program.
    pub operands: Vec<(ValueSource, Option<Goal>)>,
    /// Positions of the results among the sources, if they were kept.
    pub results: Vec<usize>,
}

/// What the gradient reads.
pub(super) struct Input {
    pub source: ArrayOperand,
    pub entry: Option<Entry>,
    /// The version that the recorded call saw, and its name.
    pub seen: Option<(u64, Arc<Recorded>)>,
}

/// Everything the heads depend on.
#[derive(Default)]
pub(super) struct Linear {
    pub steps: Vec<TapeCall>,
    pub inputs: Vec<Input>,
    pub variables: Vec<Arc<Variable>>,
    positions: BTreeMap<u64, usize>,
}

impl Linear {
    /// Puts the calls behind arrays in order.
    pub fn new(heads: &[&NDArray]) -> Result<Linear, Error> {
        let mut linear = Linear::default();
        for (number, (call, kept)) in reach(heads)? {
            linear.positions.insert(number, linear.steps.len());
            let operands =
                kept.operands.into_iter().map(|operand| linear.slot(&call, operand)).collect::<Result<_, _>>()?;
            let results = kept.results.into_iter().enumerate().map(|(port, view)| {
                let entry = Some(Entry::Result { call: call.clone(), port });
                linear.array(view, entry, None)
            });
            let results = results.collect();
            linear.steps.push(TapeCall { call, operands, results });
        }
        Ok(linear)
    }

    /// The position of a recorded call among the steps.
    fn position(&self, call: &Recorded) -> Result<usize, Error> {
        let missing = || Error::Internal(format!("recorded call {} is used before it is made", call.number));
        self.positions.get(&call.number).copied().ok_or_else(missing)
    }

    fn slot(&mut self, call: &Arc<Recorded>, operand: RecordedOperand) -> Result<(ValueSource, Option<Goal>), Error> {
        Ok(match operand {
            RecordedOperand::Constant(source) => {
                self.inputs.push(Input { source, entry: None, seen: None });
                (ValueSource::Source(self.inputs.len() - 1), None)
            }
            RecordedOperand::Again { call, port } => {
                let at = self.position(&call)?;
                (ValueSource::Step(at, port), Some(Goal::Step(at, port)))
            }
            RecordedOperand::Array { view, version, entry } => {
                let goal = entry.as_ref().map(|entry| self.goal_of(entry)).transpose()?;
                (ValueSource::Source(self.array(view, entry, Some((version, call.clone())))), goal)
            }
        })
    }

    /// The position of an array among the inputs.
    pub fn array(&mut self, view: ArrayView, entry: Option<Entry>, seen: Option<(u64, Arc<Recorded>)>) -> usize {
        let same = |input: &Input| match &input.source {
            ArrayOperand::View(other) => {
                Arc::ptr_eq(other.chunk(), view.chunk())
                    && (other.range(), other.dtype(), other.dims()) == (view.range(), view.dtype(), view.dims())
            }
            _ => false,
        };
        if let Some(at) = self.inputs.iter().position(same) {
            let input = &mut self.inputs[at];
            // Detached handles of the same memory have no entry.
            input.entry = input.entry.take().or(entry);
            if let Some((version, _)) = &seen
                && input.seen.as_ref().is_none_or(|(older, _)| version < older)
            {
                input.seen = seen;
            }
            return at;
        }
        self.inputs.push(Input { source: ArrayOperand::View(view), entry, seen });
        self.inputs.len() - 1
    }

    fn goal_of(&mut self, entry: &Entry) -> Result<Goal, Error> {
        Ok(match entry {
            Entry::Variable(variable) => {
                let found = self.variables.iter().position(|other| Arc::ptr_eq(other, variable));
                Goal::Variable(found.unwrap_or_else(|| {
                    self.variables.push(variable.clone());
                    self.variables.len() - 1
                }))
            }
            Entry::Result { call, port } => Goal::Step(self.position(call)?, *port),
        })
    }

    /// What a gradient of this array is a gradient of; `None` if the heads do not depend on it.
    pub fn find(&self, array: &NDArray) -> Option<Goal> {
        match array.entry()? {
            Entry::Variable(variable) => {
                self.variables.iter().position(|other| Arc::ptr_eq(other, variable)).map(Goal::Variable)
            }
            Entry::Result { call, port } => self.positions.get(&call.number).map(|at| Goal::Step(*at, *port)),
        }
    }

    /// The goal of a head, which may be a variable itself.
    pub fn head(&mut self, array: &NDArray) -> Result<Option<Goal>, Error> {
        array.entry().cloned().map(|entry| self.goal_of(&entry)).transpose()
    }

    /// Structure and types, without the arrays.
    pub fn describe(&self, key: &mut ProgramKey, kind: KeyKind) {
        key.number(self.steps.len() as u64);
        for TapeCall { call, operands, results } in &self.steps {
            kind.program(key, &call.program);
            key.number(operands.len() as u64);
            for (place, goal) in operands {
                match *place {
                    ValueSource::Source(i) => [0, i, 0],
                    ValueSource::Step(i, port) => [1, i, port],
                }
                .into_iter()
                .for_each(|n| key.number(n as u64));
                describe_goal(key, *goal);
            }
            key.number(results.len() as u64);
            results.iter().for_each(|i| key.number(*i as u64));
        }
        key.number(self.inputs.len() as u64);
        for Input { source, .. } in &self.inputs {
            kind.ty(key, source.dtype(), source.dims());
        }
    }
}

pub(super) fn describe_goal(key: &mut ProgramKey, goal: Option<Goal>) {
    let parts = match goal {
        None => [0, 0, 0],
        Some(Goal::Variable(i)) => [1, i, 0],
        Some(Goal::Step(i, port)) => [2, i, port],
    };
    parts.into_iter().for_each(|n| key.number(n as u64));
}

/// Every call that the arrays depend on, by number.
fn reach(heads: &[&NDArray]) -> Result<BTreeMap<u64, (Arc<Recorded>, SavedCall)>, Error> {
    let mut found = BTreeMap::new();
    let mut waiting: Vec<Arc<Recorded>> = vec![];
    for (position, head) in heads.iter().enumerate() {
        match head.entry() {
            Some(Entry::Result { call, .. }) => waiting.push(call.clone()),
            Some(Entry::Variable(_)) => {}
            None => return Err(AutogradError::NotRecorded { position }.into()),
        }
    }
    while let Some(call) = waiting.pop() {
        if found.contains_key(&call.number) {
            continue;
        }
        let kept = call.kept()?;
        for operand in &kept.operands {
            match operand {
                RecordedOperand::Again { call, .. }
                | RecordedOperand::Array { entry: Some(Entry::Result { call, .. }), .. } => {
                    waiting.push(call.clone());
                }
                _ => {}
            }
        }
        found.insert(call.number, (call, kept));
    }
    Ok(found)
}
