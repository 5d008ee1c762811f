//! Convolution and transposed convolution over any number of spatial axes.

mod transposed;
mod volume;

use crate::prelude::*;
use crate::rules::open_ranked;

pub(crate) use transposed::{spread, spread_offset};

pub fn ops() -> Vec<OpDef> {
    vec![conv(), transposed::conv_transpose()]
}

/// Number of groups, from `group` (ONNX) or `num_group` (MXNet).
fn groups(params: &Params) -> Result<u64, OpError> {
    match params.int("group").unwrap_or(1) {
        g if g > 0 => Ok(g as u64),
        g => Err(OpError(format!("parameter `group` is {g}"))),
    }
}

/// The positions along the spatial axes that an output and a kernel position read.
type Positions<'a> = &'a dyn Fn(usize, &Index, &Index) -> Index;

/// `out[n, oc, o…] = Σ x[n, ic, position(o, k)…] · w[oc, ic, k…]`, within groups of channels.
struct Convolution<'a, 'g> {
    /// [n, ic, …]
    x: Tensor<'g>,
    /// [oc, ic / groups, k…]
    w: Tensor<'g>,
    groups: u64,
    /// The extents of the result [n, oc, spatial…].
    spatial: Extents,
    position: Positions<'a>,
}

impl<'g> Convolution<'_, 'g> {
    fn result(&self) -> Result<Tensor<'g>> {
        if self.is_of_volumes()? { self.over_images() } else { self.contraction() }
    }

    fn contraction(&self) -> Result<Tensor<'g>> {
        let Convolution { x, w, groups, ref spatial, position } = *self;
        let (n, wd) = (x.dims()?.at(0), w.dims()?);
        let (oc, ic, kernel) = (wd[0], wd[1], wd.range(2..));
        // Groups of a single filter are the output channels.
        let split = groups > 1 && oc != groups;
        let channels = if split { vec![groups, oc / groups] } else { vec![oc] };
        let lead: Vec<Extent> = [n].into_iter().chain(channels.into_iter().map(Extent::from)).collect();
        let out_rank = lead.len() + spatial.len();
        let extents: Extents =
            lead.iter().copied().chain(spatial.all()).chain([ic.into()]).chain(kernel.all()).collect();
        let v = vars(extents.len());
        let channel = &v[out_rank];
        let in_channel = if groups > 1 { v[1].scale(ic as i64).add(channel) } else { channel.clone() };
        let out_channel = if split { v[1].scale((oc / groups) as i64).add(&v[2]) } else { v[1].clone() };
        let (mut lhs, mut rhs) = (vec![v[0].clone(), in_channel], vec![out_channel, channel.clone()]);
        for axis in 0..spatial.len() {
            let (o, k) = (&v[lead.len() + axis], &v[out_rank + 1 + axis]);
            lhs.push(position(axis, o, k));
            rhs.push(k.clone());
        }
        let y = x.contract(w, Contraction::new(extents, out_rank, lhs, rhs));
        Ok(y.reshape(Extents::from_iter([n, oc.into()].into_iter().chain(spatial.all()))))
    }
}

/// Adds `bias[c]` to channel `c` of [n, c, …].
pub fn add_bias<'g>(y: Tensor<'g>, bias: Option<Tensor<'g>>) -> Result<Tensor<'g>> {
    let Some(bias) = bias else { return Ok(y) };
    let shape = y.dims()?;
    let dims: Extents = (1..shape.len()).map(|axis| if axis == 1 { shape.at(1) } else { Extent::ONE }).collect();
    Ok(y.map_with(&[bias.reshape(&dims)], |_, a| &a[0] + &a[1]))
}

/// Where a convolution reads.
pub(crate) struct ConvGeometry<'a> {
    pub groups: u64,
    /// The spatial extents of the result.
    pub spatial: Extents,
    /// Whether there are positions outside of the image.
    pub padded: bool,
    pub position: Positions<'a>,
}

/// Calls `f` with where a node with the parameters of a convolution reads of `x`, with filters of so many axes.
pub(crate) fn with_geometry<'g, T>(
    g: GraphScope<'g>,
    cx: &NodeCtx<'_>,
    [x, w]: [Tensor<'g>; 2],
    f: impl FnOnce(&ConvGeometry<'_>) -> Result<T>,
) -> Result<T> {
    let (xd, wd) = (x.dims()?, w.dims()?);
    let window = SpatialWindow::new(cx.params, wd[2..].to_vec()).or_fail(&g)?;
    let position = |axis: usize, o: &Index, k: &Index| window.position(axis, xd.at(2 + axis), o, k);
    let (groups, spatial) = (groups(cx.params).or_fail(&g)?, cx.outputs[0].dims.range(2..));
    f(&ConvGeometry { groups, spatial, padded: window.may_pad(), position: &position })
}

fn conv_body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Tensor<'g>> {
    let [x, w] = g.operands();
    let result = with_geometry(g, cx, [x, w], |geometry| {
        let ConvGeometry { groups, ref spatial, position, .. } = *geometry;
        Convolution { x, w, groups, spatial: spatial.clone(), position }.result()
    });
    add_bias(result?, g.maybe(2))
}

