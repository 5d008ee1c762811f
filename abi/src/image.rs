//! The image of a compiled model: what its executor reads, as a table of little-endian 64-bit words.
//!
//! A program that embeds a compiled model has no allocator to spare and no parser, so plans become tables that
//! are read where they lie. The compiler writes them (`tensorc::aot`), the run-time library of artifacts
//! (`rt/`) reads them; [`Image`] is both sides' description of the layout. Offsets count words from the start
//! of the image. Texts are a length in bytes, then the bytes, padded with zeros.
//!
//! One image holds several *variants* of a model: plans for different extents of its dynamic dimensions. A plan for many extents
//! has a region of the image, of which a context keeps a copy with the words of the extents that it runs ([`open`]).
//! Weights are shared by all; their offsets count bytes in the model's one block of weights.

mod in_parts;

use crate::conv::ConvVariant;

pub use self::in_parts::{call, hosted, number, part, parts, result, value};

/// First word of every image.
pub const MAGIC: u64 = u64::from_le_bytes(*b"tcimage\0");
/// Version of the layout. Readers accept their own major version with any minor version up to their own.
pub const VERSION: ImageVersion = ImageVersion { major: 1, minor: 18 };
/// Most dimensions of a tensor in an image.
pub const MAX_RANK: usize = 16;

/// A version of a format: an older minor version of the same major one can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageVersion {
    /// Readers and writers of different major versions do not understand each other.
    pub major: u32,
    /// Grows with every addition that older readers do not know.
    pub minor: u32,
}

impl ImageVersion {
    /// The version as a word: the major number is the high half, the minor one the low half.
    pub const fn word(self) -> u64 {
        (self.major as u64) << 32 | self.minor as u64
    }

    /// The inverse of [`ImageVersion::word`].
    pub const fn of_word(word: u64) -> ImageVersion {
        ImageVersion { major: (word >> 32) as u32, minor: word as u32 }
    }

    /// Whether a reader of this version understands what a writer of another has written.
    pub const fn reads(self, written: ImageVersion) -> bool {
        self.major == written.major && written.minor <= self.minor
    }
}

/// Positions in the header of an image.
pub mod header {
    /// [`super::MAGIC`].
    pub const MAGIC: usize = 0;
    /// [`super::VERSION`] of the writer, as [`super::ImageVersion::word`] gives it.
    pub const VERSION: usize = 1;
    /// Words of the whole image.
    pub const LEN: usize = 2;
    /// [`super::checksum`] of the words from [`NAME`] on.
    pub const CHECKSUM: usize = 3;
    /// Offset of the model's name.
    pub const NAME: usize = 4;
    /// Bytes of the block of weights, and the two halves of its hash (XXH3, 128 bits).
    pub const WEIGHTS: usize = 5;
    /// Number of inputs, and the offset of their [`super::tensor`] records.
    pub const INPUTS: usize = 8;
    /// Number of outputs, and the offset of their [`super::tensor`] records.
    pub const OUTPUTS: usize = 10;
    /// Number of dynamic dimensions, and the offset of their [`super::dim`] records; behind these since version 1.7 the step from
    /// one extent of each to the next.
    pub const DIMS: usize = 12;
    /// Number of variants, and the offset of the offsets of their [`super::variant`] records.
    pub const VARIANTS: usize = 14;
    /// Number of generated kernels.
    pub const KERNELS: usize = 16;
    /// Offset of the [`super::gpu`] record of a model for a GPU, or 0. Since version 1.1.
    pub const GPU: usize = 17;
    /// Offset of the [`super::parts`] record of a model whose shapes depend on values, or 0. Such a model has no variants of its own.
    /// Since version 1.8.
    pub const PARTS: usize = 18;
    /// Words of the header.
    pub const WORDS: usize = 19;
}

/// Positions in the record of the code of a model for a GPU.
pub mod gpu {
    /// Compute capability that the code is for, written as ten times its major and once its minor number.
    pub const CAPABILITY: usize = 0;
    /// 1 if later GPUs execute it, too; 0 if only those of this very capability do.
    pub const LATER: usize = 1;
    /// Offset of a [`super::launch`] record for every kernel.
    pub const LAUNCHES: usize = 2;
    /// Bytes of the PTX with the zero at its end, and the two halves of its hash (XXH3, 128 bits).
    pub const PTX: usize = 3;
    /// The same of the machine code, all zeros if there is none.
    pub const CUBIN: usize = 6;
    /// Words of the record.
    pub const WORDS: usize = 9;
    /// Behind the record since version 1.2: number of [`super::matrix`] records, and their offset.
    pub const MATRICES: usize = WORDS;
    /// Behind those since version 1.3: number of [`super::batch`] records, and their offset.
    pub const BATCHES: usize = MATRICES + 2;
}

