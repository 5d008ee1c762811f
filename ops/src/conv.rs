//! Convolution and transposed convolution over any number of spatial axes.

use crate::prelude::*;
use crate::rules::open_ranked;

pub fn ops() -> Vec<OpDef> {
    vec![conv(), conv_transpose()]
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
///
/// `x` is [n, ic, …], `w` is [oc, ic / groups, k…], the result [n, oc, spatial…].
fn convolve<'g>(
    x: Tensor<'g>,
    w: Tensor<'g>,
    groups: u64,
    spatial: &Extents,
    position: Positions<'_>,
) -> Result<Tensor<'g>> {
    let (n, wd) = (x.dims()?.at(0), w.dims()?);
    let (oc, ic, kernel) = (wd[0], wd[1], wd.range(2..));
    // Groups of a single filter are the output channels.
    let split = groups > 1 && oc != groups;
    let channels = if split { vec![groups, oc / groups] } else { vec![oc] };
    let lead: Vec<Extent> = [n].into_iter().chain(channels.into_iter().map(Extent::from)).collect();
    let out_rank = lead.len() + spatial.len();
    let extents: Extents = lead.iter().copied().chain(spatial.all()).chain([ic.into()]).chain(kernel.all()).collect();
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

/// Adds `bias[c]` to channel `c` of [n, c, …].
pub fn add_bias<'g>(y: Tensor<'g>, bias: Option<Tensor<'g>>) -> Result<Tensor<'g>> {
    let Some(bias) = bias else { return Ok(y) };
    let shape = y.dims()?;
    let dims: Extents = (1..shape.len()).map(|axis| if axis == 1 { shape.at(1) } else { Extent::ONE }).collect();
    Ok(y.map_with(&[bias.reshape(&dims)], |_, a| &a[0] + &a[1]))
}

fn conv_body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Tensor<'g>> {
    let [x, w] = g.operands();
    let (xd, wd) = (x.dims()?, w.dims()?);
    let window = SpatialWindow::new(cx.params, wd[2..].to_vec()).or_fail(&g)?;
    let groups = groups(cx.params).or_fail(&g)?;
    let position = |axis: usize, o: &Index, k: &Index| window.position(axis, xd.at(2 + axis), o, k);
    add_bias(convolve(x, w, groups, &cx.outputs[0].dims.range(2..), &position)?, g.maybe(2))
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

fn conv() -> OpDef {
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

/// The weights [ic, oc / g, k…] as those of a convolution, [oc, ic / g, k…] with every kernel axis
/// reversed.
fn flipped_weights(w: Tensor<'_>, groups: u64) -> Result<Tensor<'_>> {
    let d = w.dims()?;
    let (ic, oc) = (d[0] / groups, d[1]);
    let dims = [&[oc * groups, ic][..], &d[2..]].concat();
    let v = vars(dims.len());
    let group = v[0].floor_div(oc as i64, &dims[..]);
    let mut map = vec![group.scale(ic as i64).add(&v[1]), v[0].modulo(oc as i64, &dims[..])];
    map.extend((2..d.len()).map(|i| v[i].scale(-1).offset(d[i] as i64 - 1)));
    Ok(w.view(map, None, &dims))
}

/// Puts `stride - 1` zeros after every element of the spatial axes.
fn zero_insertion<'g>(x: Tensor<'g>, strides: &[i64]) -> Result<Tensor<'g>> {
    let ty = x.ty()?;
    let mut dims = ty.dims.clone();
    (0..strides.len()).for_each(|i| dims.set(2 + i, dims.at(2 + i) * strides[i]));
    let mut map = vars(dims.len());
    for (i, &s) in strides.iter().enumerate() {
        let at = map[2 + i].clone();
        // A remainder moves the coordinate past the end of the axis, where the view fills.
        let beyond = at.modulo(s, &dims).scale(ty.dims.at(2 + i));
        map[2 + i] = at.floor_div(s, &dims).add(&beyond);
    }
    let fill = strides.iter().any(|s| *s > 1).then(|| Scalar::zero(ty.dtype));
    Ok(x.view(map, fill, &dims))
}

/// With kernel equal to stride the windows tile the result: one contraction, then a shuffle.
fn tiled_transpose<'g>(x: Tensor<'g>, w: Tensor<'g>, groups: u64, out: &Extents) -> Result<Tensor<'g>> {
    let (xd, wd) = (x.dims()?, w.dims()?);
    let (ic, oc, rank) = (xd.at(1).div_floor(groups), wd[1], xd.len() - 2);
    let lead = [xd.at(0), groups.into(), oc.into()];
    let sides = wd.range(2..);
    let spatial = xd.range(2..);
    let extents: Extents = lead.into_iter().chain(sides.all()).chain(spatial.all()).chain([ic]).collect();
    let v = vars(extents.len());
    let out_rank = extents.len() - 1;
    let in_channel = v[1].scale(ic).add(&v[out_rank]);
    let lhs = [&[v[0].clone(), in_channel.clone()][..], &v[3 + rank..out_rank]].concat();
    let rhs = [&[in_channel, v[2].clone()][..], &v[3..3 + rank]].concat();
    let y = x.contract(w, Contraction::new(extents, out_rank, lhs, rhs));
    let pairs = (0..rank).flat_map(|i| [3 + rank + i, 3 + i]);
    Ok(y.permute(&[0, 1, 2].into_iter().chain(pairs).collect::<Vec<_>>()).reshape(out))
}

fn conv_transpose_body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Tensor<'g>> {
    let [x, w] = g.operands();
    let (xd, wd) = (x.dims()?, w.dims()?);
    let window = SpatialWindow::new(cx.params, wd[2..].to_vec()).or_fail(&g)?;
    let groups = groups(cx.params).or_fail(&g)?;
    let out = &cx.outputs[0].dims;
    let rank = xd.len() - 2;
    let before: Vec<Extent> = (0..rank)
        .map(|i| spread(&window, cx.params, i, xd.at(2 + i)).map(|s| s.before))
        .collect::<Result<_, _>>()
        .or_fail(&g)?;
    let tiles = (0..rank).all(|i| {
        before[i] == 0
            && window.span(i) == window.strides[i]
            && wd[2 + i] == window.strides[i] as u64
            && out.at(2 + i) == xd.at(2 + i) * wd[2 + i]
    });
    let y = if tiles {
        tiled_transpose(x, w, groups, out)?
    } else {
        let spaced = zero_insertion(x, &window.strides)?;
        let w = flipped_weights(w, groups)?;
        let position = |axis: usize, o: &Index, k: &Index| {
            o.add(&k.scale(window.dilations[axis])).offset(before[axis] + 1 - window.span(axis))
        };
        convolve(spaced, w, groups, &out.range(2..), &position)?
    };
    add_bias(y, g.maybe(2))
}

fn conv_transpose() -> OpDef {
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
