//! The buffer uses of a step, listed without memory of their own.

use core::iter::{Chain, Copied, Take};
use core::{array, slice};

use crate::number::Number;
use crate::operand::{Arg, BufferId, LeftOperand};
use crate::plan::StepOp;

/// Most buffers that a library call or a copy uses itself.
const MAX_OWN: usize = 4;

/// Every buffer use of a step, reads before writes for library calls: the operands in buffers, the result,
/// arguments of the epilogue, arguments of the prologue.
#[derive(Clone, Copy, Debug)]
pub struct Args<'s> {
    own: [Arg; MAX_OWN],
    count: usize,
    lists: [&'s [Arg]; 2],
}

/// Goes over the uses in order.
pub type ArgsIter<'s> =
    Chain<Take<array::IntoIter<Arg, MAX_OWN>>, Chain<Copied<slice::Iter<'s, Arg>>, Copied<slice::Iter<'s, Arg>>>>;

impl<'s> Args<'s> {
    fn listed(list: &'s [Arg]) -> Args<'s> {
        Args { own: [Arg { buffer: BufferId(0), writes: false }; MAX_OWN], count: 0, lists: [list, &[]] }
    }

    /// The operands of a library call or a copy, and its result as the last.
    pub fn operands(&self) -> &[Arg] {
        &self.own[..self.count]
    }

    /// Of a library call, the arguments of its epilogue and its prologue. Of any other step, its arguments and an empty list.
    pub fn lists(&self) -> [&'s [Arg]; 2] {
        self.lists
    }

    /// Reads of some buffers and a write of another.
    fn own<const READS: usize>(reads: [BufferId; READS], written: BufferId) -> Args<'s> {
        const { assert!(READS < MAX_OWN) };
        let mut args = Args { count: READS + 1, ..Args::listed(&[]) };
        args.own.iter_mut().zip(reads).for_each(|(arg, read)| arg.buffer = read);
        args.own[READS] = Arg { buffer: written, writes: true };
        args
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count + self.lists[0].len() + self.lists[1].len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Arg> {
        self.operands().iter().chain(self.lists[0]).chain(self.lists[1])
    }
}

impl<'s> IntoIterator for Args<'s> {
    type Item = Arg;
    type IntoIter = ArgsIter<'s>;

    fn into_iter(self) -> ArgsIter<'s> {
        let [first, second] = self.lists.map(|list| list.iter().copied());
        self.own.into_iter().take(self.count).chain(first.chain(second))
    }
}

impl<N: Number> StepOp<N> {
    /// Every buffer use of this step.
    pub fn args(&self) -> Args<'_> {
        let (own, epilogue, left) = match self {
            StepOp::Launch { args, .. }
            | StepOp::Extern { args, .. }
            | StepOp::Flow { args, .. }
            | StepOp::Vendor { args, .. } => return Args::listed(args),
            StepOp::Copy { src, dst } => return Args::own([*src], *dst),
            StepOp::Gemm { a, b, c, epilogue, .. } | StepOp::Conv { a, b, c, epilogue, .. } => {
                let own = a.buffer().map_or_else(|| Args::own([*b], *c), |a| Args::own([a, *b], *c));
                (own, epilogue, Some(a))
            }
            StepOp::Attention { q, k, v, out, epilogue, .. } => (Args::own([*q, *k, *v], *out), epilogue, None),
        };
        let after = epilogue.as_ref().map_or(&[][..], |epilogue| &epilogue.args);
        let before = left.and_then(LeftOperand::prologue).map_or(&[][..], |prologue| &prologue.args);
        Args { lists: [after, before], ..own }
    }
}