/// Positions in the record of a matrix that the copy engine is told of when a kernel is launched: a parameter
/// behind the addresses, in the order of the records. Rows of its boxes have 128 bytes, in pieces of 16 bytes permuted by row.
pub mod matrix {
    /// Number of the kernel.
    pub const KERNEL: usize = 0;
    /// Which of the kernel's parameters it lies in.
    pub const ARGUMENT: usize = 1;
    /// 0 if elements are f16, 1 if they are bf16; since version 1.3 also 2, for f32 that is rounded to 10 bits of fraction.
    pub const ELEMENT: usize = 2;
    /// Rows of the matrix.
    pub const ROWS: usize = 3;
    /// Columns of the matrix; neighbours lie side by side.
    pub const COLUMNS: usize = 4;
    /// Elements from one row to the next.
    pub const STRIDE: usize = 5;
    /// Rows of a box.
    pub const BOX_ROWS: usize = 6;
    /// Words of the record.
    pub const WORDS: usize = 7;
    /// Most of a kernel.
    pub const MAX: usize = 4;
}

/// Positions in the record of an axis along which a matrix lies beside others: an axis more of what the copy engine is told, of
/// which a box has one position. Those of a matrix are in the order of their distances, and nearer ones come before rows.
pub mod batch {
    /// The number of the [`super::matrix`] record.
    pub const MATRIX: usize = 0;
    /// How many matrices.
    pub const EXTENT: usize = 1;
    /// Elements from one to the next.
    pub const STRIDE: usize = 2;
    /// Words of the record.
    pub const WORDS: usize = 3;
    /// Most of a matrix.
    pub const MAX: usize = 3;
}

/// Positions in the record of how a kernel is launched. Its parameters are addresses.
pub mod launch {
    /// Offset of its name, a text that ends with a zero.
    pub const NAME: usize = 0;
    /// Blocks of the grid, which has one dimension.
    pub const BLOCKS: usize = 1;
    /// Threads of a block.
    pub const THREADS: usize = 2;
    /// Dynamic shared memory of a block, in bytes.
    pub const SHARED_BYTES: usize = 3;
    /// Number of parameters.
    pub const PARAMETERS: usize = 4;
    /// Words of the record.
    pub const WORDS: usize = 5;
}

/// Positions in the record of an input or output.
pub mod tensor {
    /// Offset of its name.
    pub const NAME: usize = 0;
    /// [`crate::DType`] as a number.
    pub const DTYPE: usize = 1;
    /// Number of dimensions, at most [`super::MAX_RANK`].
    pub const RANK: usize = 2;
    /// Words of the record.
    pub const WORDS: usize = 3;
}

/// Positions in the record of a dynamic dimension.
pub mod dim {
    /// Offset of its name.
    pub const NAME: usize = 0;
    /// Least extent.
    pub const MIN: usize = 1;
    /// Greatest extent.
    pub const MAX: usize = 2;
    /// Words of the record.
    pub const WORDS: usize = 3;
    /// The first version that has steps behind the records.
    pub const STEPS_SINCE: super::ImageVersion = super::ImageVersion { major: 1, minor: 7 };
}

/// Positions in the record of a variant.
pub mod variant {
    /// Bytes of the arena that intermediate tensors take.
    pub const ARENA_BYTES: usize = 0;
    /// Number of steps, and the offset of their [`super::step`] records.
    pub const STEPS: usize = 1;
    /// Number of slots of the argument table, and the offset of their [`super::slot`] records.
    pub const SLOTS: usize = 3;
    /// Offset of the extents of all inputs, then all outputs, one after the other.
    pub const SHAPES: usize = 5;
    /// Words of the record.
    pub const WORDS: usize = 6;
    /// Behind the record since version 1.5: number of [`super::check`] records, and their offset.
    pub const CHECKS: usize = WORDS;
    /// Behind those since version 1.7: the offset of the [`super::open`] record of a plan for many extents, or 0.
    pub const OPEN: usize = CHECKS + 2;
}

