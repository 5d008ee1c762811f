//! Transposed convolution as a convolution of phases.
//!
//! Along an axis of stride `s`, `full[s·u + r] = Σ_m x[u - m] · w[s·m + r]`: the positions that leave the same remainder `r` are a convolution
//! of their own, with every `s`-th tap, reversed. So the phases are channels of one convolution with `s` times as many filters and windows of
//! `⌈k / s⌉` taps, and the result is their elements in turn, without the padding. It is known as sub-pixel convolution (Shi et al., "Is the
//! deconvolution layer the same as a convolutional layer?", 2016).
//!
//! With a dilation that has a factor `g` in common with the stride, or with a single tap, whose dilation is any, only every `g`-th position has
//! terms: these are the result of the stride `s / g`, and the others are zero.

use super::{Convolution, add_bias, conv_ranks, grouped, groups, one_type, window_params};
use crate::prelude::*;
use crate::rules::open_ranked;

/// One spatial axis of a transposed convolution.
pub(crate) struct Spread {
    /// Padding removed before.
    before: Extent,
    pub(crate) out: Extent,
}

/// The largest extent, and padding, of which a transposed convolution is made: products with a stride are within 64 bits.
const MAX_EXTENT: u64 = 1 << 31;

/// What a list that has an entry for each of the last `rank` axes says of one; the list may be absent.
fn spatial_entry(
    params: &Params,
    name: &str,
    axis: usize,
    rank: usize,
    lengths: &[usize],
    least: i64,
) -> Result<Option<i64>, OpError> {
    let Some(list) = params.ints(name).filter(|list| !list.is_empty()) else { return Ok(None) };
    if !lengths.contains(&list.len()) {
        return Err(OpError(format!("parameter `{name}`: expected {rank} entries, found {}", list.len())));
    }
    match list[list.len() - rank + axis] {
        value if value < least || value > MAX_EXTENT as i64 => {
            Err(OpError(format!("parameter `{name}` holds {value}")))
        }
        value => Ok(Some(value)),
    }
}

/// Pads and result extent along a spatial axis of extent `n`.
pub(crate) fn spread(
    window: &SpatialWindow,
    params: &Params,
    axis: usize,
    n: impl Into<Extent>,
) -> Result<Spread, OpError> {
    let n = n.into();
    let rank = window.kernel.len();
    // The shape may be that of the whole result.
    let padding = spatial_entry(params, "output_padding", axis, rank, &[rank], 0)?;
    let shape = spatial_entry(params, "output_shape", axis, rank, &[rank, rank + 2], 1)?;
    if n > MAX_EXTENT {
        return Err(OpError(format!("spatial axis {axis}: an extent of {n} is too large")));
    }
    let s = window.strides[axis];
    let full = (n - 1) * s + padding.unwrap_or(0) + window.span(axis);
    let wanted = match (shape, window.auto) {
        (Some(out), _) => Some(Extent::of(out)),
        (None, AutoPad::SameUpper | AutoPad::SameLower) => Some(n * s),
        _ => None,
    };
    let Some(out) = wanted else {
        let pads = window.before[axis] + window.after[axis];
        let out = full - pads;
        reject_if(out < 0, || format!("spatial axis {axis}: padding takes {pads} of {full}"))?;
        return Ok(Spread { before: window.before[axis].into(), out });
    };
    let surplus = (full - out).greatest(0);
    let half = surplus.div_floor(2);
    let before = if window.auto == AutoPad::SameUpper { half } else { surplus - half };
    Ok(Spread { before, out: out.greatest(0) })
}

/// One spatial axis as phases.
struct PhaseAxis {
    stride: i64,
    dilation: i64,
    /// Taps of a window over the operand, and the distance from one to the next.
    taps: u64,
    step: i64,
    /// The first window that is computed, and how many are.
    first: Extent,
    count: Extent,
    /// Positions of the first windows that padding removes, and how many are left.
    cut: Extent,
    left: Extent,
    /// The distance of these in the result, and how far before the result the first one lies.
    apart: i64,
    before: Extent,
}

