//! Control flow: nested plans that run more or less than once.
//!
//! A conditional has two bodies with the same inputs and outputs. A loop has one, of which the states are what iterations
//! carry on, in memory of the loop's results, changed in place.

use crate::dtype::DType;
use crate::image::flow;
use crate::number::Number;
use crate::operand::BufferId;
use crate::plan::{Buffer, Plan, WorkingBytes};

/// The nested plans of a step. Their kernels and weights stand in the tables of the outermost plan.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowPlan<N: Number = u64> {
    /// Which of the plans run, and how often.
    pub kind: FlowKind<N>,
    /// Two of a conditional, the one for a condition that holds first; one of a loop.
    pub bodies: Vec<Plan<N>>,
}

/// What decides which bodies run, and how often.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FlowKind<N: Number = u64> {
    /// The first operand, a bool scalar. The other operands are the inputs of both bodies; their outputs are the results.
    If,
    /// The body runs again and again.
    Loop(Loop<N>),
}

/// How a body is repeated.
///
/// Operands: the condition, if there is one; what is carried; what is scanned; what every iteration reads. Results: what is
/// carried, then what is stacked. Inputs of the body: the number of the iteration, an i64 scalar; what is carried; a row of
/// each scanned operand, that is its part at one position of the first axis; the rest. Outputs of the body: whether there is
/// a next iteration, if there is a condition; a row of each stacked result. It updates what is carried.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Loop<N: Number = u64> {
    /// Most iterations, and how many there are without a condition: the extent of the first axis of what is scanned and
    /// stacked.
    pub trips: Option<N>,
    /// Whether a bool scalar says before every iteration if there is one. Rows of iterations that there are not are zeros.
    pub conditional: bool,
    /// How many values are carried from one iteration to the next.
    pub carried: usize,
    /// For each scanned operand whether the last row comes first.
    pub scanned: Vec<bool>,
    /// For each stacked result whether the last row comes first.
    pub stacked: Vec<bool>,
}

impl<N: Number> Loop<N> {
    /// Operands before those that every iteration reads.
    pub fn own_operands(&self) -> usize {
        usize::from(self.conditional) + self.carried + self.scanned.len()
    }

    /// Inputs of the body before those that every iteration reads.
    pub fn own_inputs(&self) -> usize {
        1 + self.carried + self.scanned.len()
    }

    /// Outputs of the body.
    pub fn outputs(&self) -> usize {
        usize::from(self.conditional) + self.stacked.len()
    }

    /// Results.
    pub fn results(&self) -> usize {
        self.carried + self.stacked.len()
    }

    /// Whether something says how often the body runs, and as often as there are rows.
    pub fn is_bounded(&self) -> bool {
        let rows = !self.scanned.is_empty() || !self.stacked.is_empty();
        let ends = self.trips.is_some() || self.conditional;
        ends && (self.trips.is_some() || !rows)
    }
}

/// An argument of a step with nested plans, as these want it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowArg {
    /// Type of its elements.
    pub dtype: DType,
    /// Its size; `None` if that exceeds 64 bits.
    pub bytes: Option<u64>,
}

impl FlowArg {
    const CONDITION: FlowArg = FlowArg { dtype: DType::Bool, bytes: Some(1) };

    fn of(buffer: &Buffer) -> FlowArg {
        FlowArg { dtype: buffer.dtype, bytes: Some(buffer.bytes()) }
    }

    fn rows(buffer: &Buffer, rows: u64) -> FlowArg {
        FlowArg { dtype: buffer.dtype, bytes: buffer.bytes().checked_mul(rows) }
    }
}

impl<N: Number> FlowPlan<N> {
    /// Entries of the table of arguments of a body.
    pub fn slots(body: &Plan<N>) -> u64 {
        body.steps.iter().map(|step| step.op.args().len() as u64).sum()
    }

    /// The working memory of the step, in which one body lies at a time. Bodies must be planned.
    pub fn working(&self) -> WorkingBytes {
        let of = |body: &Plan<N>| {
            let shared =
                body.scratch.iter().map(|s| s.offset.saturating_add(s.shared)).fold(body.arena_bytes, u64::max);
            let each = body.scratch.iter().map(|s| s.bytes).max().unwrap_or(0);
            let before = flow::arena_offset(FlowPlan::<N>::slots(body)).unwrap_or(u64::MAX);
            WorkingBytes { shared: shared.saturating_add(before), each }
        };
        self.bodies.iter().map(of).fold(WorkingBytes::default(), WorkingBytes::max)
    }

