//! Diagonals and triangles as vectors, and sums over the diagonal.

use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![sumlogdiag(), extractdiag(), makediag(), extracttrian(), maketrian()]
}

fn offset(params: &Params) -> i64 {
    params.int("offset").unwrap_or(0)
}

/// The diagonal `offset` above the main one, of `n` elements.
fn diagonal(x: Tensor<'_>, offset: i64, n: u64) -> Result<Tensor<'_>> {
    let dims = x.dims()?;
    let batch = dims.len() - 2;
    let mut map = vars(batch + 1);
    let at = map[batch].clone();
    map[batch] = at.offset((-offset).max(0));
    map.push(at.offset(offset.max(0)));
    Ok(x.view(map, None, [&dims[..batch], &[n]].concat()))
}

/// The last extent of the result.
fn last(cx: &NodeCtx<'_>) -> u64 {
    cx.outputs[0].dims.last().copied().unwrap_or(0)
}

/// The leading axes of square matrices, and their extent.
fn square(cx: &mut InferCtx<'_>) -> Result<Option<(Vec<Dim>, Dim)>, OpError> {
    let Some(x) = rank_in(cx, 0, 2..=usize::MAX)? else { return Ok(None) };
    cx.unify_dims(x[x.len() - 2], x[x.len() - 1], "operand `A`, last axis")?;
    let n = cx.resolve(x[x.len() - 1]);
    Ok(Some((x[..x.len() - 2].to_vec(), n)))
}

fn sumlogdiag() -> OpDef {
    let compute = formula(|g, cx| {
        let dims = g.operand(0).dims()?;
        let logs = diagonal(g.operand(0), 0, dims[dims.len() - 1])?.log();
        Ok(logs.sum(&[dims.len() - 2]).reshape(&cx.outputs[0].dims))
    });
    let infer = shape_rule(|cx| {
        let Some((batch, _)) = square(cx)? else { return Ok(()) };
        // The result of one matrix has one element.
        cx.set_output_dims(0, if batch.is_empty() { vec![Dim::Const(1)] } else { batch })
    });
    define("mx_linalg_sumlogdiag", "The sum of the logarithms of the diagonal.", compute, infer)
        .operand("A", FLOATS)
        .ulp(2.0)
        .named(&["_linalg_sumlogdiag", "linalg_sumlogdiag"])
}

fn extractdiag() -> OpDef {
    let compute = formula(|g, cx| diagonal(g.operand(0), offset(cx.params), last(cx)));
    let infer = shape_rule(|cx| {
        let Some((batch, Dim::Const(n))) = square(cx)? else { return Ok(()) };
        let Some(len) = n.checked_sub(offset(cx.params).unsigned_abs()).filter(|n| *n > 0) else {
            return Err("parameter `offset`: no such diagonal".into());
        };
        cx.set_output_dims(0, batch.into_iter().chain([Dim::Const(len)]))
    });
    define("mx_linalg_extractdiag", "A diagonal as a vector.", compute, infer)
        .operand("A", FLOATS)
        .param("offset", 0, "how far above the main diagonal")
        .named(&["_linalg_extractdiag", "linalg_extractdiag"])
}

/// Which element of a vector goes where in a matrix, -1 for none.
fn placed(x: Tensor<'_>, n: u64, source: impl Fn(u64, u64) -> Option<u64>) -> Result<Tensor<'_>> {
    let dims = x.dims()?;
    let batch = dims.len() - 1;
    let positions: Vec<i64> = (0..n * n).map(|i| source(i / n, i % n).map_or(-1, |at| at as i64)).collect();
    let positions = x.graph().i64s(&positions);
    let all = x.gather(positions.map(|at| at.max(&at.lit(0.0))), batch);
    let kept = all.map_with(&[positions], |_, a| a[1].ge(&a[1].lit(0.0)).select(&a[0], &a[0].lit(0.0)));
    Ok(kept.reshape([&dims[..batch], &[n, n]].concat()))
}

fn makediag() -> OpDef {
    let compute = formula(|g, cx| {
        let shift = offset(cx.params);
        let on_diagonal = |row: u64, column: u64| column as i64 - row as i64 == shift;
        placed(g.operand(0), last(cx), |row, column| on_diagonal(row, column).then_some(row.min(column)))
    });
    let infer = shape_rule(|cx| {
        let Some(x) = rank_in(cx, 0, 1..=usize::MAX)? else { return Ok(()) };
        let Dim::Const(n) = x[x.len() - 1] else { return Ok(()) };
        let n = Dim::Const(n + offset(cx.params).unsigned_abs());
        cx.set_output_dims(0, x[..x.len() - 1].iter().copied().chain([n, n]))
    });
    define("mx_linalg_makediag", "A matrix with a vector as a diagonal.", compute, infer)
        .operand("A", FLOATS)
        .param("offset", 0, "how far above the main diagonal")
        .named(&["_linalg_makediag", "linalg_makediag"])
}

/// Positions of a triangle's elements in a matrix: of the lower one row by row, of the upper one column by column.
/// With offset 0 `lower` decides which triangle; otherwise the sign of the offset does.
fn triangle(params: &Params, n: u64) -> Vec<(u64, u64)> {
    let shift = offset(params);
    let lower = if shift == 0 { params.bool("lower") != Some(false) } else { shift < 0 };
    let pairs = (0..n).flat_map(|outer| (0..n).map(move |inner| (outer, inner)));
    match lower {
        true => pairs.filter(|(row, column)| *column as i64 - *row as i64 <= shift).collect(),
        false => pairs
            .map(|(column, row)| (row, column))
            .filter(|(row, column)| *column as i64 - *row as i64 >= shift)
            .collect(),
    }
}

fn with_triangle(def: OpDef) -> OpDef {
    let def = def.operand("A", FLOATS).param("offset", 0, "distance of the triangle's edge above the main diagonal");
    def.param("lower", true, "which triangle, if the offset is 0")
}

fn extracttrian() -> OpDef {
    let compute = formula(|g, cx| {
        let dims = g.operand(0).dims()?;
        let (batch, n) = (dims.len() - 2, dims[dims.len() - 1]);
        let positions: Vec<i64> = triangle(cx.params, n).iter().map(|&(r, c)| (r * n + c) as i64).collect();
        let flat = g.operand(0).reshape([&dims[..batch], &[n * n]].concat());
        Ok(flat.gather(g.i64s(&positions), batch))
    });
    let infer = shape_rule(|cx| {
        let Some((batch, Dim::Const(n))) = square(cx)? else { return Ok(()) };
        let len = triangle(cx.params, n).len() as u64;
        reject_if(len == 0, || "parameter `offset`: no such triangle")?;
        cx.set_output_dims(0, batch.into_iter().chain([Dim::Const(len)]))
    });
    let doc = "A triangle as a vector: the lower one row by row, the upper one column by column.";
    with_triangle(define("mx_linalg_extracttrian", doc, compute, infer))
        .named(&["_linalg_extracttrian", "linalg_extracttrian"])
}

/// The extent of the matrix whose triangle has `len` elements.
fn extent(params: &Params, len: u64) -> Option<u64> {
    // n·(n + 1) / 2 elements at a distance of |offset| from the main diagonal.
    let side = (0..=len).find(|n| n * (n + 1) / 2 >= len).filter(|n| n * (n + 1) / 2 == len)?;
    Some(side + offset(params).unsigned_abs())
}

fn maketrian() -> OpDef {
    let compute = formula(|g, cx| {
        let places = triangle(cx.params, last(cx));
        let source = |row, column| places.iter().position(|p| *p == (row, column)).map(|i| i as u64);
        placed(g.operand(0), last(cx), source)
    });
    let infer = shape_rule(|cx| {
        let Some(x) = rank_in(cx, 0, 1..=usize::MAX)? else { return Ok(()) };
        let Dim::Const(len) = x[x.len() - 1] else { return Ok(()) };
        let Some(n) = extent(cx.params, len) else {
            return Err(OpError(format!("operand `A`: no triangle has {len} elements")));
        };
        cx.set_output_dims(0, x[..x.len() - 1].iter().copied().chain([Dim::Const(n), Dim::Const(n)]))
    });
    with_triangle(define("mx_linalg_maketrian", "A matrix with a vector as a triangle.", compute, infer))
        .named(&["_linalg_maketrian", "linalg_maketrian"])
}