fn greatest_common_divisor(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

impl PhaseAxis {
    fn new(window: &SpatialWindow, axis: usize, before: Extent, out: Extent) -> PhaseAxis {
        let kernel = window.kernel[axis];
        let apart = match kernel {
            1 => window.strides[axis],
            _ => greatest_common_divisor(window.strides[axis], window.dilations[axis]),
        };
        let (stride, dilation) = (window.strides[axis] / apart, (window.dilations[axis] / apart).max(1));
        // With one phase the taps stay apart.
        let (taps, step) = match stride {
            1 => (kernel, dilation),
            _ => (((kernel.max(1) - 1) * dilation.unsigned_abs() + 1).div_ceil(stride.unsigned_abs()), 1),
        };
        let start = before.div_floor(apart);
        let left = (out - 1 + before).div_floor(apart) - start + 1;
        let first = start.div_floor(stride);
        let count = (left - 1 + start).div_floor(stride) - first + 1;
        let (cut, before) = (start - first * stride, before - start * apart);
        PhaseAxis { stride, dilation, taps, step, first, count, cut, left, apart, before }
    }

    /// The position that tap `k` of window `o` reads.
    fn position(&self, o: &Index, k: &Index) -> Index {
        o.add(&k.scale(self.step)).offset(self.first - self.step * (self.taps as i64 - 1))
    }
}

/// The filters of the convolution of phases, [oc · phases, ic / g, taps…], from the weights [ic, oc / g, k…].
fn phase_filters<'g>(w: Tensor<'g>, groups: u64, window: &SpatialWindow, axes: &[PhaseAxis]) -> Result<Tensor<'g>> {
    let ty = w.ty()?;
    let (ic, oc) = (ty.dims[0] / groups, ty.dims[1]);
    let phases: i64 = axes.iter().map(|axis| axis.stride).product();
    let dims: Vec<u64> =
        [oc * groups * phases as u64, ic].into_iter().chain(axes.iter().map(|axis| axis.taps)).collect();
    let v = vars(dims.len());
    let filters = (oc as i64).max(1);
    let group = v[0].floor_div(filters * phases, &dims[..]);
    let filter = v[0].floor_div(phases, &dims[..]).modulo(filters, &dims[..]);
    let mut map = vec![group.scale(ic as i64).add(&v[1]), filter];
    let mut inner = phases;
    for (i, axis) in axes.iter().enumerate() {
        inner /= axis.stride;
        let phase = v[0].floor_div(inner, &dims[..]).modulo(axis.stride, &dims[..]);
        let tap = v[2 + i].scale(-axis.stride).offset((axis.taps as i64 - 1) * axis.stride).add(&phase);
        // Between the taps of a dilated kernel, and behind the last one, there is zero.
        let apart = if axis.stride == 1 { 1 } else { axis.dilation };
        map.push(tap.exact_quotient(apart, window.kernel[i], &dims[..]));
    }
    let fill = (phases > 1).then(|| Scalar::zero(ty.dtype));
    Ok(w.view(map, fill, &dims))
}

/// The elements of the phases [n, oc · phases, windows…] in turn, as [n, oc, out…].
fn interleaved<'g>(y: Tensor<'g>, axes: &[PhaseAxis], out: &Extents) -> Result<Tensor<'g>> {
    let rank = axes.len();
    let lead = || out.range(..2);
    let y = if axes.iter().all(|axis| axis.stride == 1) {
        y
    } else {
        let strides = axes.iter().map(|axis| Extent::of(axis.stride));
        let apart: Extents = lead().all().chain(strides).chain(axes.iter().map(|axis| axis.count)).collect();
        let pairs = (0..rank).flat_map(|i| [2 + rank + i, 2 + i]);
        let whole: Extents = lead().all().chain(axes.iter().map(|axis| axis.count * axis.stride)).collect();
        let y = y.reshape(&apart).permute(&[0, 1].into_iter().chain(pairs).collect::<Vec<_>>()).reshape(&whole);
        axes.iter().enumerate().fold(y, |y, (i, axis)| y.slice(2 + i, axis.cut, axis.left))
    };
    if axes.iter().all(|axis| axis.apart == 1) {
        return Ok(y);
    }
    let mut map = vars(2 + rank);
    for (position, axis) in map[2..].iter_mut().zip(axes) {
        *position = position.offset(axis.before).exact_quotient(axis.apart, axis.left, out);
    }
    let fill = Some(Scalar::zero(y.ty()?.dtype));
    Ok(y.view(map, fill, out))
}

