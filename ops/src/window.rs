//! Geometry of sliding windows: what convolutions and pools have in common.

use tensorc_ir::diag::Result;
use tensorc_ir::dim::Equation;
use tensorc_ir::index::Index;
use tensorc_ir::infer::InferCtx;
use tensorc_ir::op::OpError;
use tensorc_ir::params::Params;
use tensorc_ir::{Dim, Extent, Extents};

/// Automatic padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoPad {
    Explicit,
    SameUpper,
    SameLower,
    Valid,
}

/// A window over the spatial axes, extents still to come.
#[derive(Clone, Debug)]
pub struct SpatialWindow {
    pub kernel: Vec<u64>,
    pub strides: Vec<i64>,
    pub dilations: Vec<i64>,
    /// Explicit pads before and after; zero for automatic padding.
    pub before: Vec<i64>,
    pub after: Vec<i64>,
    pub auto: AutoPad,
    pub ceil: bool,
}

/// An entry of a list for every axis, `default` throughout if the list is empty.
pub fn per_axis(params: &Params, name: &str, n: usize, default: i64) -> Result<Vec<i64>, OpError> {
    match params.ints(name) {
        None | Some([]) => Ok(vec![default; n]),
        Some(list) if list.len() == n => Ok(list.to_vec()),
        Some(list) => Err(OpError(format!("parameter `{name}`: expected {n} entries, found {}", list.len()))),
    }
}

/// The largest kernel, stride, dilation or padding. Products of two, added to an extent, are then within 64 bits.
const MAX_REACH: u64 = (1 << 31) - 1;

/// The largest extent under a window, for the same reason.
const MAX_EXTENT: u64 = 1 << 61;

impl SpatialWindow {
    /// With the same explicit pads on both sides.
    pub fn padded(kernel: Vec<u64>, strides: Vec<i64>, dilations: Vec<i64>, pads: Vec<i64>) -> SpatialWindow {
        let (before, after) = (pads.clone(), pads);
        SpatialWindow { kernel, strides, dilations, before, after, auto: AutoPad::Explicit, ceil: false }
    }

    /// From the parameters `strides`, `dilations`, `pads`, `auto_pad` and `ceil_mode`.
    pub fn new(params: &Params, kernel: Vec<u64>) -> Result<SpatialWindow, OpError> {
        let n = kernel.len();
        let strides = per_axis(params, "strides", n, 1)?;
        let dilations = per_axis(params, "dilations", n, 1)?;
        let pads = per_axis(params, "pads", 2 * n, 0)?;
        if strides.iter().chain(&dilations).any(|s| *s <= 0) {
            return Err("parameters `strides` and `dilations` must be positive".into());
        }
        let reach =
            strides.iter().chain(&dilations).chain(&pads).map(|v| v.unsigned_abs()).chain(kernel.iter().copied());
        if reach.max().is_some_and(|most| most > MAX_REACH) {
            return Err(OpError(format!("parameters of windows must not exceed {MAX_REACH}")));
        }
        let auto = match params.str("auto_pad").unwrap_or("NOTSET") {
            "SAME_UPPER" => AutoPad::SameUpper,
            "SAME_LOWER" => AutoPad::SameLower,
            "VALID" => AutoPad::Valid,
            "NOTSET" | "" => AutoPad::Explicit,
            other => return Err(OpError(format!("parameter `auto_pad`: unknown value `{other}`"))),
        };
        let (before, after) = match auto {
            AutoPad::Explicit => (pads[..n].to_vec(), pads[n..].to_vec()),
            _ => (vec![0; n], vec![0; n]),
        };
        let ceil = params.flag("ceil_mode");
        Ok(SpatialWindow { kernel, strides, dilations, before, after, auto, ceil })
    }

    /// Whether windows may reach beyond the data.
    pub fn may_pad(&self) -> bool {
        let explicit = self.before.iter().chain(&self.after).any(|pad| *pad != 0);
        explicit || self.ceil || matches!(self.auto, AutoPad::SameUpper | AutoPad::SameLower)
    }

