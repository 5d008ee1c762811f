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
                let prologue = (self.record(step)?[step::FUNCTION] >> 32 != 0).then_some(args[1]);
                let call = (routine.read)(words).ok_or(DAMAGED)?;
                large(worker_stride((routine.scratch)(&call, args[0], prologue)) as u64)
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
    ) -> Result<(&'static Routine, &[u64], [usize; 2]), SizesError> {
        let record = self.record(at)?;
        let kind = record[step::KIND].checked_sub(step::LIBRARY).and_then(|kind| usize::try_from(kind).ok());
        let words = usize::try_from(record[step::CALL]).ok().and_then(|at| at.checked_sub(self.region_at));
        let found = kind.and_then(routine).zip(words.and_then(|at| self.region.get(at..)));
        let args = step::arguments(record[step::ARGS]);
        found.map(|(routine, words)| (routine, words, args)).ok_or(SizesError::Damaged)
    }
}

#[cfg(test)]
mod tests {
    use tensorc_abi::sizes::Sign;
    use tensorc_abi::{BatchedGemm, GemmElements, MatrixLayout};
    use tensorc_kernels::{gemm_scratch, gemm_tasks};

    use super::*;
    use crate::routine::GEMM;

    const WORKERS: usize = 3;

    /// Executes all of a program, the instructions from `first` on after those before it, for one input.
    fn executed_from(first: usize, program: &[SizeOp], dims: &[u64], region: &mut [u64]) -> Result<i64, SizesError> {
        let words: Vec<u64> = program.iter().map(|op| op.word().unwrap()).collect();
        let mut values = vec![0; words.len()];
        let mut run = SizeRun { values: &mut values, region, region_at: 100, workers: WORKERS };
        let extent = |input: usize, axis: usize| dims.get(axis).copied().filter(|_| input == 0);
        let routine = |kind: usize| if kind == 0 { Some(&GEMM) } else { None };
        run.execute(&words[..first], 0, &extent, &routine)?;
        run.execute(&words, first, &extent, &routine)
    }

    fn executed(program: &[SizeOp], dims: &[u64], region: &mut [u64]) -> Result<i64, SizesError> {
        executed_from(0, program, dims, region)
    }

    /// The result of one instruction for two constants, which are its operands.
    fn of_two(a: i64, b: i64, op: SizeOp) -> Result<i64, SizesError> {
        executed(&[SizeOp::Constant(a), SizeOp::Constant(b), op], &[], &mut [])
    }

    #[test]
    fn numbers_are_computed_and_those_without_room_are_too_large() {
        assert_eq!(of_two(20, -3, SizeOp::Sum(0, 1)), Ok(17));
        assert_eq!(of_two(20, -3, SizeOp::Product(0, 1)), Ok(-60));
        assert_eq!(of_two(20, 3, SizeOp::Quotient(0, 1)), Ok(6));
        assert_eq!(of_two(20, -3, SizeOp::Greatest(0, 1)), Ok(20));
        assert_eq!(of_two(0, 0, SizeOp::Workers), Ok(WORKERS as i64));
        for (value, aligned) in [(0, 0), (1, 64), (64, 64), (65, 128), (-1, 0)] {
            assert_eq!(of_two(value, 0, SizeOp::Align { value: 0, exponent: 6 }), Ok(aligned));
        }
        let large = (1 << 55) - 1;
        assert_eq!(of_two(large, 1 << 9, SizeOp::Product(0, 1)), Err(SizesError::TooLarge));
        let most = [SizeOp::Extent { input: 0, axis: 0 }, SizeOp::Constant(1)];
        for op in [SizeOp::Sum(0, 1), SizeOp::Align { value: 0, exponent: 3 }] {
            let program = [most[0], most[1], op];
            assert_eq!(executed(&program, &[i64::MAX as u64], &mut []), Err(SizesError::TooLarge));
        }
        assert_eq!(executed(&most, &[1 << 63], &mut []), Err(SizesError::TooLarge));
    }

    #[test]
    fn a_plan_holds_where_all_signs_are_as_required() {
        let [extent, less] = [SizeOp::Extent { input: 0, axis: 1 }, SizeOp::Constant(-4)];
        let program = |sign| [extent, less, SizeOp::Sum(0, 1), SizeOp::Require(2, sign)];
        assert_eq!(executed(&program(Sign::Zero), &[9, 4], &mut []), Ok(0));
        assert_eq!(executed(&program(Sign::Zero), &[9, 5], &mut []), Err(SizesError::Unfit));
        assert_eq!(executed(&program(Sign::Positive), &[9, 5], &mut []), Ok(1));
        assert_eq!(executed(&program(Sign::NonNegative), &[9, 3], &mut []), Err(SizesError::Unfit));
    }

