//! Size programs: how an image says what its words are for the extents that a caller's tensors have.
//!
//! A plan for many shapes is a region of the image whose words depend on extents. Its *size program* is a list of instructions,
//! one word each, executed in order for the extents of the inputs. Every instruction has a value, a signed number of 64 bits,
//! which later ones name by its position. A sum or product that has no room is an error, as for all numbers of images.

/// An instruction. Operands are positions of instructions before it; words are positions in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SizeOp {
    /// A number, of at most 56 bits.
    Constant(i64),
    /// The extent of an axis of an input.
    Extent {
        /// Which input.
        input: u32,
        /// Which axis.
        axis: u32,
    },
    /// The sum of two values.
    Sum(u32, u32),
    /// The product of two values.
    Product(u32, u32),
    /// The quotient rounded down, of a value that is not negative by a positive one.
    Quotient(u32, u32),
    /// The larger of two values.
    Greatest(u32, u32),
    /// The least multiple of a power of two from a value on.
    Align {
        /// The value.
        value: u32,
        /// The power of two.
        exponent: u32,
    },
    /// Fails unless a value has a sign: the plan does not hold for the extents.
    Require(u32, Sign),
    /// Writes a value into a word.
    Store {
        /// The value.
        value: u32,
        /// The word.
        word: u32,
    },
    /// Number of tasks of the library call of the step whose record begins at a word. Stores before have written the call.
    Tasks(u32),
    /// Bytes from the working memory of one worker to that of the next in that step.
    Scratch(u32),
    /// The least number of a step's tasks worth handing to a thread.
    Grain {
        /// Number of tasks.
        tasks: u32,
        /// Estimated time of all of them on one core, in nanoseconds.
        ns: u32,
    },
    /// How many workers the context has.
    Workers,
}

/// What the sign of a value may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum Sign {
    /// 0.
    Zero,
    /// Not 0.
    NonZero,
    /// Below 0.
    Negative,
    /// 0 or above.
    NonNegative,
    /// Above 0.
    Positive,
    /// 0 or below.
    NonPositive,
}

impl Sign {
    const ALL: [Sign; 6] =
        [Sign::Zero, Sign::NonZero, Sign::Negative, Sign::NonNegative, Sign::Positive, Sign::NonPositive];

    /// Whether a value has it.
    pub const fn holds(self, value: i64) -> bool {
        match self {
            Sign::Zero => value == 0,
            Sign::NonZero => value != 0,
            Sign::Negative => value < 0,
            Sign::NonNegative => value >= 0,
            Sign::Positive => value > 0,
            Sign::NonPositive => value <= 0,
        }
    }
}

/// Bits of an operand in a word: two lie above the number of the operation.
const BITS: u32 = 28;
const CODE_BITS: u32 = 8;

impl SizeOp {
    /// The instruction as a word; `None` if an operand is too large.
    pub fn word(self) -> Option<u64> {
        let (code, a, b) = match self {
            SizeOp::Constant(n) => {
                let word = (n as u64) << CODE_BITS;
                return ((word as i64) >> CODE_BITS == n).then_some(word);
            }
            SizeOp::Extent { input, axis } => (1, input, axis),
            SizeOp::Sum(a, b) => (2, a, b),
            SizeOp::Product(a, b) => (3, a, b),
            SizeOp::Quotient(a, b) => (4, a, b),
            SizeOp::Greatest(a, b) => (5, a, b),
            SizeOp::Align { value, exponent } => (6, value, exponent),
            SizeOp::Require(value, sign) => (7, value, sign as u32),
            SizeOp::Store { value, word } => (8, value, word),
            SizeOp::Tasks(step) => (9, step, 0),
            SizeOp::Scratch(step) => (10, step, 0),
            SizeOp::Grain { tasks, ns } => (11, tasks, ns),
            SizeOp::Workers => (12, 0, 0),
        };
        let fits = a < 1 << BITS && b < 1 << BITS;
        fits.then_some(code | u64::from(a) << CODE_BITS | u64::from(b) << (CODE_BITS + BITS))
    }

    /// The instruction of a word; `None` if it is none.
    pub fn of_word(word: u64) -> Option<SizeOp> {
        let operand = |shift: u32| (word >> shift) as u32 & ((1 << BITS) - 1);
        let (a, b) = (operand(CODE_BITS), operand(CODE_BITS + BITS));
        Some(match word as u8 {
            0 => SizeOp::Constant((word as i64) >> CODE_BITS),
            1 => SizeOp::Extent { input: a, axis: b },
            2 => SizeOp::Sum(a, b),
            3 => SizeOp::Product(a, b),
            4 => SizeOp::Quotient(a, b),
            5 => SizeOp::Greatest(a, b),
            6 => SizeOp::Align { value: a, exponent: b },
            7 => SizeOp::Require(a, *Sign::ALL.get(b as usize)?),
            8 => SizeOp::Store { value: a, word: b },
            9 => SizeOp::Tasks(a),
            10 => SizeOp::Scratch(a),
            11 => SizeOp::Grain { tasks: a, ns: b },
            12 => SizeOp::Workers,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_survive_the_way_into_words_and_back() {
        let most = (1 << BITS) - 1;
        let mut all = vec![
            SizeOp::Constant(0),
            SizeOp::Constant(-1),
            SizeOp::Constant((1 << 55) - 1),
            SizeOp::Constant(-(1 << 55)),
            SizeOp::Extent { input: 3, axis: most },
            SizeOp::Sum(1, most),
            SizeOp::Product(most, 0),
            SizeOp::Quotient(5, 6),
            SizeOp::Greatest(7, 8),
            SizeOp::Align { value: 9, exponent: 6 },
            SizeOp::Store { value: most, word: most },
            SizeOp::Tasks(11),
            SizeOp::Scratch(12),
            SizeOp::Grain { tasks: 13, ns: 14 },
            SizeOp::Workers,
        ];
        all.extend(Sign::ALL.map(|sign| SizeOp::Require(4, sign)));
        for op in all {
            assert_eq!(op.word().and_then(SizeOp::of_word), Some(op));
        }
        assert_eq!(SizeOp::Constant(1 << 55).word(), None);
        assert_eq!(SizeOp::Sum(0, most + 1).word(), None);
        assert_eq!(SizeOp::of_word(13), None);
        assert_eq!(SizeOp::of_word(7 | 6 << (CODE_BITS + BITS)), None);
    }
}
