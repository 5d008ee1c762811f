//! What steps of a plan name: buffers, generated kernels, and the kernels around a library call.

/// Position of a buffer in [`crate::Plan::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(pub u32);

/// Position of a generated kernel in [`crate::Plan::kernels`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelId(pub u32);

/// A use of a buffer by a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arg {
    /// The buffer.
    pub buffer: BufferId,
    /// Whether the step writes it.
    pub writes: bool,
}

/// A generated kernel applied to each finished block of a library kernel's output.
#[derive(Clone, Debug, PartialEq)]
pub struct Epilogue {
    /// The generated kernel.
    pub kernel: KernelId,
    /// Its arguments, in the order of its parameters; for attention those behind the tile of scores. Only the result of
    /// the call is written.
    pub args: Vec<Arg>,
    /// Whether the sums lie apart from the result, in memory of the library that is a parameter before the others. The result
    /// may then have another type. Only products and convolutions of bytes, whose sums are i32, have such epilogues.
    pub apart: bool,
}

impl Epilogue {
    /// The word of an epilogue in the text form.
    pub const WORD: &str = "epilogue";
    /// That of one whose sums lie apart.
    pub const APART: &str = "epilogue_apart";

    /// The word of this one.
    pub const fn word(&self) -> &'static str {
        if self.apart { Self::APART } else { Self::WORD }
    }
}

/// A generated kernel that computes blocks of the left operand of a library kernel where that reads them, so that
/// the operand lies in no buffer. Its kernel takes memory of the library's, then `args`, all of them read
/// ([`crate::library::epilogue_scalars`]).
#[derive(Clone, Debug, PartialEq)]
pub struct Prologue {
    /// The generated kernel.
    pub kernel: KernelId,
    /// Its arguments behind the memory of the library, all of them read.
    pub args: Vec<Arg>,
}

/// The left operand of a library kernel.
#[derive(Clone, Debug, PartialEq)]
pub enum LeftOperand {
    /// It lies in a buffer.
    Buffer(BufferId),
    /// It is computed as it is read.
    Computed(Prologue),
}

impl From<BufferId> for LeftOperand {
    fn from(id: BufferId) -> LeftOperand {
        LeftOperand::Buffer(id)
    }
}

impl LeftOperand {
    /// The buffer, if it lies in one.
    pub fn buffer(&self) -> Option<BufferId> {
        match self {
            LeftOperand::Buffer(id) => Some(*id),
            LeftOperand::Computed(_) => None,
        }
    }

    /// What computes it, if it lies in no buffer.
    pub fn prologue(&self) -> Option<&Prologue> {
        match self {
            LeftOperand::Buffer(_) => None,
            LeftOperand::Computed(prologue) => Some(prologue),
        }
    }
}
