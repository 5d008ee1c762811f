//! Plans for many shapes: their size program is executed for one.

use tensorc_abi::image::step;
use tensorc_abi::sizes::SizeOp;

use crate::step::{Routine, worker_stride};

/// Work below this estimate stays on the calling thread: ten times the price of waking a sleeping
/// worker, as the `overhead` example of the run time shows it; one that still spins costs a tenth of that.
pub const SERIAL_NS: u64 = 20_000;
/// Least estimated work of one chunk of a split step.
const CHUNK_NS: u64 = 5_000;

/// The least number of tasks worth handing to another thread, with the estimated time of all on one core.
pub fn grain(tasks: u64, ns: u64) -> u64 {
    if ns < SERIAL_NS { tasks } else { tasks.div_ceil((ns / CHUNK_NS).max(1)) }
}

/// Why a size program has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizesError {
    /// The plan does not hold for these extents.
    Unfit,
    /// A number is too large.
    TooLarge,
    /// The program is damaged.
    Damaged,
}

/// What a size program is executed with.
pub struct SizeRun<'a> {
    /// A value for each instruction.
    pub values: &'a mut [i64],
    /// The words that it changes: a copy of the region of the plan.
    pub region: &'a mut [u64],
    /// The position of the region in the image.
    pub region_at: usize,
    /// How many workers the context has.
    pub workers: usize,
}

impl SizeRun<'_> {
    /// Executes the instructions from `first` on, of which `program` holds all up to the last to execute; gives the value of the last.
    ///
    /// # Errors
    /// The plan does not hold for the extents, a number is too large, or the program is damaged.
    pub fn execute(
        &mut self,
        program: &[u64],
        first: usize,
        extent: &dyn Fn(usize, usize) -> Option<u64>,
        routine: &dyn Fn(usize) -> Option<&'static Routine>,
    ) -> Result<i64, SizesError> {
        let mut last = 0;
        for (at, word) in program.iter().enumerate().skip(first) {
            last = self.value(*word, at, extent, routine)?;
            *self.values.get_mut(at).ok_or(SizesError::Damaged)? = last;
        }
        Ok(last)
    }

    fn value(
        &mut self,
        word: u64,
        at: usize,
        extent: &dyn Fn(usize, usize) -> Option<u64>,
        routine: &dyn Fn(usize) -> Option<&'static Routine>,
    ) -> Result<i64, SizesError> {
        const DAMAGED: SizesError = SizesError::Damaged;
        const TOO_LARGE: SizesError = SizesError::TooLarge;
        let of =
            |values: &[i64], i: u32| values.get(..at).and_then(|before| before.get(i as usize)).copied().ok_or(DAMAGED);
        let known = |i| of(self.values, i);
        let large = |n: u64| i64::try_from(n).map_err(|_| TOO_LARGE);
        match SizeOp::of_word(word).ok_or(DAMAGED)? {
            SizeOp::Constant(n) => Ok(n),
            SizeOp::Extent { input, axis } => large(extent(input as usize, axis as usize).ok_or(DAMAGED)?),
            SizeOp::Sum(a, b) => known(a)?.checked_add(known(b)?).ok_or(TOO_LARGE),
            SizeOp::Product(a, b) => known(a)?.checked_mul(known(b)?).ok_or(TOO_LARGE),
            SizeOp::Quotient(a, b) => known(a)?.checked_div_euclid(known(b)?).ok_or(DAMAGED),
            SizeOp::Greatest(a, b) => Ok(known(a)?.max(known(b)?)),
            SizeOp::Align { value, exponent } => {
                let unit = 1i64.checked_shl(exponent).filter(|unit| *unit > 0).ok_or(DAMAGED)?;
                Ok(known(value)?.checked_add(unit - 1).ok_or(TOO_LARGE)? & -unit)
            }
            SizeOp::Require(a, sign) => match known(a)? {
                value if sign.holds(value) => Ok(value),
                _ => Err(SizesError::Unfit),
            },
            SizeOp::Store { value, word } => {
                let value = known(value)?;
                *self.region.get_mut(word as usize).ok_or(DAMAGED)? = value as u64;
                Ok(value)
            }
            SizeOp::Tasks(step) => {
                let (routine, words, _) = self.call(step, routine)?;
                large((routine.tasks)(&(routine.read)(words).ok_or(DAMAGED)?))
            }
            SizeOp::Scratch(step) => {
                let (routine, words, args) = self.call(step, routine)?;
                // As [`crate::Step`] takes a record.
                let prologue = (self.record(step)?[step::FUNCTION] >> 32 != 0).then_some((args >> 32) as usize);
                let call = (routine.read)(words).ok_or(DAMAGED)?;
                large(worker_stride((routine.scratch)(&call, args as u32 as usize, prologue)) as u64)
            }
            SizeOp::Grain { tasks, ns } => {
                let [tasks, ns] = [known(tasks)?, known(ns)?].map(|n| n.max(0) as u64);
                large(grain(tasks, ns))
            }
            SizeOp::Workers => large(self.workers as u64),
        }
    }

    fn record(&self, at: u32) -> Result<&[u64; step::WORDS], SizesError> {
        self.region.get(at as usize..).and_then(<[u64]>::first_chunk).ok_or(SizesError::Damaged)
    }

    /// The library call of a step: its kind, its words, and the numbers of arguments of the epilogue and the prologue.
    fn call(
        &self,
        at: u32,
        routine: &dyn Fn(usize) -> Option<&'static Routine>,
    ) -> Result<(&'static Routine, &[u64], u64), SizesError> {
        let record = self.record(at)?;
        let kind = record[step::KIND].checked_sub(step::LIBRARY).and_then(|kind| usize::try_from(kind).ok());
        let words = usize::try_from(record[step::CALL]).ok().and_then(|at| at.checked_sub(self.region_at));
        let found = kind.and_then(routine).zip(words.and_then(|at| self.region.get(at..)));
        found.map(|(routine, words)| (routine, words, record[step::ARGS])).ok_or(SizesError::Damaged)
    }
}
