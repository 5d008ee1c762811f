//! Slices: reading them, and assigning to them.
//!
//! A slice that keeps all of the axes behind its first and takes consecutive positions of the first
//! is a view of the same memory. Any other is a copy, as in MXNet.

use std::ops::{Range, RangeFrom, RangeFull, RangeTo};

use tensorc_ir::TensorData;
use tensorc_ir::scalar::Scalar;
use tensorc_runtime::array::{self, ArrayOperand, ArraySlice, Span};

use super::array::{NDArray, refuse_in_place};
use super::call::CallOperand;
use crate::error::Error;
use tensorc::Tensor;

/// Most copies of rows that a slice on a driver's device is worth; an operator, which is compiled for every slice, does the
/// others.
const MAX_ROW_COPIES: u64 = 64;

/// Positions of one axis, as in Python: negative ones count from the end, and what is outside is
/// left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    begin: Option<i64>,
    end: Option<i64>,
    step: i64,
    /// One position, whose axis disappears.
    single: bool,
}

impl Slice {
    /// Every position.
    pub const ALL: Slice = Slice { begin: None, end: None, step: 1, single: false };

    /// Positions from `begin` to before `end`, every `step`th; backwards, `begin` is the greater.
    pub const fn new(begin: Option<i64>, end: Option<i64>, step: i64) -> Slice {
        Slice { begin, end, step, single: false }
    }

    /// The same positions with another stride; a negative one goes backwards.
    pub const fn step(self, step: i64) -> Slice {
        Slice { step, ..self }
    }

    /// Which positions of an axis of `n` these are, by the rules of Python's `slice.indices`.
    fn span(self, n: u64) -> Option<Span> {
        let len = i64::try_from(n).ok()?;
        let from_end = |i: i64| if i < 0 { i.saturating_add(len) } else { i };
        if self.single {
            let at = from_end(self.begin?);
            return (0..len).contains(&at).then_some(Span { start: at as u64, step: 1, len: 1 });
        }
        let (low, high) = if self.step < 0 { (-1, len - 1) } else { (0, len) };
        let bound = |i: Option<i64>, default| i.map_or(default, |i| from_end(i).clamp(low, high));
        let (start, stop) = match self.step {
            0 => return None,
            step if step < 0 => (bound(self.begin, high), bound(self.end, low)),
            _ => (bound(self.begin, low), bound(self.end, high)),
        };
        let distance = if self.step < 0 { start - stop } else { stop - start };
        let count = (distance.max(0) as u64).div_ceil(self.step.unsigned_abs());
        // The stride of a single position means nothing, and must not be multiplied.
        let step = if count <= 1 { 1 } else { self.step };
        Some(Span { start: start.max(0) as u64, step, len: count })
    }
}

impl From<RangeFull> for Slice {
    fn from(_: RangeFull) -> Slice {
        Slice::ALL
    }
}

impl From<Range<i64>> for Slice {
    fn from(range: Range<i64>) -> Slice {
        Slice { begin: Some(range.start), end: Some(range.end), ..Slice::ALL }
    }
}

impl From<RangeFrom<i64>> for Slice {
    fn from(range: RangeFrom<i64>) -> Slice {
        Slice { begin: Some(range.start), ..Slice::ALL }
    }
}

impl From<RangeTo<i64>> for Slice {
    fn from(range: RangeTo<i64>) -> Slice {
        Slice { end: Some(range.end), ..Slice::ALL }
    }
}

/// One position; the axis disappears from the result.
impl From<i64> for Slice {
    fn from(at: i64) -> Slice {
        Slice { begin: Some(at), single: true, ..Slice::ALL }
    }
}

impl NDArray {
    /// The elements at slices of the leading axes; the other axes are whole.
    ///
    /// # Errors
    /// There are more slices than axes, a single position is outside, or a step is 0.
    pub fn slice(&self, slices: &[Slice]) -> Result<NDArray, Error> {
        let spans = self.spans(slices)?;
        let kept = kept(slices, &spans);
        let whole = |axis: usize| spans[axis] == Span { start: 0, step: 1, len: self.dims()[axis] };
        let contiguous = spans.first().is_some_and(|s| s.step == 1) && (1..spans.len()).all(whole);
        if contiguous {
            let Span { start, len, .. } = spans[0];
            return self.rows(start, start + len)?.reshape(&kept);
        }
        if spans.is_empty() || (0..spans.len()).all(whole) {
            return Ok(self.clone());
        }
        let region = self.region(slices, &spans)?;
        let driven = self.runtime().space().is_driven(self.device());
        let pieces = if driven { region.pieces(MAX_ROW_COPIES) } else { None };
        if self.is_recorded() || (driven && pieces.is_none()) {
            return self.slice_by_call(&spans)?.reshape(&kept);
        }
        let copy =
            self.runtime().empty(self.device(), self.dtype(), &spans.iter().map(|s| s.len).collect::<Vec<_>>())?;
        self.settle()?;
        let source = ArrayOperand::View(self.view().clone());
        let request = copy.overwriting(&self.runtime().inner().common.slice, vec![source]);
        match pieces {
            Some(pieces) => array::gather(self.runtime().space(), request, pieces)?,
            None => array::launch(self.runtime().space(), request, move |inputs, outputs| {
                region.load(inputs[0].data, outputs[0].data);
                Ok(())
            })?,
        }
        copy.reshape(&kept)
    }

