//! Broadcasting, tiling, repeating, diagonals, and blocks between channels and space.

use crate::index::all_but;
use crate::mxnet::reduce::line;
use crate::prelude::*;
use crate::resize::repeated;
use crate::views::broadcast;

pub fn ops() -> Vec<OpDef> {
    vec![
        broadcast_to(),
        broadcast_axis(),
        broadcast_like(),
        tile(),
        repeat(),
        diag(),
        blocks("mx_depth_to_space", "Moves blocks of channels of [n, c, h, w] into space.", "depth_to_space"),
        blocks("mx_space_to_depth", "Moves spatial blocks of [n, c, h, w] into channels.", "space_to_depth"),
    ]
}

/// An entry whose result is the operand repeated along axes of extent 1.
fn broadcasting(name: &'static str, doc: &'static str, infer: fn(&mut InferCtx<'_>) -> Result<(), OpError>) -> OpDef {
    let compute = formula(|g, cx| {
        let (from, to) = (g.operand(0).dims()?, &cx.outputs[0].dims);
        Ok(g.operand(0).view(broadcast(&from, to).map, None, to))
    });
    define(name, doc, compute, shape_rule(infer))
}

/// The extent an axis is broadcast to.
fn stretched(from: Dim, to: Dim, what: &str) -> Result<Dim, OpError> {
    match (from.as_extent(), to.as_extent()) {
        (Some(a), Some(b)) if a != 1 && a != b => Err(OpError(format!("{what}: cannot broadcast {a} to {b}"))),
        _ => Ok(to),
    }
}

fn broadcast_to() -> OpDef {
    broadcasting("mx_broadcast_to", "The data repeated along axes of extent 1; 0 in `shape` keeps an axis.", |cx| {
        let shape = cx.params.ints("shape").unwrap_or(&[]).to_vec();
        let Some(x) = cx.open_dims(0) else { return Ok(()) };
        if x.len() != shape.len() {
            return Err(OpError(format!("parameter `shape`: expected {} entries, found {}", x.len(), shape.len())));
        }
        let mut dims = vec![];
        for (i, (&from, &n)) in x.iter().zip(&shape).enumerate() {
            let to = if n <= 0 { from } else { Dim::Const(n as u64) };
            dims.push(stretched(from, to, &format!("operand `data`, axis {i}"))?);
        }
        cx.set_output_dims(0, dims)
    })
    .operand("data", &[])
    .param("shape", ParamValue::Ints(vec![]), "The result's shape.")
    .named(&["broadcast_to"])
}

fn broadcast_axis() -> OpDef {
    broadcasting(
        "mx_broadcast_axis",
        "The data repeated along the given axes, of extent 1, to the given sizes.",
        |cx| {
            let list = |name: &str| cx.params.ints(name).unwrap_or(&[]).to_vec();
            let (axes, sizes) = (list("axis"), list("size"));
            if axes.len() != sizes.len() {
                return Err(OpError(format!(
                    "parameters `axis` and `size`: {} and {} entries",
                    axes.len(),
                    sizes.len()
                )));
            }
            let Some(x) = cx.open_dims(0) else { return Ok(()) };
            let mut dims = x.to_vec();
            for (axis, size) in axes.into_iter().zip(sizes) {
                let at = normalize_axis(axis, x.len())?;
                cx.unify_dims(Dim::Const(1), x[at], &format!("operand `data`, axis {at}"))?;
                dims[at] = Dim::Const(size.max(0) as u64);
            }
            cx.set_output_dims(0, dims)
        },
    )
    .operand("data", &[])
    .param("axis", ParamValue::Ints(vec![]), "Axes of extent 1.")
    .param("size", ParamValue::Ints(vec![]), "What they become.")
    .named(&["broadcast_axis", "broadcast_axes"])
}

fn broadcast_like() -> OpDef {
    broadcasting(
        "mx_broadcast_like",
        "lhs repeated along axes of extent 1 to the shape of rhs, or to some of its axes.",
        |cx| {
            let (Some(x), Some(like)) = (cx.open_dims(0), cx.open_dims(1)) else { return Ok(()) };
            let list = |name: &str, rank: usize| match cx.params.ints(name) {
                Some(list) => list.iter().map(|&a| normalize_axis(a, rank)).collect::<Result<Vec<_>, _>>(),
                None => Ok((0..rank).collect()),
            };
            let (own, other) = (list("lhs_axes", x.len())?, list("rhs_axes", like.len())?);
            reject_if(own.len() != other.len(), || format!("{} axes of lhs and {} of rhs", own.len(), other.len()))?;
            let mut dims = x.to_vec();
            for (a, b) in own.into_iter().zip(other) {
                dims[a] = stretched(x[a], like[b], &format!("operand `lhs`, axis {a}"))?;
            }
            cx.set_output_dims(0, dims)
        },
    )
    .operands(&["lhs", "rhs"], &[])
    .maybe("lhs_axes", ParamKind::Ints, "Axes that are broadcast; default: all.")
    .maybe("rhs_axes", ParamKind::Ints, "Axes that say how far; default: all.")
    .named(&["broadcast_like"])
}

/// The operand's extents and the repetitions, with axes of extent 1 in front to equal rank.
fn aligned<T: Copy>(list: &[T], rank: usize, one: T) -> Vec<T> {
    [&vec![one; rank - list.len()][..], list].concat()
}

fn tile() -> OpDef {
    let compute = formula(|g, cx| {
        let (x, out) = (g.operand(0), &cx.outputs[0].dims);
        let own: Vec<Extent> = x.dims()?.all().collect();
        let dims: Extents = aligned(&own, out.len(), Extent::ONE).into_iter().collect();
        let map = vars(out.len()).into_iter().zip(dims.all()).map(|(at, n)| at.modulo(n.as_divisor(), out));
        Ok(x.reshaped(&dims).view(map.collect(), None, out))
    });
    let infer = shape_rule(|cx| {
        let reps = cx.params.ints("reps").unwrap_or(&[]).to_vec();
        let Some(x) = cx.open_dims(0) else { return Ok(()) };
        let rank = x.len().max(reps.len());
        let (x, reps) = (aligned(&x, rank, Dim::Const(1)), aligned(&reps, rank, 1));
        partial(cx, 0, &vec![None; rank])?;
        let out = output_dims(cx, 0);
        for (i, &n) in reps.iter().enumerate() {
            reject_if(n < 0, || format!("parameter `reps`: entry {i} is {n}"))?;
            match n {
                0 => cx.unify_dims(Dim::Const(0), out[i], "output")?,
                n => cx.relate(Equation::Affine { out: out[i], input: x[i], mul: n, add: 0, div: 1 })?,
            }
        }
        Ok(())
    });
    define("mx_tile", "The data repeated as a whole along the last axes, or along new ones in front.", compute, infer)
        .operand("data", &[])
        .required("reps", ParamKind::Ints, "Repetitions by axis.")
        .named(&["tile"])
}

fn repeats(params: &Params) -> Result<u64, OpError> {
    match params.int("repeats") {
        Some(n) if n >= 0 => Ok(n as u64),
        n => Err(OpError(format!("parameter `repeats` is {}", n.unwrap_or(0)))),
    }
}

fn repeat() -> OpDef {
    let compute = formula(|g, cx| {
        let n = repeats(cx.params).or_fail(&g)?;
        let (x, axis) = line(g.operand(0), cx.params.int("axis"))?;
        repeated(x, axis, n as i64)
    });
    let infer = shape_rule(|cx| {
        let n = repeats(cx.params)?;
        let Some(x) = cx.open_dims(0) else { return Ok(()) };
        match cx.params.int("axis") {
            Some(axis) => {
                let at = cx.axis(axis, x.len())?;
                all_but(cx, 0, &x, at, x[at].as_extent().map(|d| Dim::of(d.saturating_mul(n))))
            }
            None => {
                let dims = x.iter().map(|d| d.as_extent()).collect::<Option<Extents>>();
                partial(cx, 0, &[dims.map(|dims| Dim::of(dims.count().saturating_mul(n)))])
            }
        }
    });
    define("mx_repeat", "Every element of the flattened data, or along an axis, repeated.", compute, infer)
        .operand("data", &[])
        .required("repeats", ParamKind::Int, "Repetitions.")
        .maybe("axis", ParamKind::Int, "The axis; default: the flattened data.")
        .named(&["repeat"])
}

/// The axes a diagonal runs along.
fn diagonal_axes(params: &Params, rank: usize) -> Result<[usize; 2], OpError> {
    let axes = [
        normalize_axis(params.int("axis1").unwrap_or(0), rank)?,
        normalize_axis(params.int("axis2").unwrap_or(1), rank)?,
    ];
    if axes[0] == axes[1] { Err("parameters `axis1` and `axis2` are equal".into()) } else { Ok(axes) }
}

fn diag() -> OpDef {
    let compute = formula(|g, cx| {
        let (x, out) = (g.operand(0), &cx.outputs[0].dims);
        let ty = x.ty()?;
        let k = cx.params.int("k").unwrap_or(0);
        let (down, right) = ((-k).max(0), k.max(0));
        if ty.rank() == 1 {
            // Off the diagonal the position lies beyond the vector, where the view fills.
            let v = vars(2);
            let along = if k >= 0 { v[0].clone() } else { v[1].clone() };
            let beyond = v[1].sub(&v[0]).offset(-k).scale(out.at(0));
            return Ok(x.view(vec![along.add(&beyond)], Some(Scalar::zero(ty.dtype)), out));
        }
        let [row, column] = diagonal_axes(cx.params, ty.rank()).or_fail(&g)?;
        let along = Index::var(out.len() as u32 - 1);
        let mut rest = vars(out.len()).into_iter();
        let map = (0..ty.rank()).map(|axis| match axis {
            a if a == row => along.offset(down),
            a if a == column => along.offset(right),
            _ => rest.next().unwrap_or_default(),
        });
        Ok(x.view(map.collect(), None, out))
    });
    let infer = shape_rule(|cx| {
        let k = cx.params.int("k").unwrap_or(0);
        let Some(x) = cx.open_dims(0) else { return Ok(()) };
        if x.len() == 1 {
            let n = x[0].as_extent().map(|n| Dim::of(n + k.unsigned_abs()));
            return partial(cx, 0, &[n, n]);
        }
        let [row, column] = diagonal_axes(cx.params, x.len())?;
        let mut dims: Vec<Option<Dim>> =
            (0..x.len()).filter(|a| *a != row && *a != column).map(|a| Some(x[a])).collect();
        dims.push(match (x[row].as_extent(), x[column].as_extent()) {
            (Some(rows), Some(columns)) => {
                let n = (rows - (-k).max(0)).least(columns - k.max(0));
                reject_if(n <= 0, || format!("parameter `k`: diagonal {k} of {rows}×{columns} is empty"))?;
                Some(Dim::of(n))
            }
            _ => None,
        });
        partial(cx, 0, &dims)
    });
    define("mx_diag", "The k-th diagonal of the data, or a matrix with the data on it.", compute, infer)
        .operand("data", &[])
        .param("k", 0, "Diagonals above the main one.")
        .param("axis1", 0, "Axis of the rows.")
        .param("axis2", 1, "Axis of the columns.")
        .named(&["diag"])
}

/// An entry elsewhere, under MXNet's name of its parameter.
fn blocks(name: &'static str, doc: &'static str, entry: &'static str) -> OpDef {
    let compute = formula(move |g, cx| {
        let side = cx.params.int("block_size").unwrap_or(1);
        Ok(g.op(entry, &[g.operand(0)], Params::new().with("blocksize", side)))
    });
    let deep = entry == "space_to_depth";
    let infer = shape_rule(move |cx| {
        let side = cx.params.int("block_size").unwrap_or(0);
        reject_if(side <= 0, || format!("parameter `block_size` is {side}"))?;
        let x = open_ranked(cx, 0, 4)?;
        partial(cx, 0, &[None; 4])?;
        let out = output_dims(cx, 0);
        cx.unify_dims(x[0], out[0], "output, axis 0")?;
        // Channels are many where extents are small.
        let (fine, coarse) = if deep { (&x, &out) } else { (&out, &x) };
        for (axis, large, small, factor) in
            [(1, coarse[1], fine[1], side * side), (2, fine[2], coarse[2], side), (3, fine[3], coarse[3], side)]
        {
            multiple_of(cx.resolve(large), factor as u64, &format!("axis {axis}"))?;
            cx.relate(Equation::Affine { out: large, input: small, mul: factor, add: 0, div: 1 })?;
        }
        Ok(())
    });
    define(name, doc, compute, infer)
        .operand("data", &[])
        .required("block_size", ParamKind::Int, "Side of a block.")
        .named(&[entry])
}
