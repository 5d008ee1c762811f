//! f32 matrices that stay in memory in the form of [`BlockedWeights`].

use std::ops::Range;
use std::sync::{Mutex, OnceLock, PoisonError};

use bytes::Bytes;

use crate::blocked::{BlockedParts, BlockedWeights};
use crate::memory::{self, AlignedBuffer, AllocError};

/// A row-major matrix `[n, k]` of f32, whose rows are the columns of the packed form.
#[derive(Debug)]
pub struct BlockedMatrix {
    form: BlockedWeights,
    k: usize,
    n: usize,
    packed: Bytes,
    /// Memory for all elements, reserved from the start because [`super::Content::bytes`] cannot fail. It takes none until it
    /// is written.
    room: Mutex<AlignedBuffer>,
    unpacked: OnceLock<Bytes>,
}

impl BlockedMatrix {
    /// Packs a matrix; `None` if its form is not valid or it is too large.
    ///
    /// # Errors
    /// There is no memory for it.
    ///
    /// # Panics
    /// The parts do not hold all of it.
    pub fn pack(
        form: BlockedWeights,
        [n, k]: [usize; 2],
        parts: &BlockedParts<'_>,
    ) -> Result<Option<BlockedMatrix>, AllocError> {
        let bytes = form.is_valid().then(|| form.bytes(k, n)).flatten();
        let elements = n.checked_mul(k).and_then(|len| len.checked_mul(size_of::<f32>()));
        let (Some(bytes), Some(elements)) = (bytes, elements) else { return Ok(None) };
        let mut packed = AlignedBuffer::mapped(bytes as u64, "packed weights")?;
        memory::populate(packed.as_mut_slice());
        form.pack(k, n, parts, packed.as_mut_slice());
        let room = Mutex::new(AlignedBuffer::mapped(elements as u64, "a constant")?);
        let packed = Bytes::from_owner(packed);
        Ok(Some(BlockedMatrix { form, k, n, packed, room, unpacked: OnceLock::new() }))
    }

    /// How the numbers are packed.
    pub fn form(&self) -> BlockedWeights {
        self.form
    }

    /// Rows and columns of the matrix: columns of the packed form, and terms.
    pub fn dims(&self) -> [usize; 2] {
        [self.n, self.k]
    }

    /// The packed form.
    pub fn packed(&self) -> &Bytes {
        &self.packed
    }

    /// Bytes of all elements.
    pub(super) fn len(&self) -> usize {
        self.n * self.k * size_of::<f32>()
    }

    /// All elements, which stay in memory then.
    pub(super) fn bytes(&self) -> &Bytes {
        self.unpacked.get_or_init(|| {
            let room = &mut *self.room.lock().unwrap_or_else(PoisonError::into_inner);
            let mut memory = std::mem::replace(room, AlignedBuffer::empty());
            self.unpack(0..self.n * self.k, memory.as_mut_slice());
            Bytes::from_owner(memory)
        })
    }

    /// The elements that a range of bytes touches, and where it begins in them.
    pub(super) fn part(&self, range: Range<usize>) -> Result<(AlignedBuffer, usize), AllocError> {
        const SIZE: usize = size_of::<f32>();
        let elements = range.start / SIZE..range.end.div_ceil(SIZE);
        let mut memory = AlignedBuffer::mapped((elements.len() * SIZE) as u64, "a part of packed weights")?;
        let start = range.start - elements.start * SIZE;
        self.unpack(elements, memory.as_mut_slice());
        Ok((memory, start))
    }

    fn unpack(&self, elements: Range<usize>, to: &mut [u8]) {
        let mut at = elements.start;
        while at < elements.end {
            let (row, column) = (at / self.k, at % self.k);
            let end = elements.end.min((row + 1) * self.k);
            let to = &mut to[(at - elements.start) * size_of::<f32>()..(end - elements.start) * size_of::<f32>()];
            self.form.unpack([self.n, self.k], &self.packed, row, column, to);
            at = end;
        }
    }
}