/// Positions in the record of a plan for many extents. [`variant::ARENA_BYTES`] is the most that intermediate tensors take for
/// any of them.
pub mod open {
    /// The first word of the region, and how many there are: every word of the plan that depends on extents.
    pub const REGION: usize = 0;
    /// Number of instructions of the size program ([`crate::sizes`]), and their offset. The value of the last is the bytes of the
    /// arena, with the working memory of all workers.
    pub const PROGRAM: usize = 2;
    /// Number of instructions at its beginning that only tell whether the plan holds: they store nothing, and read no word.
    pub const CONDITIONS: usize = 4;
    /// Number of [`super::scratch`] records, and their offset: the working memory of steps where it reaches the furthest for some
    /// extents.
    pub const SCRATCH: usize = 5;
    /// Words of the record.
    pub const WORDS: usize = 7;
    /// The first version that has the record.
    pub const SINCE: super::ImageVersion = super::ImageVersion { major: 1, minor: 7 };
}

/// Positions in the record of a check of run-time values.
pub mod check {
    /// Bytes from the start of the arena to a signed word, which [`super::found`] reads when the steps have run.
    pub const OFFSET: usize = 0;
    /// Offset of what a message says before the value.
    pub const BEFORE: usize = 1;
    /// Offset of what a message says behind the value.
    pub const BEHIND: usize = 2;
    /// Words of the record.
    pub const WORDS: usize = 3;
    /// The first version that has the record.
    pub const SINCE: super::ImageVersion = super::ImageVersion { major: 1, minor: 5 };
}

/// The value that a word of a check says breaks the requirement; `None` if none does.
///
/// Each element v of the operand has a code: 0 if v is allowed, else 2v + 1 for v ≥ 0 and -2v for v < 0. The word is the
/// maximum of all codes. Elements beyond ±2^61 are clamped to that.
pub const fn found(word: i64) -> Option<i64> {
    match word {
        0 => None,
        word if word % 2 != 0 => Some(word / 2),
        word => Some(-(word / 2)),
    }
}

/// Positions in the record of a slot: an address of the argument table.
pub mod slot {
    /// [`INPUT`], [`OUTPUT`], [`WEIGHTS`], [`ARENA`] or [`REGION`].
    pub const HOME: usize = 0;
    /// Which input or output.
    pub const INDEX: usize = 1;
    /// Bytes from the start of it.
    pub const OFFSET: usize = 2;
    /// Words of the record.
    pub const WORDS: usize = 3;

    /// An input, in memory of the caller's.
    pub const INPUT: u64 = 0;
    /// An output, in memory of the caller's.
    pub const OUTPUT: u64 = 1;
    /// The block of weights.
    pub const WEIGHTS: u64 = 2;
    /// The memory of intermediate tensors and working memory.
    pub const ARENA: u64 = 3;
    /// In no image: plans of models compiled ahead of time have none.
    pub const STATE: u64 = 4;
    /// The region of a plan for many extents, which holds constants that depend on them. Since version 1.7.
    pub const REGION: u64 = 5;
}

/// Positions in the record of a step.
pub mod step {
    /// [`KERNEL`], [`COPY`], [`LAUNCH`], or [`LIBRARY`] and the position in [`super::LIBRARIES`] of a library kernel.
    pub const KIND: usize = 0;
    /// Offset of the name of the node it came from.
    pub const NAME: usize = 1;
    /// First of its consecutive slots.
    pub const FIRST_SLOT: usize = 2;
    /// Independent pieces of work; of a copy, bytes. Of a library kernel, as the library of the writer divides the call: that of the
    /// reader has its own division.
    pub const TASKS: usize = 3;
    /// Least number of tasks worth handing to a thread.
    pub const GRAIN: usize = 4;
    /// The kernel; of a library kernel, one more than the kernel of the epilogue and 0 if there is none, and in the high
    /// half the same of the prologue (since version 1.2). With a prologue, the left operand has no slot.
    pub const FUNCTION: usize = 5;
    /// Number of arguments of the epilogue, and in the high half of those of the prologue, whose slots come last.
    pub const ARGS: usize = 6;
    /// Set in [`ARGS`] if the sums that the epilogue reads lie apart from the result (since version 1.16).
    pub const APART: u64 = 1 << 31;
    /// Offset of the words of the call of a library kernel, as [`crate::BatchedGemm::to_words`] and its like give them.
    /// Before them lie [`super::scratch::WORDS`] about its working memory (since version 1.4).
    pub const CALL: usize = 7;
    /// Words of the record.
    pub const WORDS: usize = 8;

