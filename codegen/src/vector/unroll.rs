//! Several vectors at a time: each instruction for one vector after the other, so that neighbouring cache lines are read
//! together and the chains of accumulators overlap.

use super::{Accumulator, Instruction, LoopForm, Op, ValueId, VectorLoop};

/// Instructions up to which four, or two, vectors are computed at a time.
const FOUR_TIMES: usize = 14;
const TWICE: usize = 160;

/// How many vectors are worth computing at a time. Short bodies wait for memory, unless they have loops; a long one is a
/// chain that fills the schedulers of a processor before the next vector's begins.
pub(super) fn worth(l: &VectorLoop, lanes: u32) -> u32 {
    match l.code.len() {
        // The vectors of one iteration, whose accumulators differ.
        n if l.form == LoopForm::Iterations => {
            let apart = l.loops.is_empty() && l.accumulators.iter().all(|a| !a.local);
            if apart && n > FOUR_TIMES && n <= TWICE && (l.lanes / lanes).is_multiple_of(2) { 2 } else { 1 }
        }
        // Rows begin anew where the code for several vectors would have left off.
        _ if l.rows.is_some() => 1,
        n if n <= FOUR_TIMES && l.loops.is_empty() => 1,
        n if n <= FOUR_TIMES => 4,
        n if n <= TWICE => 2,
        _ => 1,
    }
}

/// The loop with so many vectors of `lanes` elements an iteration.
pub(super) fn unrolled(l: &VectorLoop, times: u32, lanes: u32) -> VectorLoop {
    let mut code: Vec<Instruction> = vec![];
    // Where the result of an instruction is, by copy.
    let mut at: Vec<Vec<ValueId>> = vec![];
    let accumulators = l.accumulators.len() as u32;
    for i in &l.code {
        let copies = if is_shared(l, &i.op) { 1 } else { times };
        let mut places = vec![];
        for copy in 0..copies {
            let mut op = i.op.clone();
            for v in op.operands_mut() {
                let of = &at[*v as usize];
                *v = of[copy as usize % of.len()];
            }
            ahead(l, &mut op, (copy, lanes), accumulators);
            places.push(code.len() as ValueId);
            code.push(Instruction { op, dtype: i.dtype });
        }
        at.push(places);
    }
    let copy = |_| l.accumulators.iter().copied();
    let accumulators: Vec<Accumulator> = (0..times).flat_map(copy).collect();
    VectorLoop { code, accumulators, ..l.clone() }
}

/// Whether all copies have the same result.
fn is_shared(l: &VectorLoop, op: &Op) -> bool {
    match op {
        Op::Const(_) | Op::Uniform(_) | Op::Begin(_) | Op::End(_) => true,
        Op::Load { place, guard: None } => !l.pointers[place.pointer as usize].by_lane(),
        _ => false,
    }
}

/// Moves what an instruction accesses to the elements of a copy.
fn ahead(l: &VectorLoop, op: &mut Op, (copy, lanes): (u32, u32), accumulators: u32) {
    match op {
        Op::Load { place, .. } | Op::LoadHalf { place, .. } | Op::Store { place, .. } | Op::StoreHalf { place, .. } => {
            place.offset += i64::from(copy * lanes) * l.pointers[place.pointer as usize].per_lane;
        }
        Op::Positions { ahead, .. } => *ahead = i64::from(copy * lanes),
        Op::Accumulator(i) | Op::SetAccumulator(i, _) => *i += copy * accumulators,
        _ => {}
    }
}
