//! What the copy engine knows of a tensor (PTX ISA, "Tensors": "Tiled mode", "Swizzling modes", "Out of bound access"; CUDA Driver
//! API, `cuTensorMapEncodeTiled`).

/// How pieces of 16 bytes are permuted in shared memory: bits of the address, from bit 4 on, are combined with those from bit 7 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swizzle {
    None,
    B32,
    B64,
    B128,
}

impl Swizzle {
    /// Bytes of a row of the pattern.
    pub fn span(self) -> usize {
        match self {
            Swizzle::None => 16,
            Swizzle::B32 => 32,
            Swizzle::B64 => 64,
            Swizzle::B128 => 128,
        }
    }

    /// Where in shared memory lies what has an address before pieces are permuted.
    pub fn apply(self, at: u64) -> u64 {
        let pieces = self.span() as u64 / 16;
        at ^ (at >> 7 & (pieces - 1)) << 4
    }
}

/// A tensor in memory and the box of it that one copy moves; extents from the innermost on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// The position of the buffer among the arguments.
    pub argument: usize,
    pub element_bytes: usize,
    pub extents: Vec<u64>,
    /// Bytes from one position to the next along every extent but the innermost.
    pub strides: Vec<u64>,
    pub box_extents: Vec<u32>,
    pub swizzle: Swizzle,
    /// Whether elements are f32 that the copy engine rounds to tf32 (`CU_TENSOR_MAP_DATA_TYPE_TFLOAT32`).
    pub rounds: bool,
}

/// Bytes that are permuted, and copied, as one.
pub(super) const PIECE: usize = 16;

impl TensorMap {
    /// Whether the driver would take it.
    pub(super) fn check(&self) -> Result<(), String> {
        let rank = self.extents.len();
        let inner = self.box_extents.first().map_or(0, |n| *n as usize) * self.element_bytes;
        let rules = [
            ((1..=5).contains(&rank) && self.box_extents.len() == rank && self.strides.len() + 1 == rank, "its rank"),
            (matches!(self.element_bytes, 1 | 2 | 4 | 8), "the size of its elements"),
            (self.extents.iter().all(|n| (1..=1 << 32).contains(n)), "its extents"),
            (!self.rounds || self.element_bytes == 4, "elements that cannot be rounded"),
            (
                self.strides.iter().all(|n| n.is_multiple_of(16) && *n < 1 << 40),
                "strides that are no multiples of 16 bytes",
            ),
            (self.box_extents.iter().all(|n| (1..=256).contains(n)), "the extents of its box"),
            (inner.is_multiple_of(PIECE), "rows of a box that are no multiples of 16 bytes"),
            (
                self.swizzle == Swizzle::None || inner <= self.swizzle.span(),
                "rows of a box beyond the span of the swizzle",
            ),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, what)) => Err(format!("a tensor map with {what}")),
            None => Ok(()),
        }
    }

    pub(super) fn box_bytes(&self) -> usize {
        self.box_extents.iter().map(|n| *n as usize).product::<usize>() * self.element_bytes
    }

    /// An element as it comes. What rounding does is not documented; observed is the nearest number with 10 bits of fraction,
    /// the one with an even last bit of two.
    pub(super) fn converted(&self, bytes: &[u8]) -> Vec<u8> {
        let word: Result<[u8; 4], _> = bytes.try_into();
        let (true, Ok(word)) = (self.rounds, word) else { return bytes.to_vec() };
        let bits = u32::from_le_bytes(word);
        if bits >> 23 & 0xff == 0xff {
            return bytes.to_vec();
        }
        let (kept, rest) = (bits >> 13, bits & 0x1fff);
        let up = rest > 0x1000 || rest == 0x1000 && kept & 1 == 1;
        ((kept + u32::from(up)) << 13).to_le_bytes().to_vec()
    }

    /// For every piece of a box at some coordinates: its offset in the box, and where in the tensor each of its elements lies, in
    /// bytes; nowhere if that is outside.
    pub(super) fn pieces(&self, at: &[i64]) -> Vec<(usize, Vec<Option<u64>>)> {
        let per_piece = PIECE / self.element_bytes;
        let place = |mut index: usize| {
            let mut total = Some(0);
            for (d, extent) in self.box_extents.iter().enumerate() {
                let coordinate = at[d] + (index % *extent as usize) as i64;
                index /= *extent as usize;
                let inside = coordinate >= 0 && (coordinate as u64) < self.extents[d];
                let stride = if d == 0 { self.element_bytes as u64 } else { self.strides[d - 1] };
                total = total.filter(|_| inside).map(|sum| sum + coordinate as u64 * stride);
            }
            total
        };
        let count = self.box_bytes() / PIECE;
        (0..count).map(|i| (i * PIECE, (i * per_piece..(i + 1) * per_piece).map(place).collect())).collect()
    }
}