    /// The numbers of arguments of the epilogue and of the prologue that [`ARGS`] has.
    pub const fn arguments(word: u64) -> [usize; 2] {
        [(word & (APART - 1)) as usize, (word >> 32) as usize]
    }

    /// A generated kernel on the processor.
    pub const KERNEL: u64 = 0;
    /// A copy of the first slot's memory to the second's.
    pub const COPY: u64 = 1;
    /// The first library kernel: the kinds of library kernels begin here.
    pub const LIBRARY: u64 = 2;
    /// A kernel on a GPU; its slots are its parameters. Since version 1.1.
    pub const LAUNCH: u64 = 256;
    /// Nested plans, with [`CALL`] the offset of a [`super::flow`] record. Since version 1.6.
    pub const FLOW: u64 = 257;
    /// A function of the host. In no image.
    pub const HOST: u64 = 512;
    /// The last kind of this version.
    pub const LAST: u64 = FLOW;
}

/// Positions in the record of the working memory of a call. In images before version 1.4, which have none, it lies behind
/// the arena.
pub mod scratch {
    /// Where that of the first worker begins in the arena, in bytes.
    pub const OFFSET: usize = 0;
    /// Bytes from a worker's to that of the next.
    pub const STRIDE: usize = 1;
    /// Words of the record.
    pub const WORDS: usize = 2;
    /// The first version that has the record.
    pub const SINCE: super::ImageVersion = super::ImageVersion { major: 1, minor: 4 };
}

/// Positions in the record of a step with nested plans. Behind it lie the bytes of each carried value; of each scanned
/// operand the bytes of a row, and 1 if the last row comes first; the same of each stacked result. In images, further
/// [`flow::BODY_WORDS`] for each body follow.
pub mod flow {
    /// [`IF`] or [`LOOP`].
    pub const KIND: usize = 0;
    /// Most iterations.
    pub const TRIPS: usize = 1;
    /// Whether there is a condition.
    pub const CONDITIONAL: usize = 2;
    /// Number of carried values.
    pub const CARRIED: usize = 3;
    /// Number of scanned operands.
    pub const SCANNED: usize = 4;
    /// Number of stacked results.
    pub const STACKED: usize = 5;
    /// Number of operands of the step.
    pub const OPERANDS: usize = 6;
    /// Words of the record.
    pub const WORDS: usize = 7;

    /// Two bodies, of which a condition chooses one.
    pub const IF: u64 = 0;
    /// One body, repeated.
    pub const LOOP: u64 = 1;

    /// Of each body: its number of steps, and the offset of their [`super::step`] records; its number of slots, and the
    /// offset of their [`super::slot`] records; bytes of its arena.
    pub const BODY_WORDS: usize = 5;
    /// Of these, where the bytes of its arena stand.
    pub const ARENA_BYTES: usize = 4;

    /// Bytes at the start of the step's working memory: the number of the iteration, and the condition.
    pub const HEADER_BYTES: usize = 64;
    /// Where the condition lies.
    pub const CONDITION_BYTE: usize = 8;

    /// Where the arena of a body begins in the step's working memory: behind the header and a table of so many arguments.
    /// `None` if no memory is as large.
    pub const fn arena_offset(slots: u64) -> Option<u64> {
        const ALIGN: u64 = 128;
        let Some(table) = slots.checked_mul(size_of::<u64>() as u64) else { return None };
        let Some(end) = table.checked_add(HEADER_BYTES as u64) else { return None };
        end.checked_next_multiple_of(ALIGN)
    }
}

/// Symbol names of library kernels; a program links the kernels that its model calls. A call is described by words of
/// [`crate::BatchedGemm`] (products of f32, f64 and bytes, and with blocked weights), [`crate::Attention`] (second) or [`crate::Conv2d`]. Positions never
/// change; new kernels come last.
pub const LIBRARIES: [&str; 7 + ConvVariant::ALL.len()] = {
    use ConvVariant::{Blocked, BlockedDepthwise, Bytes, Correlate, Grouped, Planar, Rounded, Rows, Windows, Winograd};
    let [windows, planar, correlate] = [Windows.symbol(), Planar.symbol(), Correlate.symbol()];
    let [blocked, depthwise, winograd] = [Blocked.symbol(), BlockedDepthwise.symbol(), Winograd.symbol()];
    let [gemm, attention, double, bytes] = ["tc_rt_gemm", "tc_rt_attention", "tc_rt_gemm_f64", "tc_rt_gemm_bytes"];
    let (grouped, rows) = (Grouped.symbol(), Rows.symbol());
    let [product, convolution] = ["tc_rt_gemm_bf16", Rounded.symbol()];
    [
        gemm,
        attention,
        windows,
        planar,
        correlate,
        blocked,
        depthwise,
        winograd,
        grouped,
        double,
        rows,
        bytes,
        "tc_rt_gemm_blocked",
        product,
        convolution,
        "tc_rt_attention_bf16",
        Bytes.symbol(),
    ]
};