    /// Extent the dilated kernel covers along a spatial axis.
    pub fn span(&self, axis: usize) -> i64 {
        (self.kernel[axis] as i64 - 1) * self.dilations[axis] + 1
    }

    /// Numbers of windows along spatial axes of these extents.
    pub fn counts(&self, spatial: &[u64]) -> Result<Vec<u64>, OpError> {
        spatial.iter().enumerate().map(|(axis, &n)| Ok(self.count(axis, n)?.fixed() as u64)).collect()
    }

    /// Number of windows along a spatial axis of extent `n`.
    pub fn count(&self, axis: usize, n: impl Into<Extent>) -> Result<Extent, OpError> {
        let n = n.into();
        if n > MAX_EXTENT {
            return Err(OpError(format!("spatial axis {axis}: an extent of {n} is too large")));
        }
        let s = self.strides[axis];
        if matches!(self.auto, AutoPad::SameUpper | AutoPad::SameLower) {
            return Ok((n + s - 1).div_floor(s));
        }
        let free = n + self.before[axis] + self.after[axis] - self.span(axis);
        if free < 0 {
            return Err(OpError(format!(
                "spatial axis {axis}: the window covers {}, the padded operand has {}",
                self.span(axis),
                n + self.before[axis] + self.after[axis]
            )));
        }
        let mut windows = free.div_floor(s) + 1;
        if self.ceil && free.rem_floor(s) != 0 && windows * s < n + self.before[axis] {
            // One more window, as long as it starts inside the operand or the padding before it.
            windows = windows + 1;
        }
        Ok(windows)
    }

    /// The padding before a spatial axis of extent `n`.
    pub fn lead(&self, axis: usize, n: impl Into<Extent>) -> Extent {
        let n = n.into();
        let total = || {
            let s = self.strides[axis];
            (((n + s - 1).div_floor(s) - 1) * s + self.span(axis) - n).greatest(0)
        };
        match self.auto {
            AutoPad::Explicit | AutoPad::Valid => self.before[axis].into(),
            AutoPad::SameUpper => total().div_floor(2),
            AutoPad::SameLower => total() - total().div_floor(2),
        }
    }

    /// The operand position that kernel position `k` of window `o` reads.
    pub fn position(&self, axis: usize, n: impl Into<Extent>, o: &Index, k: &Index) -> Index {
        o.scale(self.strides[axis]).add(&k.scale(self.dilations[axis])).offset(-self.lead(axis, n))
    }

    /// The window without those positions of its kernel that read only padding, in all of `count` windows over axes of the
    /// extents `spatial`. What is left reads what it read before.
    pub fn trimmed(&self, spatial: &Extents, count: &Extents) -> SpatialWindow {
        let mut trimmed = self.clone();
        for (axis, (extent, count)) in spatial.all().zip(count.all()).enumerate() {
            let (lead, all, step) = (self.lead(axis, extent), self.kernel[axis] as i64, self.dilations[axis]);
            let last = (count - 1).greatest(0) * self.strides[axis];
            let first = ((lead - last).greatest(0) + step - 1).div_floor(step).fixed();
            let end = ((extent - 1 + lead).div_floor(step) + 1).least(all).fixed();
            let (first, end) = if first < end { (first, end) } else { (0, all) };
            trimmed.kernel[axis] = (end - first) as u64;
            trimmed.before[axis] = lead.fixed() - first * step;
        }
        SpatialWindow { auto: AutoPad::Explicit, ..trimmed }
    }

    /// Relates a spatial axis to its number of windows.
    pub fn relate(&self, cx: &mut InferCtx<'_>, axis: usize, input: Dim, output: Dim) -> Result<(), OpError> {
        let s = self.strides[axis];
        if let Some(n) = cx.resolve(input).as_extent() {
            return cx.unify_dims(Dim::of(self.count(axis, n)?), output, &format!("output, spatial axis {axis}"));
        }
        let add = match self.auto {
            AutoPad::SameUpper | AutoPad::SameLower => s - 1,
            _ if self.ceil => return Ok(()),
            _ => self.before[axis] + self.after[axis] - self.span(axis) + s,
        };
        cx.relate(Equation::Affine { out: output, input, mul: 1, add, div: s })
    }
}
