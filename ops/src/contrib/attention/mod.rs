//! Attention of ONNX Runtime: projections, packed operands, masks and caches around `attention`.

mod decoder;
mod group_query;
mod multi_head;
pub(super) mod projected;
mod rotary;

use crate::attention::by_head;
use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![
        projected::attention(),
        multi_head::multi_head(),
        group_query::group_query(),
        rotary::rotary(),
        decoder::decoder(),
    ]
}

/// The operands of one call of `attention`, each [batch, heads, sequence, size].
struct Call<'g> {
    q: Tensor<'g>,
    k: Tensor<'g>,
    v: Tensor<'g>,
    /// Keys and values of earlier calls.
    past: [Option<Tensor<'g>>; 2],
    /// What is added to the scores, or which keys are shown.
    mask: Option<Tensor<'g>>,
    causal: bool,
    scale: Option<f64>,
    softcap: f64,
}

impl<'g> Call<'g> {
    /// The result as [batch, sequence, heads · size], keys and values.
    fn results(self) -> Result<Vec<Tensor<'g>>> {
        let params = Params::new().with("is_causal", self.causal).with("softcap", self.softcap);
        let params = self.scale.map_or(params.clone(), |scale| params.with("scale", scale));
        let operands = [Some(self.q), Some(self.k), Some(self.v), self.mask, self.past[0], self.past[1]];
        let mut made = self.q.graph().op_multi("attention", &operands, params, 3);
        let d = made[0].dims()?;
        made[0] = made[0].permute(&[0, 2, 1, 3]).reshape([d[0], d[2], d[1] * d[3]]);
        Ok(made)
    }
}

/// The parameter `scale`; 0 stands for the default.
fn scale_of(cx: &NodeCtx<'_>) -> Option<f64> {
    cx.params.float("scale").filter(|scale| *scale != 0.0)
}

/// What a mask of keys adds to scores, [batch, 1, 1 or queries, keys]: nothing where a key is shown, else `hidden`. The mask
/// has the number of keys of each sample, and perhaps the first, or an entry for each key, or for each query and key.
fn key_mask<'g>(mask: Tensor<'g>, to: DType, [batch, keys]: [u64; 2], hidden: f64) -> Result<Tensor<'g>> {
    let (g, d) = (mask.graph(), mask.dims()?);
    let shown = |s: &ScalarBuilder, shown: Ex| {
        let [zero, hidden] = [0.0, hidden].map(|x| s.number(crate::compose::compute_type(to), x));
        shown.select(&zero, &hidden)
    };
    match d.len() {
        1 => {
            let part = |at: u64| mask.slice(0, at * batch, batch).reshape([batch, 1, 1, 1]);
            let bounds: Vec<_> = (0..d[0] / batch.max(1)).map(part).collect();
            let dims = [batch, 1, 1, keys];
            Ok(g.map(&bounds, to, dims, |s, a| {
                let at = s.coord(3);
                let before_end = at.lt(&a[0].cast(DType::I64));
                let no = s.constant(Scalar::bool(false));
                let visible = a
                    .get(1)
                    .map_or(before_end.clone(), |start| at.ge(&start.cast(DType::I64)).select(&before_end, &no));
                shown(s, visible)
            }))
        }
        2 => {
            let dims = [batch, 1, 1, keys];
            Ok(g.map(&[mask.reshape(dims)], to, dims, |s, a| shown(s, a[0].gt(&a[0].lit(0.0)))))
        }
        _ => {
            let dims = [batch, 1, d[1], keys];
            Ok(g.map(&[mask.reshape(dims)], to, dims, |s, a| shown(s, a[0].gt(&a[0].lit(0.0)))))
        }
    }
}

/// The sum of what is added to scores.
fn added<'g>(mask: Option<Tensor<'g>>, bias: Option<Tensor<'g>>) -> Option<Tensor<'g>> {
    match (mask, bias) {
        (Some(mask), Some(bias)) => Some(mask + bias),
        (mask, bias) => mask.or(bias),
    }
}

/// The number of heads.
fn heads_of(params: &Params, name: &str) -> Result<u64, OpError> {
    match params.int(name) {
        Some(n) if n > 0 => Ok(n as u64),
        found => Err(OpError(format!("parameter `{name}` is {}", found.unwrap_or(0)))),
    }
}

/// A mask of keys has one of the forms of [`key_mask`], for as many keys and queries.
fn check_key_mask(cx: &InferCtx<'_>, i: usize, [batch, queries, keys]: [Dim; 3]) -> Result<(), OpError> {
    let Some(dims) = crate::rules::open_rank_in(cx, i, 1..=3)? else { return Ok(()) };
    let name = cx.input_name(i);
    let expect = |axis: usize, found: Dim, expected: Dim| match (found.as_const(), cx.resolve(expected).as_const()) {
        (Some(found), Some(expected)) if found != expected => {
            Err(OpError(format!("{name}, axis {axis}: expected {expected}, found {found}")))
        }
        _ => Ok(()),
    };
    match dims[..] {
        [n] => match (n.as_const(), batch.as_const()) {
            (Some(n), Some(batch)) if n != batch && n != 2 * batch => {
                Err(OpError(format!("{name}: expected {batch} or {} elements, found {n}", 2 * batch)))
            }
            _ => Ok(()),
        },
        [b, k] => expect(0, b, batch).and(expect(1, k, keys)),
        _ => expect(0, dims[0], batch).and(expect(1, dims[1], queries)).and(expect(2, dims[2], keys)),
    }
}

/// What is added to the scores broadcasts to them.
fn check_bias(cx: &InferCtx<'_>, i: usize, heads: u64, [batch, queries, keys]: [Dim; 3]) -> Result<(), OpError> {
    crate::rules::open_rank_in(cx, i, 4..=4)?;
    broadcasts_to(cx, i, &[batch, Dim::Const(heads), queries, cx.resolve(keys)])
}