    /// The elements at spans through the operator, which has a gradient.
    fn slice_by_call(&self, spans: &[Span]) -> Result<NDArray, Error> {
        let by = |f: &dyn Fn(usize, &Span) -> i64| {
            spans.iter().enumerate().map(|(axis, s)| f(axis, s)).collect::<Vec<i64>>()
        };
        let end = |_: usize, s: &Span| match s.start as i64 + s.step * s.len as i64 {
            // Before the first element; -1 would be the last.
            past if past < 0 => i64::MIN,
            end => end,
        };
        let (starts, ends) = (by(&|_, s| s.start as i64), by(&end));
        let (axes, steps) = (by(&|axis, _| axis as i64), by(&|_, s| s.step));
        let call = self.runtime().op("slice")?.arg(self).arg(&starts[..]).arg(&ends[..]);
        call.arg(&axes[..]).arg(&steps[..]).invoke()
    }

    /// Writes an array or a number to the elements at slices. An array is broadcast to their shape,
    /// and has this array's type.
    ///
    /// # Errors
    /// As [`NDArray::slice`], or the value does not fit.
    pub fn set<'a>(&self, slices: &[Slice], value: impl Into<CallOperand<'a>>) -> Result<(), Error> {
        let spans = self.spans(slices)?;
        let region = self.region(slices, &spans)?;
        let kept = kept(slices, &spans);
        let value = match value.into() {
            CallOperand::Array(array)
                if array.len() == 1 || array.dims().iter().map(|d| *d as i64).eq(kept.iter().copied()) =>
            {
                array.clone()
            }
            CallOperand::Array(array) => self.runtime().op("expand")?.arg(array).arg(&kept[..]).invoke()?,
            CallOperand::Scalar(value) => self.number(Scalar::from_f64(self.dtype(), value), &kept)?,
            CallOperand::Integer(value) => self.number(Scalar::from_i64(self.dtype(), value), &kept)?,
            CallOperand::Tensor(tensor) => self.runtime().from_tensor(&tensor, self.device())?,
            CallOperand::Absent => return Err(self.outside(slices)),
        };
        let stored: u64 = region.dims().iter().product();
        if value.dtype() != self.dtype() || (value.len() != 1 && value.len() != stored) {
            let expected = format!("{}{kept:?}", self.dtype());
            return Err(Error::Target { op: "assign".into(), expected, found: value.ty().to_string() });
        }
        if value.device() != self.device() {
            return Err(Error::Devices { op: "assign".into(), first: self.device(), second: value.device() });
        }
        let rt = self.runtime();
        rt.check("assign", [&value])?;
        refuse_in_place("assign", [&value], [self])?;
        if rt.space().is_driven(self.device()) {
            return self.set_there(&spans, &region, &value);
        }
        array::launch(rt.space(), self.assignment(&value)?, move |inputs, outputs| {
            region.store(outputs[0].data, inputs[0].data);
            Ok(())
        })?;
        self.view().chunk().touch();
        Ok(())
    }

    /// An operation that writes elements of `value` into this array.
    fn assignment(&self, value: &NDArray) -> Result<array::ArrayLaunch<'_>, Error> {
        self.settle()?;
        value.settle()?;
        Ok(self.assigning(vec![ArrayOperand::View(value.view().clone())]))
    }

    /// As [`NDArray::set`], on a driver's device, by copies of rows or, where those would be many, by an operator.
    fn set_there(&self, spans: &[Span], region: &ArraySlice, value: &NDArray) -> Result<(), Error> {
        let rt = self.runtime();
        let dims: Vec<i64> = region.dims().iter().map(|d| *d as i64).collect();
        if dims.contains(&0) {
            return Ok(());
        }
        let value = match value.dims() == &region.dims()[..] {
            true => value.clone(),
            false if value.len() == dims.iter().product::<i64>() as u64 => value.reshape(&dims)?,
            false => {
                let single = value.reshape(&[])?;
                rt.op("expand")?.arg(&single).arg(&dims[..]).invoke()?
            }
        };
        let Some(pieces) = region.pieces(MAX_ROW_COPIES) else { return self.set_by_call(spans, value) };
        array::scatter(rt.space(), self.assignment(&value)?, pieces)?;
        self.view().chunk().touch();
        Ok(())
    }

    /// Writes a dense array of the spans' extents to the elements at them through an operator.
    fn set_by_call(&self, spans: &[Span], value: NDArray) -> Result<(), Error> {
        let rt = self.runtime();
        let back: Vec<i64> = (0..spans.len()).filter(|axis| spans[*axis].step < 0).map(|axis| axis as i64).collect();
        let value = match back.is_empty() {
            true => value,
            false => rt.op("flip")?.arg(&value).param("axis", back).invoke()?,
        };
        // Forwards, from the least position to the greatest.
        let ends = |s: &Span| {
            let (a, b) = (s.start as i64, s.start as i64 + s.step * (s.len as i64 - 1));
            (a.min(b), a.max(b) + 1)
        };
        let by = |f: &dyn Fn(&Span) -> i64| spans.iter().map(f).collect::<Vec<i64>>();
        let call = rt.op("mx_slice_assign")?.arg(self).arg(&value).param("begin", by(&|s| ends(s).0));
        call.param("end", by(&|s| ends(s).1)).param("step", by(&|s| s.step.abs())).into(&[self])
    }

    /// A value: one element on the host, and on a driver's device an array, which is made there.
    fn number(&self, value: Scalar, dims: &[i64]) -> Result<NDArray, Error> {
        let rt = self.runtime();
        if !rt.space().is_driven(self.device()) {
            return rt.from_tensor(&Tensor::from(TensorData::scalar(value)), self.device());
        }
        let dims: Vec<u64> = dims.iter().map(|d| *d as u64).collect();
        let made = rt.empty(self.device(), self.dtype(), &dims)?;
        made.fill_with(value)?;
        Ok(made)
    }

    fn region(&self, slices: &[Slice], spans: &[Span]) -> Result<ArraySlice, Error> {
        ArraySlice::new(self.dims(), self.dtype().size(), spans).ok_or_else(|| self.outside(slices))
    }

    fn outside(&self, slices: &[Slice]) -> Error {
        Error::Index { what: format!("{slices:?}"), dims: self.dims().to_vec() }
    }

    /// A span for every axis.
    fn spans(&self, slices: &[Slice]) -> Result<Vec<Span>, Error> {
        if slices.len() > self.rank() {
            return Err(self.outside(slices));
        }
        let all = slices.iter().copied().chain(std::iter::repeat(Slice::ALL));
        let spans: Option<Vec<Span>> = self.dims().iter().zip(all).map(|(n, slice)| slice.span(*n)).collect();
        spans.ok_or_else(|| self.outside(slices))
    }
}

