//! Records of a model that runs in parts, since its shapes depend on values.

/// Positions in the record of a model that runs in parts, since its shapes depend on values. Values are numbered; they live in a
/// run, whatever part or call of the host computes or reads them.
pub mod parts {
    /// Number of parts, and the offset of their [`super::part`] records.
    pub const PARTS: usize = 0;
    /// Number of values, and the offset of their [`super::value`] records.
    pub const VALUES: usize = 2;
    /// Number of numbers that decide shapes, in the order in which they become known, and the offset of their [`super::number`]
    /// records.
    pub const NUMBERS: usize = 4;
    /// Offset of a [`super::result`] record for each output.
    pub const RESULTS: usize = 6;
    /// Bytes of memory for values.
    pub const BYTES: usize = 7;
    /// The most words that a call of the host notes what it finds in.
    pub const CALL_WORDS: usize = 8;
    /// Words of the record, as far as all versions have it.
    pub const WORDS: usize = 9;
    /// The first version that has the record.
    pub const SINCE: crate::image::ImageVersion = crate::image::ImageVersion { major: 1, minor: 8 };
    /// Bodies of branches and loops that the host runs: their number, and the offset of a list. An entry is the offset of a body's image,
    /// which is that of a model in parts.
    pub const BODIES: usize = WORDS;
    /// The first version that has bodies.
    pub const BODIES_SINCE: crate::image::ImageVersion = crate::image::ImageVersion { major: 1, minor: 12 };
}

/// Positions in the record of a part.
pub mod part {
    /// Offset of its image, which is as that of a model in one part: with one input of one axis for each number that is known,
    /// which is the extent and has no elements that are read, and then the inputs of the part.
    pub const IMAGE: usize = 0;
    /// How many numbers are known before it, from the first on; none before the first part, whose inputs are the model's.
    pub const NUMBERS: usize = 1;
    /// Number of its inputs, and the offset of the values that they are.
    pub const INPUTS: usize = 2;
    /// Number of its outputs, and the offset of the values that they are.
    pub const OUTPUTS: usize = 4;
    /// Number of calls of the host behind it, and the offset of their [`super::call`] records.
    pub const CALLS: usize = 6;
    /// Words of the record.
    pub const WORDS: usize = 8;
}

/// Positions in the record of a value.
pub mod value {
    /// [`INPUT`], [`OUTPUT`], [`MEMORY`], [`CONSTANT`] or [`EXTENTS`].
    pub const HOME: usize = 0;
    /// Which input or output; bytes from the start of the memory of values; the offset of extents and, behind these, elements.
    pub const AT: usize = 1;
    /// The most bytes that it has.
    pub const BYTES: usize = 2;
    /// [`crate::DType`] as a number.
    pub const DTYPE: usize = 3;
    /// Number of dimensions, at most [`crate::image::MAX_RANK`].
    pub const RANK: usize = 4;
    /// Words of the record.
    pub const WORDS: usize = 5;

    /// An input of the model.
    pub const INPUT: u64 = 0;
    /// In the memory of an output of the model.
    pub const OUTPUT: u64 = 1;
    /// In the memory of a context.
    pub const MEMORY: u64 = 2;
    /// In the image.
    pub const CONSTANT: u64 = 3;
    /// Nowhere: of what the host finds, only the extents are of use.
    pub const EXTENTS: u64 = 4;
}

/// Positions in the record of a number that decides shapes.
pub mod number {
    /// Offset of its name.
    pub const NAME: usize = 0;
    /// The least that it may be.
    pub const LEAST: usize = 1;
    /// The most that it may be.
    pub const MOST: usize = 2;
    /// The value that it is a number of.
    pub const VALUE: usize = 3;
    /// 0 if it is an extent of the value, 1 if it is an element.
    pub const IS_ELEMENT: usize = 4;
    /// The axis, or the position of the element.
    pub const POSITION: usize = 5;
    /// 1 if what is greater than [`MOST`] is as good as that.
    pub const SATURATES: usize = 6;
    /// Words of the record.
    pub const WORDS: usize = 7;
}

/// Positions in the record of a call of the host.
pub mod call {
    /// Offset of the name of its node.
    pub const NAME: usize = 0;
    /// The words of its [`crate::FindOp`]; or [`FLOW`], the offset of a [`super::hosted`] record, and 0.
    pub const OP: usize = 1;
    /// Number of operands, and the offset of the values that they are, each counted from 1; 0 for one that is not given.
    pub const OPERANDS: usize = 4;
    /// The same of results.
    pub const RESULTS: usize = 6;
    /// Words of the record.
    pub const WORDS: usize = 8;
    /// Most operands or results, but for branches and loops.
    pub const MAX: usize = 8;
    /// In place of the number of a [`crate::FindOp`]: a branch or loop. Since version 1.12.
    pub const FLOW: u64 = 1 << 16;
}

/// Positions in the record of an output of a model that runs in parts.
pub mod result {
    /// The value that it is.
    pub const VALUE: usize = 0;
    /// The most bytes that it has.
    pub const BYTES: usize = 1;
    /// Offset of the greatest extents that it has.
    pub const DIMS: usize = 2;
    /// Words of the record.
    pub const WORDS: usize = 3;
}

/// Positions in the record of a branch or loop that the host runs. Operands are a condition of what has one, what a loop carries, what
/// it scans, and what its bodies use besides; results are what it carries, and rows, or what a branch gives.
pub mod hosted {
    /// 0 of a branch, 1 of a loop.
    pub const IS_LOOP: usize = 0;
    /// Its bodies, two of a branch or one of a loop: their number, and the offset of a list of positions in [`super::parts::BODIES`].
    pub const BODIES: usize = 1;
    /// 1 of a loop that ends when its condition fails.
    pub const CONDITIONAL: usize = 3;
    /// How many values a loop carries.
    pub const CARRIED: usize = 4;
    /// How many values it scans, and the offset of a word for each: 1 if from the last row to the first.
    pub const SCANNED: usize = 5;
    /// The values in which the body of a loop leaves its condition, its rows, and what it carries: their number, and the offset of
    /// theirs.
    pub const MADE: usize = 7;
    /// The values in which what a loop carries lies every other iteration: their number, and the offset of theirs.
    pub const HELD: usize = 9;
    /// The extents that rows have of which there are none, one row after the other: how many there are, and their offset.
    pub const NO_ROWS: usize = 11;
    /// How many values a loop stacks, and the offset of a word for each: 1 if from the last row to the first.
    pub const STACKED: usize = 13;
    /// Words of the record.
    pub const WORDS: usize = 15;
}
