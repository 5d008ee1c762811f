//! The steps of a recurrent layer.

use super::{Mode, gemm};
use crate::activation::sigmoid;
use crate::prelude::*;

/// Repeats the cell for each row of the first axis. Results: the hidden states of all steps, and the cell states of an LSTM.
pub fn run<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Vec<Tensor<'g>>> {
    let mode = Mode::of(cx.params);
    let ([mut input, weight, state], bias) = (g.operands(), g.maybe(4));
    let mut fixed = vec![weight];
    match (bias, mode) {
        (Some(bias), Mode::Gru) => fixed.push(bias),
        (Some(bias), _) => input = input + bias,
        (None, _) => {}
    }
    let mut carried = vec![state];
    if mode == Mode::Lstm {
        carried.push(g.operand(3));
    }
    let trips = input.dims()?.at(0);
    let made = g.repeat(trips, [&carried, &[input], &fixed], &|_, [carried, rows, fixed]| {
        let next = step(mode, rows[0], carried, fixed)?;
        Ok([next.clone(), next])
    })?;
    let [_, stacked] = made;
    Ok(stacked)
}

/// The state, and the cell of an LSTM, after one step.
fn step<'g>(mode: Mode, x: Tensor<'g>, before: &[Tensor<'g>], fixed: &[Tensor<'g>]) -> Result<Vec<Tensor<'g>>> {
    let (h, weight) = (before[0], fixed[0]);
    let hidden = h.dims()?.at(1);
    // Gates of [batch, gates · hidden].
    let gates = |z: Tensor<'g>| move |k: u64| z.slice(1, hidden * k, hidden);
    Ok(match (mode, before.get(1)) {
        (Mode::Lstm, Some(cell)) => {
            let [i, f, candidate, o] = [0, 1, 2, 3].map(gates(gemm(h, weight, Some(x))));
            let now = i.map_with(&[f, candidate, *cell], |_, a| sigmoid(&a[1]) * &a[3] + sigmoid(&a[0]) * a[2].tanh());
            vec![o.map_with(&[now], |_, a| sigmoid(&a[0]) * a[1].tanh()), now]
        }
        (Mode::Gru, _) => {
            let u = gemm(h, weight, fixed.get(1).copied());
            let [xr, xz, xn] = [0, 1, 2].map(gates(x));
            let [ur, uz, un] = [0, 1, 2].map(gates(u));
            vec![xr.map_with(&[xz, xn, ur, uz, un, h], |_, a| {
                let (r, z) = (sigmoid(&(&a[0] + &a[3])), sigmoid(&(&a[1] + &a[4])));
                let n = (&a[2] + r * &a[5]).tanh();
                (z.lit(1.0) - &z) * n + &z * &a[6]
            })]
        }
        (Mode::Tanh, _) => vec![gemm(h, weight, Some(x)).map(Ex::tanh)],
        _ => vec![gemm(h, weight, Some(x)).call("relu", &[])],
    })
}