    /// The record by which the step is executed, as [`crate::image::flow`] describes it, without what it says of bodies.
    pub fn words(&self) -> Vec<N> {
        let (mut words, rows) = (vec![N::from(0); flow::WORDS], |buffer: &Buffer<N>, back: bool| {
            [buffer.bytes(), N::from(u64::from(back))]
        });
        match (&self.kind, &self.bodies[..]) {
            (FlowKind::Loop(repeat), [body]) => {
                words[flow::KIND] = flow::LOOP.into();
                words[flow::TRIPS] = repeat.trips.unwrap_or(u64::MAX.into());
                words[flow::CONDITIONAL] = u64::from(repeat.conditional).into();
                words[flow::CARRIED] = (repeat.carried as u64).into();
                words[flow::SCANNED] = (repeat.scanned.len() as u64).into();
                words[flow::STACKED] = (repeat.stacked.len() as u64).into();
                let operands = body.inputs.len() - 1 + repeat.carried + usize::from(repeat.conditional);
                words[flow::OPERANDS] = (operands as u64).into();
                words.extend(body.states.iter().map(|id| body.buffer(*id).bytes()));
                let scanned = body.inputs.iter().skip(1).zip(&repeat.scanned);
                words.extend(scanned.flat_map(|(id, back)| rows(body.buffer(*id), *back)));
                let stacked = body.outputs.iter().skip(usize::from(repeat.conditional)).zip(&repeat.stacked);
                words.extend(stacked.flat_map(|(id, back)| rows(body.buffer(*id), *back)));
            }
            (_, bodies) => {
                words[flow::KIND] = flow::IF.into();
                words[flow::OPERANDS] = (1 + bodies.first().map_or(0, |body| body.inputs.len() as u64)).into();
            }
        }
        words
    }
}

impl FlowPlan {
    /// Types and sizes of the operands, and of the results; `None` if the bodies do not fit the kind: their number, their
    /// inputs, states or outputs.
    pub fn signature(&self) -> Option<[Vec<FlowArg>; 2]> {
        match (&self.kind, &self.bodies[..]) {
            (FlowKind::If, [then, otherwise]) => {
                let same = |a: &[BufferId], b: &[BufferId]| {
                    let of = |plan: &Plan, ids: &[BufferId]| {
                        ids.iter().map(|id| FlowArg::of(plan.buffer(*id))).collect::<Vec<_>>()
                    };
                    let found = of(then, a);
                    (found == of(otherwise, b)).then_some(found)
                };
                let inputs = same(&then.inputs, &otherwise.inputs)?;
                let operands = [FlowArg::CONDITION].into_iter().chain(inputs).collect();
                let stateless = then.states.is_empty() && otherwise.states.is_empty();
                stateless.then_some([operands, same(&then.outputs, &otherwise.outputs)?])
            }
            (FlowKind::Loop(repeat), [body]) => FlowPlan::loop_signature(repeat, body),
            _ => None,
        }
    }

    fn loop_signature(repeat: &Loop, body: &Plan) -> Option<[Vec<FlowArg>; 2]> {
        let [inputs, states, outputs] =
            [&body.inputs, &body.states, &body.outputs].map(|ids| ids.iter().map(|id| body.buffer(*id)));
        let (mut inputs, mut outputs) = (inputs, outputs);
        let number = inputs.next().is_some_and(|b| (b.dtype, b.bytes()) == (DType::I64, 8));
        let counts = (states.len(), outputs.len()) == (repeat.carried, repeat.outputs());
        if !(number && counts && repeat.is_bounded() && inputs.len() >= repeat.scanned.len()) {
            return None;
        }
        let (rows, mut operands) = (repeat.trips.unwrap_or(0), vec![]);
        if repeat.conditional {
            outputs.next().filter(|b| FlowArg::of(b) == FlowArg::CONDITION)?;
            operands.push(FlowArg::CONDITION);
        }
        let carried: Vec<FlowArg> = states.map(FlowArg::of).collect();
        operands.extend(&carried);
        operands.extend(inputs.by_ref().take(repeat.scanned.len()).map(|b| FlowArg::rows(b, rows)));
        operands.extend(inputs.map(FlowArg::of));
        let results = carried.into_iter().chain(outputs.map(|b| FlowArg::rows(b, rows))).collect();
        Some([operands, results])
    }
}