fn conv_transpose_body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Tensor<'g>> {
    let [x, w] = g.operands();
    let (xd, wd) = (x.dims()?, w.dims()?);
    let window = SpatialWindow::new(cx.params, wd[2..].to_vec()).or_fail(&g)?;
    let groups = groups(cx.params).or_fail(&g)?;
    let out = &cx.outputs[0].dims;
    let axis = |i: usize| {
        let before = spread(&window, cx.params, i, xd.at(2 + i))?.before;
        Ok(PhaseAxis::new(&window, i, before, out.at(2 + i)))
    };
    let axes = (0..window.kernel.len()).map(axis).collect::<std::result::Result<Vec<_>, OpError>>().or_fail(&g)?;
    let phases = Convolution {
        x,
        w: phase_filters(w, groups, &window, &axes)?,
        groups,
        spatial: axes.iter().map(|axis| axis.count).collect(),
        position: &|i, o, k| axes[i].position(o, k),
    };
    add_bias(interleaved(phases.result()?, &axes, out)?, g.maybe(2))
}

pub(super) fn conv_transpose() -> OpDef {
    let infer = rule(|cx| {
        one_type(cx)?;
        let Some((_, w)) = conv_ranks(cx, [0, 1])? else { return Ok(()) };
        let (x, g) = (open_ranked(cx, 0, w.len())?, groups(cx.params)?);
        cx.unify_dims(x[1], w[0], "operand `W`, axis 0 (channels)")?;
        let out = output_dims(cx, 0);
        cx.unify_dims(x[0], out[0], "output, axis 0")?;
        grouped(cx, out[1], w[1], g, "output, axis 1")?;
        cx.set_input_dims(2, [out[1]])?;
        let Some(kernel) = w[2..].iter().map(|d| d.as_const()).collect::<Option<Vec<u64>>>() else { return Ok(()) };
        let window = SpatialWindow::new(cx.params, kernel)?;
        for i in 0..w.len() - 2 {
            let what = format!("output, axis {}", 2 + i);
            match x[2 + i].as_extent() {
                Some(n) => {
                    let found = spread(&window, cx.params, i, n)?.out;
                    cx.unify_dims(Dim::of(found), out[2 + i], &what)?;
                }
                None if window.auto == AutoPad::Explicit && cx.params.ints("output_shape").is_none() => {
                    // Affine in the extent: its value at 0 is the constant.
                    let add = spread_offset(&window, cx.params, i);
                    let mul = window.strides[i];
                    cx.relate(Equation::Affine { out: out[2 + i], input: x[2 + i], mul, add, div: 1 })?;
                }
                None => {}
            }
        }
        Ok(())
    });
    let doc = "The transpose of a convolution: spreads [n, c, spatial…] with [c, oc / group, kernel…].";
    window_params(define("conv_transpose", doc, formula(conv_transpose_body), infer))
        .groups(&["X", "W"], FLOATS)
        .optional("B", TypeRule::Group(0, FLOATS))
        .param("group", 1, "Number of channel groups.")
        .maybe("output_padding", ParamKind::Ints, "Extra extent after every spatial axis.")
        .maybe("output_shape", ParamKind::Ints, "Extents of the result; the pads follow from it.")
        .onnx("ConvTranspose", 1)
        .ulp(1.0)
}

/// The constant term of the result extent as a function of the operand's.
pub(crate) fn spread_offset(window: &SpatialWindow, params: &Params, axis: usize) -> i64 {
    let extra = params.ints("output_padding").and_then(|l| l.get(axis)).copied().unwrap_or(0);
    extra + window.span(axis) - window.strides[axis] - window.before[axis] - window.after[axis]
}
