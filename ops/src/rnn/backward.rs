//! The derivative of a recurrent layer: back propagation through time.
//!
//! At every step, the gradient of the gates is that of the state (and cell) times factors that do not depend on
//! it. So the factors of all steps are computed at once, from the states, and only the products remain in the
//! chain.

use super::{Mode, product, row};
use crate::activation::sigmoid;
use crate::prelude::*;

/// Extents, and the type of everything.
#[derive(Clone, Copy)]
struct RnnExtents {
    time: u64,
    batch: u64,
    gates: u64,
    hidden: u64,
    dtype: DType,
}

impl RnnExtents {
    /// Gate `k` of [time, batch, gates · hidden].
    fn gate<'g>(&self, z: Tensor<'g>, k: u64) -> Tensor<'g> {
        z.slice(2, k * self.hidden, self.hidden)
    }

    /// [time, batch, gates · hidden] as rows.
    fn rows<'g>(&self, x: Tensor<'g>, width: u64) -> Tensor<'g> {
        x.reshape([self.time * self.batch, width])
    }
}

/// Factors of the gradient, [time, batch, gates · hidden] or [time, batch, hidden].
struct Factors<'g> {
    /// Of the recurrent share of the gates.
    gates: Tensor<'g>,
    /// Of the input's share, where it is another.
    input: Option<Tensor<'g>>,
    /// What goes on to the step before directly: the forget gate of a cell, the update gate of a state.
    keep: Option<Tensor<'g>>,
    /// From the state to the cell.
    cell: Option<Tensor<'g>>,
}

/// The states before each step.
fn before<'g>(first: Tensor<'g>, all: Tensor<'g>) -> Result<Tensor<'g>> {
    let dims = all.dims()?;
    let first = first.reshape([&[1], &dims[1..]].concat());
    let rest = all.slice(0, 0, dims[0] - 1);
    Ok(if dims[0] == 1 { first } else { all.graph().concat(&[first, rest], 0) })
}

fn lstm_factors<'g>(e: &RnnExtents, z: Tensor<'g>, [previous, now]: [Tensor<'g>; 2]) -> Factors<'g> {
    let [i, f, g, o] = [0, 1, 2, 3].map(|k| e.gate(z, k));
    let slope = |s: &Ex| s * (s.lit(1.0) - s);
    let by_gate = [
        i.map_with(&[g], |_, a| a[1].tanh() * slope(&sigmoid(&a[0]))),
        f.map_with(&[previous], |_, a| &a[1] * slope(&sigmoid(&a[0]))),
        i.map_with(&[g], |_, a| {
            let g = a[1].tanh();
            sigmoid(&a[0]) * (g.lit(1.0) - &g * &g)
        }),
        o.map_with(&[now], |_, a| a[1].tanh() * slope(&sigmoid(&a[0]))),
    ];
    let cell = o.map_with(&[now], |_, a| {
        let c = a[1].tanh();
        sigmoid(&a[0]) * (c.lit(1.0) - &c * &c)
    });
    let keep = f.map(sigmoid);
    Factors { gates: z.graph().concat(&by_gate, 2), input: None, keep: Some(keep), cell: Some(cell) }
}

/// `x` and `u`: the shares of input and state in the gates.
fn gru_factors<'g>(e: &RnnExtents, [x, u, previous]: [Tensor<'g>; 3]) -> Factors<'g> {
    let [xr, xz, xn] = [0, 1, 2].map(|k| e.gate(x, k));
    let [ur, uz, un] = [0, 1, 2].map(|k| e.gate(u, k));
    let r = xr.map_with(&[ur], |_, a| sigmoid(&(&a[0] + &a[1])));
    let z = xz.map_with(&[uz], |_, a| sigmoid(&(&a[0] + &a[1])));
    let n = xn.map_with(&[r, un], |_, a| (&a[0] + &a[1] * &a[2]).tanh());
    let candidate = z.map_with(&[n], |_, a| (a[0].lit(1.0) - &a[0]) * (a[1].lit(1.0) - &a[1] * &a[1]));
    let reset = candidate.map_with(&[un, r], |_, a| &a[0] * &a[1] * &a[2] * (a[2].lit(1.0) - &a[2]));
    let update = previous.map_with(&[n, z], |_, a| (&a[0] - &a[1]) * &a[2] * (a[2].lit(1.0) - &a[2]));
    let inner = candidate * r;
    let joined = |last| x.graph().concat(&[reset, update, last], 2);
    Factors { gates: joined(inner), input: Some(joined(candidate)), keep: Some(z), cell: None }
}

/// Steps of [batch, n] as [time, batch, n].
fn stacked<'g>(g: GraphScope<'g>, steps: &[Tensor<'g>]) -> Result<Tensor<'g>> {
    let lifted = |s: &Tensor<'g>| Ok(s.reshape([&[1], &s.dims()?[..]].concat()));
    Ok(g.concat(&steps.iter().map(lifted).collect::<Result<Vec<_>>>()?, 0))
}

/// Gradients of the gates by step, of the states by step, and of the first state and cell.
struct StepGradients<'g> {
    gates: Vec<Tensor<'g>>,
    states: Vec<Tensor<'g>>,
    first: Tensor<'g>,
    first_cell: Option<Tensor<'g>>,
}