/// Axes of the data and of the weight.
type ConvOperands = (Vec<Dim>, Vec<Dim>);

/// All operands have the type of the result.
fn one_type(cx: &mut InferCtx<'_>) -> Result<(), OpError> {
    (0..3).filter(|i| cx.has_input(*i)).collect::<Vec<_>>().into_iter().try_for_each(|i| cx.same_dtype(0, i))
}

/// Ranks of data, weight (these operands) and result agree; returns the data's and the weight's axes if known.
fn conv_ranks(cx: &mut InferCtx<'_>, operands: [usize; 2]) -> Result<Option<ConvOperands>, OpError> {
    let from_kernel = cx.params.ints("kernel_shape").filter(|k| !k.is_empty()).map(|k| k.len() + 2);
    let rank =
        operands.into_iter().find_map(|i| cx.input_shape(i).rank()).or(from_kernel).or(cx.output_shape(0).rank());
    let Some(rank) = rank else { return Ok(None) };
    reject_if(rank < 3, || format!("operand `X`: expected rank at least 3, found rank {rank}"))?;
    let x = open_ranked(cx, operands[0], rank)?;
    let w = ranked(cx, operands[1], rank)?;
    if let Some(kernel) = cx.params.ints("kernel_shape").map(<[i64]>::to_vec).filter(|k| !k.is_empty()) {
        if kernel.len() != rank - 2 {
            let (expected, found) = (rank - 2, kernel.len());
            return Err(OpError(format!("parameter `kernel_shape`: expected {expected} entries, found {found}")));
        }
        for (i, &k) in kernel.iter().enumerate() {
            cx.unify_dims(Dim::Const(k.max(0) as u64), w[2 + i], &format!("operand `W`, axis {}", 2 + i))?;
        }
    }
    partial(cx, 0, &vec![None; rank])?;
    let resolved = |dims: Vec<Dim>| dims.into_iter().map(|d| cx.resolve(d)).collect();
    Ok(Some((resolved(x), resolved(w))))
}

/// `whole = part · groups`.
pub(crate) fn grouped(cx: &mut InferCtx<'_>, whole: Dim, part: Dim, groups: u64, what: &str) -> Result<(), OpError> {
    if groups == 1 {
        return cx.unify_dims(whole, part, what);
    }
    if let (Some(w), Some(p)) = (cx.resolve(whole).as_extent(), cx.resolve(part).as_extent())
        && w != p * groups
    {
        return Err(OpError(format!("{what}: expected {w} / {groups} groups, found {p}")));
    }
    cx.relate(Equation::Affine { out: whole, input: part, mul: groups as i64, add: 0, div: 1 })
}

/// The shape of the convolution of data with a weight, by their operands; returns the number of filters, if the rank is
/// known.
pub(crate) fn conv_shape(cx: &mut InferCtx<'_>, operands: [usize; 2]) -> Result<Option<Dim>, OpError> {
    let Some((x, w)) = conv_ranks(cx, operands)? else { return Ok(None) };
    let g = groups(cx.params)?;
    grouped(cx, x[1], w[1], g, "operand `W`, axis 1 (channels)")?;
    if let Dim::Const(oc) = w[0]
        && oc % g != 0
    {
        return Err(OpError(format!("operand `W`, axis 0: expected a multiple of {g} groups, found {oc}")));
    }
    let out = output_dims(cx, 0);
    cx.unify_dims(x[0], out[0], "output, axis 0")?;
    cx.unify_dims(w[0], out[1], "output, axis 1")?;
    if let Some(kernel) = w[2..].iter().map(|d| d.as_const()).collect::<Option<Vec<u64>>>() {
        let window = SpatialWindow::new(cx.params, kernel)?;
        (0..w.len() - 2).try_for_each(|i| window.relate(cx, i, x[2 + i], out[2 + i]))?;
    }
    Ok(Some(w[0]))
}

pub(crate) fn conv() -> OpDef {
    let infer = rule(|cx| {
        one_type(cx)?;
        let Some(filters) = conv_shape(cx, [0, 1])? else { return Ok(()) };
        cx.set_input_dims(2, [filters])
    });
    let def =
        define("conv", "Convolution of [n, c, spatial…] with [oc, c / group, kernel…].", formula(conv_body), infer);
    window_params(def)
        .groups(&["X", "W"], NUMBERS)
        .optional("B", TypeRule::Group(0, NUMBERS))
        .param("group", 1, "Number of channel groups.")
        .onnx("Conv", 1)
        .ulp(1.0)
}

/// The window parameters of ONNX.
pub fn window_params(def: OpDef) -> OpDef {
    def.param("auto_pad", "NOTSET", "NOTSET, SAME_UPPER, SAME_LOWER or VALID.")
        .maybe("kernel_shape", ParamKind::Ints, "Extents of the window.")
        .maybe("strides", ParamKind::Ints, "Default: 1.")
        .maybe("dilations", ParamKind::Ints, "Default: 1.")
        .maybe("pads", ParamKind::Ints, "Before every spatial axis, then after every one. Default: 0.")
}
