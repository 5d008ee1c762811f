//! What importing a model may take: bounds of the caller's, and those that hold always because a file of a few bytes can
//! ask for any amount of memory.

use super::error::OnnxError;

/// Bounds for the import of one model; `None` leaves a resource to what the machine has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImportLimits {
    /// Nodes, with functions and branches written out; never more than [`MAX_NODES`].
    pub nodes: Option<u64>,
    /// Bytes of files that are read, and of what is made of them: decoded messages, tensors that are not stored as they are
    /// used, and copies of the bodies of functions.
    pub bytes: Option<u64>,
}

/// Nodes of any model, with functions and branches written out. Functions that call each other twice grow exponentially.
pub const MAX_NODES: u64 = 1 << 20;

/// Bytes of copies that writing out functions may make. Without a bound an attribute of a megabyte in a function of a
/// kilobyte, called a million times, would need a terabyte.
const MAX_COPIED_BYTES: u64 = 1 << 30;

/// Nodes that are looked at to decide branches and loops, each as often as it is; takes seconds. A loop whose condition is
/// computed takes as many steps for every iteration as there were iterations before.
const MAX_ANALYSED_NODES: u64 = 1 << 21;

/// Bytes that the dense forms of a model's sparse tensors take at most, beyond [`DENSE_PER_STORED`] for each that is stored.
const FREE_DENSE_BYTES: u64 = 64 << 20;

/// Bytes of dense form that each stored byte of a sparse tensor may make. Tensors with fewer values are not worth storing.
const DENSE_PER_STORED: u64 = 256;

/// What is left of the limits.
#[derive(Clone, Debug)]
pub struct Budget {
    limits: ImportLimits,
    nodes: u64,
    bytes: u64,
    copied: u64,
    analysed: u64,
    /// Bytes of sparse tensors, as stored and dense.
    sparse: (u64, u64),
}

impl Default for Budget {
    fn default() -> Budget {
        Budget::new(ImportLimits::default())
    }
}

impl Budget {
    /// Nothing used yet.
    pub fn new(limits: ImportLimits) -> Budget {
        Budget { limits, nodes: 0, bytes: 0, copied: 0, analysed: 0, sparse: (0, 0) }
    }

    /// Takes memory.
    pub(super) fn take_bytes(&mut self, bytes: u64) -> Result<(), OverLimit> {
        self.bytes = self.bytes.saturating_add(bytes);
        match self.limits.bytes {
            Some(most) if self.bytes > most => Err(OverLimit::Bytes(most)),
            _ => Ok(()),
        }
    }

    /// Whether so many more nodes would be within the limits.
    pub(super) fn allows_nodes(&self, nodes: u64) -> Result<(), OverLimit> {
        let most = self.limits.nodes.unwrap_or(MAX_NODES).min(MAX_NODES);
        if self.nodes.saturating_add(nodes) > most { Err(OverLimit::Nodes(most)) } else { Ok(()) }
    }

    /// Takes nodes.
    pub(super) fn take_nodes(&mut self, nodes: u64) -> Result<(), OverLimit> {
        self.allows_nodes(nodes)?;
        self.nodes += nodes;
        Ok(())
    }

    /// Takes memory for a copy of what is written out: a node of a function's body, the body of a loop.
    pub(super) fn take_copy(&mut self, bytes: u64) -> Result<(), OverLimit> {
        self.copied = self.copied.saturating_add(bytes);
        if self.copied > MAX_COPIED_BYTES {
            return Err(OverLimit::Copies(MAX_COPIED_BYTES));
        }
        self.take_bytes(bytes)
    }

    /// Takes time to look at so many nodes.
    pub(super) fn take_analysis(&mut self, nodes: u64) -> Result<(), OverLimit> {
        self.analysed = self.analysed.saturating_add(nodes);
        if self.analysed > MAX_ANALYSED_NODES { Err(OverLimit::Analysis(MAX_ANALYSED_NODES)) } else { Ok(()) }
    }

    /// Takes memory for the dense form of a sparse tensor that is stored in `stored` bytes.
    pub(super) fn take_dense(&mut self, stored: u64, dense: u64) -> Result<(), OverLimit> {
        self.sparse = (self.sparse.0.saturating_add(stored), self.sparse.1.saturating_add(dense));
        if self.sparse.1 > self.sparse.0.saturating_mul(DENSE_PER_STORED).saturating_add(FREE_DENSE_BYTES) {
            return Err(OverLimit::Dense(self.sparse.1));
        }
        self.take_bytes(dense)
    }
}

/// Which limit a model exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OverLimit {
    /// More nodes than this.
    #[error("with functions and nested graphs written out it has more than {0} nodes")]
    Nodes(u64),
    /// More bytes than the caller allows.
    #[error("reading it takes more than the {0} bytes allowed")]
    Bytes(u64),
    /// Functions, or bodies of loops, whose copies take more than this.
    #[error("its functions and loops written out take more than {0} bytes")]
    Copies(u64),
    /// Branches and loops that take more steps than this to decide.
    #[error("its branches and loops take more than {0} steps to decide")]
    Analysis(u64),
    /// Sparse tensors that store next to nothing of what they expand to.
    #[error("its sparse tensors expand to {0} bytes, far more than the file holds")]
    Dense(u64),
    /// Memory that the machine does not have.
    #[error("it needs {0} bytes of memory that cannot be had")]
    Memory(u64),
}

impl From<OverLimit> for OnnxError {
    fn from(limit: OverLimit) -> OnnxError {
        OnnxError::Limit(limit)
    }
}

/// An empty list with room for `len` elements.
pub(super) fn room<T>(len: u64) -> Result<Vec<T>, OverLimit> {
    let bytes = len.saturating_mul(size_of::<T>() as u64);
    let mut list = vec![];
    let reserved = usize::try_from(len).is_ok_and(|len| list.try_reserve_exact(len).is_ok());
    if reserved { Ok(list) } else { Err(OverLimit::Memory(bytes)) }
}