/// Gates times what reaches them: the last gate of an LSTM the state, others the cell.
fn gate_gradient<'g>(e: &RnnExtents, factor: Tensor<'g>, dh: Tensor<'g>, dc: Option<Tensor<'g>>) -> Tensor<'g> {
    let factor = factor.reshape([e.batch, e.gates, e.hidden]);
    let reaching: Vec<_> = [dh].into_iter().chain(dc).map(|d| d.reshape([e.batch, 1, e.hidden])).collect();
    let out = factor.map_with(&reaching, |s, a| match a.get(2) {
        Some(dc) => &a[0] * s.coord(1).eq(&s.coord(1).lit(3.0)).select(&a[1], dc),
        None => &a[0] * &a[1],
    });
    out.reshape([e.batch, e.gates * e.hidden])
}

fn chain<'g>(cx: &GradCtx<'_>, e: &RnnExtents, f: &Factors<'g>, weight: Tensor<'g>) -> Result<StepGradients<'g>> {
    let g = weight.graph();
    let head = |i: usize, t: u64| g.given_head(cx, i).map(|h| row(h, t)).transpose();
    let add = |x: Option<Tensor<'g>>, y: Option<Tensor<'g>>| match (x, y) {
        (Some(x), Some(y)) => Some(x + y),
        (x, y) => x.or(y),
    };
    let (mut gates, mut states) = (vec![], vec![]);
    let zeros = g.filled(&DenseType::new(e.dtype, [e.batch, e.hidden]), 0.0);
    let mut dh = head(0, e.time - 1)?.unwrap_or(zeros);
    let mut dc: Option<Tensor<'g>> = None;
    for t in (0..e.time).rev() {
        if let Some(cell) = f.cell {
            let from_state = row(cell, t)?;
            let later = add(dc, head(1, t)?);
            let inputs: Vec<_> = [from_state].into_iter().chain(later).collect();
            dc = Some(dh.map_with(&inputs, |_, a| match a.get(2) {
                Some(later) => &a[0] * &a[1] + later,
                None => &a[0] * &a[1],
            }));
        }
        let dz = gate_gradient(e, row(f.gates, t)?, dh, dc);
        let keep = f.keep.map(|k| row(k, t)).transpose()?;
        let mut direct = if t > 0 { head(0, t - 1)? } else { None };
        match (dc, keep) {
            (Some(cell), Some(keep)) => dc = Some(cell * keep),
            (None, Some(keep)) => direct = add(direct, Some(dh * keep)),
            _ => {}
        }
        gates.push(dz);
        states.push(dh);
        dh = product([dz, weight], direct, [false, false]);
    }
    gates.reverse();
    states.reverse();
    Ok(StepGradients { gates, states, first: dh, first_cell: dc })
}

pub fn run<'g>(g: GraphScope<'g>, cx: &GradCtx<'_>) -> Gradients<'g> {
    let mode = Mode::of(cx.node.params);
    let ([input, weight, state], bias, states) = (g.operands(), g.maybe(4), g.value(cx.outputs[0]));
    let (ty, hidden) = (input.ty()?, weight.dims()?[1]);
    let e = RnnExtents { time: ty.dims[0], batch: ty.dims[1], gates: mode.gates(), hidden, dtype: ty.dtype };
    if e.time == 0 {
        return Ok(vec![None; 5]);
    }
    let previous = before(state, states)?;
    let previous_rows = e.rows(previous, hidden);
    let recurrent = || product([previous_rows, weight], bias, [false, true]).reshape(&ty.dims);
    let plain = |gates| Factors { gates, input: None, keep: None, cell: None };
    let factors = match mode {
        Mode::Tanh => plain(states.map(|h| h.lit(1.0) - h * h)),
        Mode::Relu => plain(states.map(|h| h.gt(&h.lit(0.0)).select(&h.lit(1.0), &h.lit(0.0)))),
        Mode::Lstm => {
            let z = input + recurrent();
            let now = g.value(cx.outputs[1]);
            lstm_factors(&e, z, [before(g.operand(3), now)?, now])
        }
        Mode::Gru => gru_factors(&e, [input, recurrent(), previous]),
    };
    let chain = chain(cx, &e, &factors, weight)?;
    let gates = stacked(g, &chain.gates)?;
    let d_input = match factors.input {
        None => gates,
        Some(factor) => {
            let dh = stacked(g, &chain.states)?.reshape([e.time, e.batch, 1, hidden]);
            let factor = factor.reshape([e.time, e.batch, e.gates, hidden]);
            factor.map_with(&[dh], |_, a| &a[0] * &a[1]).reshape(&ty.dims)
        }
    };
    let rows = e.rows(gates, e.gates * hidden);
    let d_weight = product([rows, previous_rows], None, [true, false]);
    let d_bias = bias.map(|_| rows.sum(&[0]).reshape([e.gates * hidden]));
    Ok(vec![Some(d_input), Some(d_weight), Some(chain.first), chain.first_cell, d_bias])
}
