//! The steps of a recurrent layer.

use super::{Mode, gemm, row};
use crate::activation::sigmoid;
use crate::prelude::*;

/// Steps of [batch, n] as [time, batch, n].
pub fn stacked<'g>(g: GraphScope<'g>, steps: &[Tensor<'g>]) -> Result<Tensor<'g>> {
    let lifted = |s: &Tensor<'g>| Ok(s.reshape([&[1], &s.dims()?[..]].concat()));
    Ok(g.concat(&steps.iter().map(lifted).collect::<Result<Vec<_>>>()?, 0))
}

pub fn run<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Vec<Tensor<'g>>> {
    let mode = Mode::of(cx.params);
    let ([mut input, weight, mut h], bias) = (g.operands(), g.maybe(4));
    if let (Some(bias), false) = (bias, mode == Mode::Gru) {
        input = input + bias;
    }
    let hidden = h.dims()?[1];
    // Gates of [batch, gates · hidden].
    let gates = |z: Tensor<'g>| move |k: u64| z.slice(1, k * hidden, hidden);
    let mut c = if mode == Mode::Lstm { Some(g.operand(3)) } else { None };
    let (mut states, mut cells) = (vec![], vec![]);
    for t in 0..input.dims()?[0] {
        let x = row(input, t)?;
        h = match (mode, c) {
            (Mode::Lstm, Some(before)) => {
                let [i, f, candidate, o] = [0, 1, 2, 3].map(gates(gemm(h, weight, Some(x))));
                let now =
                    i.map_with(&[f, candidate, before], |_, a| sigmoid(&a[1]) * &a[3] + sigmoid(&a[0]) * a[2].tanh());
                c = Some(now);
                cells.push(now);
                o.map_with(&[now], |_, a| sigmoid(&a[0]) * a[1].tanh())
            }
            (Mode::Gru, _) => {
                let u = gemm(h, weight, bias);
                let [xr, xz, xn] = [0, 1, 2].map(gates(x));
                let [ur, uz, un] = [0, 1, 2].map(gates(u));
                xr.map_with(&[xz, xn, ur, uz, un, h], |_, a| {
                    let (r, z) = (sigmoid(&(&a[0] + &a[3])), sigmoid(&(&a[1] + &a[4])));
                    let n = (&a[2] + r * &a[5]).tanh();
                    (z.lit(1.0) - &z) * n + &z * &a[6]
                })
            }
            (Mode::Tanh, _) => gemm(h, weight, Some(x)).map(Ex::tanh),
            _ => gemm(h, weight, Some(x)).call("relu", &[]),
        };
        states.push(h);
    }
    let mut out = vec![stacked(g, &states)?];
    if mode == Mode::Lstm {
        out.push(stacked(g, &cells)?);
    }
    Ok(out)
}
