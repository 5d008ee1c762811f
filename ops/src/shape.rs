//! Operators that rearrange axes: reshape, transpose, squeeze, broadcast and their kin.

use crate::prelude::*;
use crate::rules::axes;
use crate::views::{broadcast, permute, reshape, view_prim};

pub fn ops() -> Vec<OpDef> {
    vec![
        reshape_op(),
        flatten(),
        squeeze(),
        unsqueeze(),
        transpose(),
        expand(),
        tile(),
        swap_axes(),
        depth_to_space(),
        space_to_depth(),
    ]
}

/// A view that only regroups elements: everything follows from the two shapes.
fn regroup(name: &'static str, doc: &'static str, infer: fn(&mut InferCtx<'_>) -> Result<(), OpError>) -> OpDef {
    let compute = prim(|cx| {
        let (from, to) = (cx.input(0)?, &cx.outputs[0]);
        match from.dims.count() == to.dims.count() {
            true => Ok(view_prim(reshape(&from.dims, &to.dims))),
            false => Err(OpError(format!("operand `data`: {from} cannot become {to}"))),
        }
    });
    define(name, doc, compute, shape_rule(infer)).operand("data", &[])
}

/// The product of two lists of axes is equal; dimensions are solved from it either way.
fn conserve(cx: &mut InferCtx<'_>, left: &[Dim], right: &[Dim]) -> Result<(), OpError> {
    cx.relate(Equation::Product { left: left.to_vec(), right: right.to_vec() })
}

fn reshape_op() -> OpDef {
    regroup(
        "reshape",
        "The elements in the same order under another shape. An extent of -1 follows from the others; 0 copies the \
         operand's extent unless `allowzero`.",
        |cx| {
            let input = cx.open_dims(0);
            let Some(shape) = extents(cx, 1) else {
                if let Some(rank) = length(cx, 1) {
                    partial(cx, 0, &vec![None; rank])?;
                }
                return Ok(());
            };
            let allow_zero = cx.params.flag("allowzero");
            let mut dims = vec![];
            for (i, &n) in shape.iter().enumerate() {
                dims.push(match n.known() {
                    Some(0) if !allow_zero => match &input {
                        Some(input) if i >= input.len() => {
                            return Err(OpError(format!(
                                "operand `shape`: entry {i} copies an axis, but `data` has rank {}",
                                input.len()
                            )));
                        }
                        Some(input) => Some(input[i]),
                        None => None,
                    },
                    Some(-1) => None,
                    _ if n < 0 => return Err(OpError(format!("operand `shape`: entry {i} is {n}"))),
                    _ => Some(Dim::of(n)),
                });
            }
            reject_if(
                shape.iter().filter(|n| n.is_surely(-1)).count() > 1,
                || "operand `shape`: more than one entry is -1",
            )?;
            partial(cx, 0, &dims)?;
            if let Some(input) = input {
                let output = output_dims(cx, 0);
                // Axes copied from the operand cancel, which keeps the equation solvable.
                let copied = |i: usize| shape[i].is_surely(0) && !allow_zero;
                let left: Vec<Dim> =
                    (0..input.len()).filter(|&i| i >= shape.len() || !copied(i)).map(|i| input[i]).collect();
                let right: Vec<Dim> = (0..output.len()).filter(|&i| !copied(i)).map(|i| output[i]).collect();
                conserve(cx, &left, &right)?;
            }
            Ok(())
        },
    )
    .static_operands(&["shape"], INDICES)
    .param("allowzero", false, "A 0 in `shape` is an empty axis.")
    .onnx("Reshape", 5)
}

fn flatten() -> OpDef {
    regroup("flatten", "A matrix: the axes before `axis` joined, and the rest joined.", |cx| {
        partial(cx, 0, &[None, None])?;
        let Some(input) = cx.open_dims(0) else { return Ok(()) };
        let rank = input.len() as i64;
        let axis = cx.params.int("axis").unwrap_or(1);
        let at = if axis < 0 { axis + rank } else { axis };
        reject_if(!(0..=rank).contains(&at), || format!("axis {axis} is out of range for rank {rank}"))?;
        let out = output_dims(cx, 0);
        conserve(cx, &input[..at as usize], &out[..1])?;
        conserve(cx, &input[at as usize..], &out[1..])
    })
    .param("axis", 1, "First axis of the second group.")
    .onnx("Flatten", 1)
    .named(&["Flatten", "flatten"])
}

/// The extents of the first operand without axes of extent 1: the given ones, or all, once they are known.
pub(crate) fn squeezed_dims(cx: &mut InferCtx<'_>, given: Option<Vec<i64>>) -> Result<Option<Vec<Dim>>, OpError> {
    let Some(x) = cx.open_dims(0) else { return Ok(None) };
    let drop = match given {
        Some(list) => axes(&list, x.len())?,
        None if x.iter().any(|d| d.as_extent().is_none()) => return Ok(None),
        None => (0..x.len()).filter(|&i| x[i].as_extent() == Some(Extent::ONE)).collect(),
    };
    for &axis in &drop {
        cx.unify_dims(Dim::Const(1), x[axis], &format!("operand `data`, axis {axis}"))?;
    }
    Ok(Some((0..x.len()).filter(|i| !drop.contains(i)).map(|i| x[i]).collect()))
}

fn squeeze() -> OpDef {
    regroup("squeeze", "Drops the given axes of extent 1, or all of them.", |cx| {
        let given = ints(cx, 1);
        if given.is_none() && cx.has_input(1) {
            return Ok(());
        }
        let Some(dims) = squeezed_dims(cx, given)? else { return Ok(()) };
        cx.set_output_dims(0, dims)
    })
    .static_optionals(&["axes"], INDICES)
    .onnx("Squeeze", 1)
}

fn unsqueeze() -> OpDef {
    regroup("unsqueeze", "Inserts axes of extent 1 at the given positions of the result.", |cx| {
        let Some(list) = ints(cx, 1) else { return Ok(()) };
        match (cx.input_shape(0), cx.output_shape(0)) {
            (Shape::Ranked(input), _) => {
                let rank = input.len() + list.len();
                let new = axes(&list, rank)?;
                let mut old = input.into_iter();
                let dims: Vec<Dim> = (0..rank)
                    .map(|i| if new.contains(&i) { None } else { old.next() }.unwrap_or(Dim::Const(1)))
                    .collect();
                cx.set_output_dims(0, dims)
            }
            (Shape::Unranked, Shape::Ranked(out)) => {
                let new = axes(&list, out.len())?;
                let old: Dims = (0..out.len()).filter(|i| !new.contains(i)).map(|i| out[i]).collect();
                cx.set_input_dims(0, old)
            }
            _ => Ok(()),
        }
    })
    .static_operands(&["axes"], INDICES)
    .onnx("Unsqueeze", 1)
}

/// The permutation of a transpose: reversal unless given.
type Permutation = fn(&Params, usize) -> Result<Vec<usize>, OpError>;

/// Relates the extents of the first operand and the result, axis i of which is axis `permutation[i]` of the operand.
pub(crate) fn permuted_dims(cx: &mut InferCtx<'_>, permutation: Permutation) -> Result<(), OpError> {
    match (cx.input_shape(0), cx.output_shape(0)) {
        (Shape::Ranked(input), _) => {
            let perm = permutation(cx.params, input.len())?;
            cx.set_output_dims(0, perm.iter().map(|&p| input[p]))
        }
        (_, Shape::Ranked(out)) => {
            let mut dims = out.clone();
            for (i, p) in permutation(cx.params, out.len())?.into_iter().enumerate() {
                dims[p] = out[i];
            }
            cx.set_input_dims(0, dims)
        }
        _ => Ok(()),
    }
}

fn permutation(params: &Params, rank: usize) -> Result<Vec<usize>, OpError> {
    match params.ints("perm") {
        None | Some([]) => Ok((0..rank).rev().collect()),
        Some(list) if list.len() == rank => axes(list, rank),
        Some(list) => Err(OpError(format!("perm {list:?} does not fit rank {rank}"))),
    }
}

fn transpose() -> OpDef {
    let compute = prim(|cx| Ok(view_prim(permute(&permutation(cx.params, cx.input(0)?.rank())?))));
    let infer = shape_rule(|cx| permuted_dims(cx, permutation));
    define("transpose", "Permutes the axes: result axis i is operand axis `perm[i]`.", compute, infer)
        .operand("data", &[])
        .maybe("perm", ParamKind::Ints, "Default: the axes reversed.")
        .onnx("Transpose", 1)
}

fn swap_axes() -> OpDef {
    fn swapped(params: &Params, rank: usize) -> Result<Vec<usize>, OpError> {
        let axis = |name: &str| normalize_axis(params.int(name).unwrap_or(0), rank);
        let mut perm: Vec<usize> = (0..rank).collect();
        perm.swap(axis("dim1")?, axis("dim2")?);
        Ok(perm)
    }
    let compute = prim(|cx| Ok(view_prim(permute(&swapped(cx.params, cx.input(0)?.rank())?))));
    let infer = shape_rule(|cx| {
        let Some(input) = cx.open_dims(0) else { return Ok(()) };
        cx.set_output_dims(0, swapped(cx.params, input.len())?.into_iter().map(|p| input[p]))
    });
    define("swap_axes", "Exchanges two axes.", compute, infer)
        .operand("data", &[])
        .param("dim1", 0, "")
        .param("dim2", 0, "")
        .named(&["SwapAxis", "swapaxes"])
}

fn expand() -> OpDef {
    let compute = prim(|cx| Ok(view_prim(broadcast(&cx.input(0)?.dims, &cx.outputs[0].dims))));
    let infer = shape_rule(|cx| {
        let Some(target) = extents(cx, 1) else {
            return match (length(cx, 1), cx.open_dims(0)) {
                (Some(length), Some(input)) => partial(cx, 0, &vec![None; length.max(input.len())]),
                _ => Ok(()),
            };
        };
        if let Some(n) = target.iter().find(|n| **n < 0) {
            return Err(OpError(format!("operand `shape`: negative extent {n}")));
        }
        let Some(input) = cx.open_dims(0) else { return Ok(()) };
        let rank = input.len().max(target.len());
        let mut dims = vec![];
        for axis in 0..rank {
            let from = (axis + input.len()).checked_sub(rank).map(|i| input[i]).unwrap_or(Dim::Const(1));
            let to = (axis + target.len()).checked_sub(rank).map_or(Extent::ONE, |i| target[i]);
            dims.push(match from.as_extent() {
                _ if to == 1 => Some(from),
                Some(a) if a != 1 && a != to => {
                    return Err(OpError(format!("operand `input`, axis {axis}: cannot broadcast {a} to {to}")));
                }
                _ => Some(Dim::of(to)),
            });
        }
        partial(cx, 0, &dims)
    });
    define("expand", "Broadcasts the operand and `shape` against each other by the numpy rule.", compute, infer)
        .operand("input", &[])
        .static_operands(&["shape"], INDICES)
        .onnx("Expand", 8)
}

fn tile() -> OpDef {
    let compute = prim(|cx| {
        let (from, to) = (&cx.input(0)?.dims, &cx.outputs[0].dims);
        let map = from.all().enumerate().map(|(i, n)| Index::var(i as u32).modulo(n.as_divisor(), to));
        Ok(view_prim(View { map: map.collect(), fill: None }))
    });
    let infer = shape_rule(|cx| {
        let Some(input) = cx.open_dims(0) else { return Ok(()) };
        let Some(repeats) = extents(cx, 1) else { return partial(cx, 0, &vec![None; input.len()]) };
        if repeats.len() != input.len() {
            let (found, rank) = (repeats.len(), input.len());
            return Err(OpError(format!("operand `repeats`: expected {rank} entries, found {found}")));
        }
        let known = input.iter().zip(&repeats).map(|(d, n)| match d.as_extent() {
            _ if n.is_surely(0) => Some(Dim::Const(0)),
            _ if n.is_surely(1) => Some(*d),
            d => d.map(|d| Dim::of(d * n.greatest(0))),
        });
        let dims: Vec<Option<Dim>> = known.collect();
        partial(cx, 0, &dims)?;
        let out = output_dims(cx, 0);
        for (i, &n) in repeats.iter().enumerate().filter(|(i, _)| dims[*i].is_none()) {
            cx.relate(Equation::Affine { out: out[i], input: input[i], mul: n.fixed(), add: 0, div: 1 })?;
        }
        Ok(())
    });
    define("tile", "Repeats the operand along every axis.", compute, infer)
        .operand("input", &[])
        .static_operands(&["repeats"], INDICES)
        .onnx("Tile", 6)
}

fn block_size(cx: &InferCtx<'_>) -> Result<u64, OpError> {
    match cx.params.int("blocksize") {
        // Its square is an extent.
        Some(n) if n > 0 && n.checked_mul(n).is_some() => Ok(n as u64),
        n => Err(OpError(format!("parameter `blocksize` is {}", n.unwrap_or(0)))),
    }
}

/// States that axis 1 of `coarse` holds the blocks of `side`² positions in the space of `fine`.
pub(crate) fn relate_blocks(cx: &mut InferCtx<'_>, coarse: &[Dim], fine: &[Dim], side: i64) -> Result<(), OpError> {
    let pairs = [(coarse[1], fine[1], side * side), (fine[2], coarse[2], side), (fine[3], coarse[3], side)];
    let relate = |(out, input, mul)| cx.relate(Equation::Affine { out, input, mul, add: 0, div: 1 });
    pairs.into_iter().try_for_each(relate)
}

fn depth_to_space() -> OpDef {
    let compute = formula(|g, cx| {
        let d = g.operand(0).dims()?;
        let s = cx.params.int("blocksize").unwrap_or(1) as u64;
        let [n, channels, h, w] = [0, 1, 2, 3].map(|axis| d.at(axis));
        let (c, side) = (channels.div_floor(s * s), Extent::from(s));
        let (split, perm) = match cx.params.str("mode") {
            Some("CRD") => ([n, c, side, side, h, w], [0, 1, 4, 2, 5, 3]),
            Some("DCR") | None => ([n, side, side, c, h, w], [0, 3, 4, 1, 5, 2]),
            Some(other) => return Err(g.fail(format!("parameter `mode`: unknown mode `{other}`"))),
        };
        Ok(g.operand(0).reshape(Extents::of(split)).permute(&perm).reshape(Extents::of([n, c, h * s, w * s])))
    });
    let infer = shape_rule(|cx| {
        partial(cx, 0, &[None; 4])?;
        let s = block_size(cx)? as i64;
        let Some(input) = open_rank_in(cx, 0, 4..=4)? else { return Ok(()) };
        multiple_of(input[1], (s * s) as u64, "operand `input`, axis 1")?;
        let out = output_dims(cx, 0);
        cx.unify_dims(input[0], out[0], "output, axis 0")?;
        relate_blocks(cx, &input, &out, s)
    });
    define("depth_to_space", "Moves blocks of channels of [n, c, h, w] into space.", compute, infer)
        .operand("input", &[])
        .required("blocksize", ParamKind::Int, "Side of a block.")
        .param("mode", "DCR", "Order within the channels: DCR or CRD.")
        .onnx("DepthToSpace", 1)
}

fn space_to_depth() -> OpDef {
    let compute = formula(|g, cx| {
        let d = g.operand(0).dims()?;
        let s = cx.params.int("blocksize").unwrap_or(1) as u64;
        let ([n, c], [h, w]) = ([0, 1].map(|axis| d.at(axis)), [2, 3].map(|axis| d.at(axis).div_floor(s)));
        let split = Extents::of([n, c, h, s.into(), w, s.into()]);
        let order = match cx.params.str("mode") {
            Some("CRD") => [0, 1, 3, 5, 2, 4],
            Some("DCR") | None => [0, 3, 5, 1, 2, 4],
            Some(other) => return Err(g.fail(format!("parameter `mode`: unknown mode `{other}`"))),
        };
        let blocks = g.operand(0).reshape(split).permute(&order);
        Ok(blocks.reshape(Extents::of([n, c * (s * s), h, w])))
    });
    let infer = shape_rule(|cx| {
        partial(cx, 0, &[None; 4])?;
        let s = block_size(cx)? as i64;
        let Some(input) = open_rank_in(cx, 0, 4..=4)? else { return Ok(()) };
        for axis in [2, 3] {
            multiple_of(input[axis], s as u64, &format!("operand `input`, axis {axis}"))?;
        }
        let out = output_dims(cx, 0);
        cx.unify_dims(input[0], out[0], "output, axis 0")?;
        relate_blocks(cx, &out, &input, s)
    });
    define("space_to_depth", "Moves spatial blocks of [n, c, h, w] into channels.", compute, infer)
        .operand("input", &[])
        .required("blocksize", ParamKind::Int, "Side of a block.")
        .param("mode", "DCR", "Order within the channels: DCR or CRD.")
        .onnx("SpaceToDepth", 1)
}