    #[test]
    fn values_of_conditions_are_there_for_what_follows() {
        let program = [
            SizeOp::Extent { input: 0, axis: 0 },
            SizeOp::Require(0, Sign::Positive),
            SizeOp::Constant(4),
            SizeOp::Product(0, 2),
            SizeOp::Store { value: 3, word: 1 },
        ];
        let mut region = [7; 3];
        assert_eq!(executed_from(2, &program, &[5], &mut region), Ok(20));
        assert_eq!(region, [7, 20, 7]);
    }

    #[test]
    fn what_names_nothing_is_damaged() {
        let damaged = [
            SizeOp::Sum(0, 2),
            SizeOp::Product(3, 0),
            SizeOp::Require(9, Sign::Zero),
            SizeOp::Quotient(0, 1),
            SizeOp::Align { value: 0, exponent: 63 },
            SizeOp::Align { value: 0, exponent: 64 },
            SizeOp::Store { value: 0, word: 1 },
            SizeOp::Extent { input: 1, axis: 0 },
            SizeOp::Extent { input: 0, axis: 1 },
            SizeOp::Tasks(0),
            SizeOp::Scratch(1),
        ];
        for op in damaged {
            let program = [SizeOp::Constant(1), SizeOp::Constant(0), op];
            assert_eq!(executed(&program, &[3], &mut [0]), Err(SizesError::Damaged), "{op:?}");
        }
        let mut run = SizeRun { values: &mut [], region: &mut [], region_at: 0, workers: 1 };
        let none = |_: usize| None;
        assert_eq!(run.execute(&[u64::MAX], 0, &|_, _| None, &none), Err(SizesError::Damaged), "no instruction");
        let constant = SizeOp::Constant(1).word().unwrap();
        assert_eq!(run.execute(&[constant], 0, &|_, _| None, &none), Err(SizesError::Damaged), "no room for its value");
    }

    #[test]
    fn steps_are_divided_by_their_time() {
        for (tasks, ns) in [(1, 0), (64, 19_999), (64, 20_000), (1000, 1 << 40), (0, 50_000)] {
            let op = SizeOp::Grain { tasks: 0, ns: 1 };
            assert_eq!(of_two(tasks, ns, op), Ok(grain(tasks as u64, ns as u64) as i64));
        }
        assert_eq!(of_two(-5, -5, SizeOp::Grain { tasks: 0, ns: 1 }), Ok(0));
    }

    #[test]
    fn library_calls_are_measured_with_what_was_stored() {
        const CALL: usize = step::WORDS + 2;
        // Where the words of a call have the rows of the left operand and the result.
        const ROWS: u32 = 3;
        let layout = |cols: i64| MatrixLayout { offset: 0, batch_strides: [0; 3], row_stride: cols, col_stride: 1 };
        let [a, b, c] = [300, 200, 200].map(layout);
        let of =
            |m| BatchedGemm { batch: [1; 3], m, n: 200, k: 300, a, b, c, b_packed: false, elements: GemmElements::F32 };
        for (prologue, args) in [(None, 0u64), (Some(2), 2 << 32)] {
            let mut record = [0; step::WORDS];
            (record[step::KIND], record[step::CALL]) = (step::LIBRARY, (100 + CALL) as u64);
            (record[step::ARGS], record[step::FUNCTION]) = (args, u64::from(prologue.is_some()) << 32);
            for m in [1, 7, 300, 5000] {
                let mut region = record.to_vec();
                region.extend([0; 2]);
                region.extend(of(64).to_words());
                let extent = SizeOp::Extent { input: 0, axis: 0 };
                let program = [extent, SizeOp::Store { value: 0, word: CALL as u32 + ROWS }, SizeOp::Tasks(0)];
                assert_eq!(executed(&program, &[m], &mut region), Ok(gemm_tasks(&of(m)) as i64));
                assert_eq!(region[CALL..], of(m).to_words());
                let program = [extent, SizeOp::Scratch(0)];
                let stride = worker_stride(gemm_scratch(&of(m), prologue));
                assert_eq!(executed(&program, &[m], &mut region), Ok(stride as i64));
            }
        }
        let mut region = [0; CALL + BatchedGemm::WORDS];
        (region[step::KIND], region[step::CALL]) = (step::LIBRARY, 99);
        assert_eq!(executed(&[SizeOp::Tasks(0)], &[], &mut region), Err(SizesError::Damaged), "before the region");
        (region[step::KIND], region[step::CALL]) = (step::LIBRARY + 1, 100 + CALL as u64);
        assert_eq!(executed(&[SizeOp::Tasks(0)], &[], &mut region), Err(SizesError::Damaged), "of no known kind");
    }
}
