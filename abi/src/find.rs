//! Operators that find elements: how many there are shows when they run.

use crate::DType;

/// What is looked for. Results are i64, but for slices and elements of the first operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindOp {
    /// The coordinates of elements that are not zero, one row for each axis.
    NonZero,
    /// The slices along an axis where the second operand is not zero; without an axis, those elements.
    Compress {
        /// The axis.
        axis: Option<u32>,
    },
    /// The distinct slices along an axis, or elements; where each comes first, which of them every slice is, and how often each
    /// comes.
    Unique {
        /// The axis.
        axis: Option<u32>,
        /// Whether they are ascending, rather than in the order in which they come first.
        sorted: bool,
    },
    /// Rows of image, class and box. Operands: boxes, scores, the most of a class, the overlap that is admitted, the least score.
    NonMaxSuppression {
        /// Whether boxes are a centre and a size, rather than two corners.
        centered: bool,
    },
}

impl FindOp {
    /// Words of [`FindOp::to_words`].
    pub const WORDS: usize = 3;

    /// Number, axis and flag.
    pub fn to_words(self) -> [u64; FindOp::WORDS] {
        let place = |axis: Option<u32>| axis.map_or(0, |axis| u64::from(axis) + 1);
        match self {
            FindOp::NonZero => [0, 0, 0],
            FindOp::Compress { axis } => [1, place(axis), 0],
            FindOp::Unique { axis, sorted } => [2, place(axis), sorted.into()],
            FindOp::NonMaxSuppression { centered } => [3, 0, centered.into()],
        }
    }

    /// The inverse of [`FindOp::to_words`].
    pub fn of_words([number, axis, flag]: [u64; FindOp::WORDS]) -> Option<FindOp> {
        let axis = match axis {
            0 => None,
            place => Some(u32::try_from(place - 1).ok()?),
        };
        Some(match number {
            0 => FindOp::NonZero,
            1 => FindOp::Compress { axis },
            2 => FindOp::Unique { axis, sorted: flag != 0 },
            3 => FindOp::NonMaxSuppression { centered: flag != 0 },
            _ => return None,
        })
    }

    /// Number of results.
    pub fn results(self) -> usize {
        if let FindOp::Unique { .. } = self { 4 } else { 1 }
    }

    /// The element type of a result; `first` is that of the first operand.
    pub fn result_dtype(self, result: usize, first: DType) -> DType {
        match self {
            FindOp::Compress { .. } | FindOp::Unique { .. } if result == 0 => first,
            _ => DType::I64,
        }
    }

    /// The extents of a result, where so many elements are found in a first operand of this shape.
    pub fn result_dims(self, result: usize, first: &[u64], found: u64) -> impl Iterator<Item = u64> {
        let (axis, whole) = match self {
            FindOp::Compress { axis } | FindOp::Unique { axis, .. } if result == 0 => (axis, axis.is_some()),
            FindOp::Unique { axis, .. } => (axis, false),
            FindOp::NonZero | FindOp::NonMaxSuppression { .. } | FindOp::Compress { .. } => (None, false),
        };
        let slices = match axis {
            Some(axis) => first.get(axis as usize).copied().unwrap_or(0),
            None => first.iter().fold(1, |n: u64, dim| n.saturating_mul(*dim)),
        };
        let (short, count) = match self {
            FindOp::NonZero => ([first.len() as u64, found], 2),
            FindOp::NonMaxSuppression { .. } => ([found, 3], 2),
            _ if result == 2 => ([slices, 0], 1),
            _ => ([found, 0], 1),
        };
        let rank = if whole { first.len() } else { count };
        (0..rank).map(move |i| match whole {
            true if axis == Some(i as u32) => found,
            true => first[i],
            false => short[i],
        })
    }

    /// How many elements are found at most in operands of these shapes.
    pub fn most(self, operands: &[Option<&[u64]>]) -> u64 {
        let dims = |i: usize| operands.get(i).copied().flatten().unwrap_or(&[]);
        let len = |dims: &[u64]| dims.iter().fold(1, |n: u64, dim| n.saturating_mul(*dim));
        match self {
            FindOp::Compress { axis: Some(axis) } | FindOp::Unique { axis: Some(axis), .. } => {
                dims(0).get(axis as usize).copied().unwrap_or(0)
            }
            FindOp::NonMaxSuppression { .. } => len(dims(1)),
            _ => len(dims(0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_survive_the_way_into_words_and_back() {
        let all = [
            FindOp::NonZero,
            FindOp::Compress { axis: None },
            FindOp::Compress { axis: Some(3) },
            FindOp::Unique { axis: Some(0), sorted: true },
            FindOp::Unique { axis: None, sorted: false },
            FindOp::NonMaxSuppression { centered: true },
        ];
        for op in all {
            assert_eq!(FindOp::of_words(op.to_words()), Some(op));
        }
        assert_eq!(FindOp::of_words([4, 0, 0]), None);
    }

    #[test]
    fn results_have_the_shapes_that_operators_give() {
        let dims = |op: FindOp, result: usize| op.result_dims(result, &[4, 5], 3).collect::<Vec<_>>();
        assert_eq!(dims(FindOp::NonZero, 0), [2, 3]);
        assert_eq!(dims(FindOp::Compress { axis: Some(1) }, 0), [4, 3]);
        assert_eq!(dims(FindOp::Compress { axis: None }, 0), [3]);
        let unique = |axis| FindOp::Unique { axis, sorted: true };
        assert_eq!(
            (0..4).map(|i| dims(unique(Some(0)), i)).collect::<Vec<_>>(),
            [vec![3, 5], vec![3], vec![4], vec![3]]
        );
        assert_eq!((0..4).map(|i| dims(unique(None), i)).collect::<Vec<_>>(), [vec![3], vec![3], vec![20], vec![3]]);
        assert_eq!(dims(FindOp::NonMaxSuppression { centered: false }, 0), [3, 3]);
        assert_eq!(FindOp::NonZero.most(&[Some(&[4, 5])]), 20);
        assert_eq!(unique(Some(1)).most(&[Some(&[4, 5])]), 5);
        assert_eq!(FindOp::NonMaxSuppression { centered: false }.most(&[Some(&[2, 9, 4]), Some(&[2, 3, 9])]), 54);
    }
}