/// The extents at spans, less the axes where a single position is taken.
fn kept(slices: &[Slice], spans: &[Span]) -> Vec<i64> {
    let single = |axis: usize| slices.get(axis).is_some_and(|slice| slice.single);
    spans.iter().enumerate().filter(|(axis, _)| !single(*axis)).map(|(_, span)| span.len as i64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn positions(slice: Slice, n: u64) -> Vec<i64> {
        let Span { start, step, len } = slice.span(n).unwrap();
        (0..len as i64).map(|i| start as i64 + step * i).collect()
    }

    #[test]
    fn positions_are_pythons() {
        assert_eq!(positions(Slice::ALL, 3), [0, 1, 2]);
        assert_eq!(positions(Slice::ALL.step(-1), 3), [2, 1, 0]);
        assert_eq!(positions(Slice::from(-2..), 3), [1, 2]);
        assert_eq!(positions(Slice::from(..-1), 3), [0, 1]);
        assert_eq!(positions(Slice::from(1..100).step(2), 6), [1, 3, 5]);
        assert_eq!(positions(Slice::new(Some(4), Some(0), -2), 6), [4, 2]);
        assert_eq!(positions(Slice::from(1..).step(i64::MAX), 6), [1]);
        assert_eq!(positions(Slice::from(1..).step(i64::MIN), 6), [1]);
        assert_eq!(positions(Slice::from(2..2), 6), [0; 0]);
        assert_eq!(positions(Slice::new(Some(5), Some(2), 1), 6), [0; 0]);
        assert_eq!(positions(Slice::ALL, 0), [0; 0]);
        assert_eq!(positions(Slice::ALL.step(-1), 0), [0; 0]);
        assert_eq!(positions(Slice::from(-1), 3), [2]);
        assert_eq!(Slice::from(3).span(3), None);
        assert_eq!(Slice::from(-4).span(3), None);
        assert_eq!(Slice::ALL.step(0).span(3), None);
    }
}
