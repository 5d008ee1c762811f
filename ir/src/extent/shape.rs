//! The extents of the axes of a tensor.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use super::Extent;

/// The extents of the axes of a tensor, outermost first.
///
/// Code that knows no symbols reads them as a slice of numbers. Where they depend on symbols, what follows from that is right for
/// these numbers alone ([`Extent::fixed`]).
#[derive(Clone, Default)]
pub struct Extents {
    /// Those of the example.
    values: Vec<u64>,
    /// All of them, if one depends on symbols.
    open: Option<Box<[Extent]>>,
}

impl Extents {
    /// These extents.
    pub fn of<const N: usize>(axes: [Extent; N]) -> Extents {
        axes.into_iter().collect()
    }

    /// Number of axes.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are no axes.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Whether one depends on symbols.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// The extent of an axis below [`Extents::len`].
    pub fn at(&self, axis: usize) -> Extent {
        match &self.open {
            Some(open) => open[axis],
            None => self.values[axis].into(),
        }
    }

    /// Changes the extent of an axis below [`Extents::len`].
    pub fn set(&mut self, axis: usize, n: impl Into<Extent>) {
        let n = n.into();
        *self = self.all().enumerate().map(|(a, old)| if a == axis { n } else { old }).collect();
    }

    /// All of them.
    pub fn all(&self) -> impl DoubleEndedIterator<Item = Extent> + ExactSizeIterator + '_ {
        (0..self.len()).map(|axis| self.at(axis))
    }

    /// Those of some axes.
    pub fn range(&self, axes: impl std::ops::RangeBounds<usize>) -> Extents {
        self.all().enumerate().filter(|(axis, _)| axes.contains(axis)).map(|(_, n)| n).collect()
    }

    /// All as numbers ([`Extent::fixed`]).
    #[track_caller]
    pub fn as_slice(&self) -> &[u64] {
        self
    }

    /// The numbers in the example, for what decides about speed alone.
    pub fn example(&self) -> &[u64] {
        &self.values
    }
}

/// Extents of axes, whether they depend on symbols or not.
pub trait Axes {
    /// Number of axes.
    fn rank(&self) -> usize;

    /// The extent of an axis below [`Axes::rank`].
    fn extent(&self, axis: usize) -> Extent;

    /// All of them.
    fn each(&self) -> impl DoubleEndedIterator<Item = Extent> + ExactSizeIterator + '_ {
        (0..self.rank()).map(|axis| self.extent(axis))
    }

    /// Whether an axis is known to have no elements. What is done for all extents must be right where one turns out to have none: it
    /// is, where nothing is read and written but along these axes.
    fn has_none(&self) -> bool {
        self.each().any(|n| n.is_surely(0))
    }

    /// Number of elements; the greatest number there is, if there are more.
    fn count(&self) -> Extent {
        self.each().fold(Extent::ONE, |product, n| product.saturating_mul(n))
    }
}

impl Axes for Extents {
    fn rank(&self) -> usize {
        self.len()
    }

    fn extent(&self, axis: usize) -> Extent {
        self.at(axis)
    }
}

macro_rules! axes_of_numbers {
    ($([$($generic:tt)*] $t:ty;)*) => {$(
        impl<$($generic)*> Axes for $t {
            fn rank(&self) -> usize {
                self.len()
            }

            fn extent(&self, axis: usize) -> Extent {
                self[axis].into()
            }
        }
    )*};
}
axes_of_numbers! { [] [u64]; [] Vec<u64>; [const N: usize] [u64; N]; [] [Extent]; [] Vec<Extent>; [const N: usize] [Extent; N]; }

impl Deref for Extents {
    type Target = [u64];

    #[track_caller]
    fn deref(&self) -> &[u64] {
        for extent in self.open.iter().flatten() {
            extent.fixed();
        }
        &self.values
    }
}

impl<'a> IntoIterator for &'a Extents {
    type Item = &'a u64;
    type IntoIter = std::slice::Iter<'a, u64>;

    #[track_caller]
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl FromIterator<Extent> for Extents {
    fn from_iter<I: IntoIterator<Item = Extent>>(iter: I) -> Extents {
        let all: Vec<Extent> = iter.into_iter().collect();
        let values = all.iter().map(|n| n.example().max(0) as u64).collect();
        Extents { values, open: all.iter().any(|n| n.is_open()).then_some(all.into()) }
    }
}

impl FromIterator<u64> for Extents {
    fn from_iter<I: IntoIterator<Item = u64>>(iter: I) -> Extents {
        Vec::from_iter(iter).into()
    }
}

/// Extents saturate at [`i64::MAX`], which is larger than that of any tensor.
impl From<Vec<u64>> for Extents {
    fn from(mut values: Vec<u64>) -> Extents {
        values.iter_mut().for_each(|n| *n = (*n).min(i64::MAX as u64));
        Extents { values, open: None }
    }
}

impl From<&[u64]> for Extents {
    fn from(values: &[u64]) -> Extents {
        values.to_vec().into()
    }
}

impl From<&Vec<u64>> for Extents {
    fn from(values: &Vec<u64>) -> Extents {
        values.clone().into()
    }
}

impl<const N: usize> From<[u64; N]> for Extents {
    fn from(values: [u64; N]) -> Extents {
        values.to_vec().into()
    }
}

impl<const N: usize> From<&[u64; N]> for Extents {
    fn from(values: &[u64; N]) -> Extents {
        values.to_vec().into()
    }
}

impl From<&Extents> for Extents {
    fn from(extents: &Extents) -> Extents {
        extents.clone()
    }
}

impl PartialEq for Extents {
    #[track_caller]
    fn eq(&self, other: &Extents) -> bool {
        match (&self.open, &other.open) {
            (None, None) => self.values == other.values,
            _ => self.len() == other.len() && self.all().zip(other.all()).all(|(a, b)| a == b),
        }
    }
}

impl Eq for Extents {}

macro_rules! compared_with_numbers {
    ($([$($generic:tt)*] $t:ty;)*) => {$(
        impl<$($generic)*> PartialEq<$t> for Extents {
            #[track_caller]
            fn eq(&self, other: &$t) -> bool {
                self.len() == other.len() && self.all().zip(other.iter()).all(|(a, b)| a == *b)
            }
        }
    )*};
}
compared_with_numbers! { [] [u64]; [] &[u64]; [] Vec<u64>; [const N: usize] [u64; N]; }

impl PartialEq<Extents> for Vec<u64> {
    fn eq(&self, other: &Extents) -> bool {
        *other == *self
    }
}

impl PartialEq<Extents> for &[u64] {
    fn eq(&self, other: &Extents) -> bool {
        *other == **self
    }
}

impl PartialEq<Extents> for [u64] {
    fn eq(&self, other: &Extents) -> bool {
        *other == *self
    }
}

impl Hash for Extents {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.values.hash(state);
    }
}

impl fmt::Debug for Extents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all()).finish()
    }
}
