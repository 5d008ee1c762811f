//! Loops within an iteration: counters, offsets that grow, and registers that mean the same at the beginning of every
//! turn.

use super::super::{ArgumentWords, Count, Instruction, Offset, Op, ValueId, VectorLoop};
use super::assembler::{Condition, Gpr, Jump};
use super::registers::Held;
use super::{FEWEST_WORKING, GENERAL, Home, Writer};

/// A loop that is being written.
pub(super) struct OpenLoop {
    start: usize,
    /// Past the loop, if it may have no turn.
    skip: Option<Jump>,
    /// Where values were at its beginning.
    homes: Vec<Home>,
    /// Registers that keep their values throughout.
    kept: Vec<(u8, ValueId)>,
}

/// What a loop uses from outside is needed until its end.
pub(super) fn extend_lives(code: &[Instruction], uses: &mut [Vec<usize>]) {
    let mut begins = vec![];
    for (at, i) in code.iter().enumerate() {
        match i.op {
            Op::Begin(_) => begins.push(at),
            Op::End(_) => {
                let Some(begin) = begins.pop() else { continue };
                for v in uses[..begin].iter_mut() {
                    if v.iter().any(|u| (begin..at).contains(u)) {
                        v.push(at);
                        v.sort_unstable();
                    }
                }
            }
            _ => {}
        }
    }
}

/// How registers are divided between pointers, offsets and counters.
#[derive(Debug)]
pub(super) struct GeneralRegisters {
    pointers: usize,
    /// By offset. Loops that follow one another share registers.
    offsets: Vec<usize>,
    offset_count: usize,
    depth: usize,
    /// A counter of rows, the last.
    rows: bool,
}

impl GeneralRegisters {
    pub fn of(l: &VectorLoop) -> GeneralRegisters {
        let at = |op: Op| l.code.iter().position(|i| i.op == op).unwrap_or(l.code.len());
        let range = |number: u32| at(Op::Begin(number))..at(Op::End(number));
        let innermost = |offset: &Offset| offset.strides.last().map(|(number, _)| range(*number));
        let mut offsets: Vec<usize> = vec![];
        for (i, offset) in l.offsets.iter().enumerate() {
            let meets = |other: &Offset| match (innermost(offset), innermost(other)) {
                (Some(a), Some(b)) => a.start <= b.end && b.start <= a.end,
                _ => true,
            };
            let taken: Vec<usize> = (0..i).filter(|j| meets(&l.offsets[*j])).map(|j| offsets[j]).collect();
            offsets.extend((0..).find(|register| !taken.contains(register)));
        }
        let offset_count = offsets.iter().map(|register| register + 1).max().unwrap_or(0);
        let depth = l.loops.iter().map(|inner| inner.depth + 1).max().unwrap_or(0);
        GeneralRegisters { pointers: l.pointers.len(), offsets, offset_count, depth, rows: l.rows.is_some() }
    }

    pub fn len(&self) -> usize {
        self.pointers + self.offset_count + self.depth + usize::from(self.rows)
    }
}

impl Writer<'_> {
    pub(super) fn offset_register(&self, offset: u32) -> Gpr {
        GENERAL[self.general.pointers + self.general.offsets[offset as usize]]
    }

    pub(super) fn counter(&self, number: u32) -> Gpr {
        let counters = self.general.pointers + self.general.offset_count;
        GENERAL[counters + self.l.loops[number as usize].depth]
    }

    pub(super) fn begin(&mut self, number: u32) -> Option<()> {
        self.make_room()?;
        let counter = self.counter(number);
        let skip = match self.l.loops[number as usize].count {
            Count::Known(n) => {
                self.asm.set(counter, i32::try_from(n).ok()?);
                None
            }
            Count::Uniform(i) => {
                let word = self.argument(ArgumentWords::uniform(self.l, i as usize), 8);
                self.asm.load(counter, &word);
                self.asm.compare(counter, 0);
                Some(self.asm.jump(Condition::LessOrEqual))
            }
        };
        for (i, offset) in self.l.offsets.iter().enumerate() {
            let Some(((innermost, _), before)) = offset.strides.split_last() else { continue };
            if *innermost != number {
                continue;
            }
            let register = self.offset_register(i as u32);
            match self.l.offsets.iter().position(|o| o.strides[..] == *before) {
                Some(outer) => self.asm.copy(register, self.offset_register(outer as u32)),
                None => self.asm.set(register, 0),
            }
        }
        let kept = self.keep();
        let start = self.asm.position();
        self.inner.push(OpenLoop { start, skip, homes: self.homes.clone(), kept });
        Some(())
    }

    pub(super) fn end_loop(&mut self, number: u32) -> Option<()> {
        let open = self.inner.pop()?;
        for (i, offset) in self.l.offsets.iter().enumerate() {
            if let Some((innermost, stride)) = offset.strides.last()
                && *innermost == number
            {
                let register = self.offset_register(i as u32);
                self.asm.add(register, i32::try_from(*stride).ok()?);
            }
        }
        let counter = self.counter(number);
        self.asm.sub(counter, 1);
        self.asm.jump_back(Condition::Greater, open.start);
        if let Some(skip) = &open.skip {
            self.asm.land(skip);
        }
        self.vectors.clear();
        for (register, v) in open.kept {
            self.vectors.set(register, Held::Value(v));
        }
        self.homes = open.homes;
        Some(())
    }

    /// Spills values until enough registers are free for the loop.
    fn make_room(&mut self) -> Option<()> {
        let total = self.vectors.count() as u8;
        loop {
            let taken = (0..total).filter(|r| matches!(self.vectors.held(*r), Held::Value(_) | Held::Pinned)).count();
            let fixed = (0..total).find(|r| matches!(self.vectors.held(*r), Held::Value(v) if self.is_fixed(v)));
            if let Some(register) = fixed {
                self.drop_value(register);
            } else if taken + FEWEST_WORKING <= usize::from(total) {
                return Some(());
            } else {
                self.spill_one()?;
            }
        }
    }

    /// Values in registers keep them, and no instruction of the loop may take one.
    fn keep(&mut self) -> Vec<(u8, ValueId)> {
        let total = self.vectors.count() as u8;
        let mut kept = vec![];
        for register in 0..total {
            if let Held::Value(v) = self.vectors.held(register) {
                kept.push((register, v));
                self.vectors.set(register, Held::Pinned);
            }
        }
        kept
    }
}