/// Positions of words in the file of a model's weights: a header, then the block, aligned to [`weights::ALIGN`].
pub mod weights {
    /// [`FIRST`].
    pub const MAGIC: usize = 0;
    /// [`super::VERSION`] of the writer.
    pub const VERSION: usize = 1;
    /// Bytes of the block, and the two halves of its hash, as [`super::header::WEIGHTS`] has them.
    pub const BLOCK: usize = 2;
    /// First word of every file of weights.
    pub const FIRST: u64 = u64::from_le_bytes(*b"tcweight");
    /// Bytes of the header; those behind the words are zero.
    pub const HEADER_BYTES: usize = 64;
    /// Alignment of weights in the block, and of the block in its file, in bytes.
    pub const ALIGN: usize = 64;
}

/// Why an image cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageError {
    /// The first word, the length or the checksum is wrong.
    Damaged,
    /// The image was written by a compiler of another version.
    Version(ImageVersion),
}

/// A checked image.
#[derive(Clone, Copy)]
pub struct Image<'w> {
    words: &'w [u64],
    /// Words that are read in place of those from `over_at` on.
    over: &'w [u64],
    over_at: usize,
}

/// FNV-1a over words: finds damage, not forgery.
pub fn checksum(words: &[u64]) -> u64 {
    words.iter().fold(0xcbf2_9ce4_8422_2325, |hash, word| (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3))
}

impl<'w> Image<'w> {
    /// Checks what an image says of itself.
    ///
    /// # Errors
    /// It is damaged, or of a version that this reader does not know.
    pub fn new(words: &'w [u64]) -> Result<Image<'w>, ImageError> {
        if words.len() < header::WORDS || words[header::MAGIC] != MAGIC {
            return Err(ImageError::Damaged);
        }
        let written = ImageVersion::of_word(words[header::VERSION]);
        if !VERSION.reads(written) {
            return Err(ImageError::Version(written));
        }
        let whole = usize::try_from(words[header::LEN]).ok().and_then(|len| words.get(..len));
        let Some(words) = whole.filter(|w| w.len() >= header::WORDS) else { return Err(ImageError::Damaged) };
        match checksum(&words[header::NAME..]) == words[header::CHECKSUM] {
            true => Ok(Image { words, over: &[], over_at: 0 }),
            false => Err(ImageError::Damaged),
        }
    }

    /// The image with other words in place of its own from a position on.
    pub fn with(self, over_at: usize, over: &'w [u64]) -> Image<'w> {
        Image { over, over_at, ..self }
    }

    /// A word; 0 outside the image.
    pub fn word(&self, at: usize) -> u64 {
        self.tail(at).first().copied().unwrap_or(0)
    }

    /// A word that counts or is an offset.
    pub fn size(&self, at: usize) -> usize {
        self.word(at) as usize
    }

    /// Some words of a record; `None` outside the image.
    pub fn record<const N: usize>(&self, at: usize) -> Option<&'w [u64; N]> {
        self.tail(at).first_chunk()
    }

    /// Words from a position on; none outside the image.
    pub fn words(&self, at: usize, len: usize) -> &'w [u64] {
        self.tail(at).get(..len).unwrap_or(&[])
    }

    /// All words from a position on: up to the end of those in place of others, if it lies there.
    // Once in a program, which is to be small.
    #[inline(never)]
    pub fn tail(&self, at: usize) -> &'w [u64] {
        let over = at.checked_sub(self.over_at).and_then(|at| self.over.get(at..)).filter(|over| !over.is_empty());
        over.or_else(|| self.words.get(at..)).unwrap_or(&[])
    }

    /// A text; empty if it is not in the image.
    pub fn text(&self, at: usize) -> &'w str {
        let bytes = self.size(at);
        let words = self.words(at.saturating_add(1), bytes.div_ceil(8));
        if words.len() * 8 < bytes {
            return "";
        }
        // SAFETY: every bit pattern is a byte, and bytes need no alignment.
        let (_, all, _) = unsafe { words.align_to::<u8>() };
        core::str::from_utf8(&all[..bytes]).unwrap_or("")
    }
}
