//! The derivative of a recurrent layer: back propagation through time.
//!
//! At every step, the gradient of the gates is that of the state (and cell) times factors that do not depend on
//! it. So the factors of all steps are computed at once, from the states, and only the products remain in the
//! chain.

use super::forward::{stacked, step};
use super::{Mode, product};
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
    /// Element-wise over [time, batch, hidden].
    fn map(&self, b: &mut Builder<'_>, x: &[Value], f: impl Fn(&[Ex]) -> Ex) -> Result<Value> {
        b.map_as(x, self.dtype, &[self.time, self.batch, self.hidden], |_, a| f(a))
    }

    /// Element-wise over [batch, hidden].
    fn step_map(&self, b: &mut Builder<'_>, x: &[Value], f: impl Fn(&[Ex]) -> Ex) -> Result<Value> {
        b.map_as(x, self.dtype, &[self.batch, self.hidden], |_, a| f(a))
    }

    /// Gate `g` of [time, batch, gates · hidden].
    fn gate(&self, b: &mut Builder<'_>, z: Value, g: u64) -> Result<Value> {
        b.slice_axis(z, 2, g * self.hidden, self.hidden)
    }

    /// [time, batch, gates · hidden] as rows.
    fn rows(&self, b: &mut Builder<'_>, x: Value, width: u64) -> Result<Value> {
        b.reshaped(x, &[self.time * self.batch, width])
    }
}

/// Factors of the gradient, [time, batch, gates · hidden] or [time, batch, hidden].
struct Factors {
    /// Of the recurrent share of the gates.
    gates: Value,
    /// Of the input's share, where it is another.
    input: Option<Value>,
    /// What goes on to the step before directly: the forget gate of a cell, the update gate of a state.
    keep: Option<Value>,
    /// From the state to the cell.
    cell: Option<Value>,
}

/// The states before each step.
fn before(b: &mut Builder<'_>, first: Value, all: Value) -> Result<Value> {
    let dims = b.dims(all)?;
    let first = b.reshaped(first, &[&[1], &dims[1..]].concat())?;
    let rest = b.slice_axis(all, 0, 0, dims[0] - 1)?;
    match dims[0] {
        1 => Ok(first),
        _ => b.concat(&[first, rest], 0),
    }
}

fn lstm_factors(b: &mut Builder<'_>, e: &RnnExtents, z: Value, cells: [Value; 2]) -> Result<Factors> {
    let [i, f, g, o] = [0, 1, 2, 3].map(|k| e.gate(b, z, k));
    let (i, f, g, o) = (i?, f?, g?, o?);
    let [previous, now] = cells;
    let slope = |s: &Ex| s * (s.lit(1.0) - s);
    let by_gate = [
        e.map(b, &[i, g], |a| a[1].tanh() * slope(&sigmoid(&a[0])))?,
        e.map(b, &[f, previous], |a| &a[1] * slope(&sigmoid(&a[0])))?,
        e.map(b, &[i, g], |a| {
            let g = a[1].tanh();
            sigmoid(&a[0]) * (g.lit(1.0) - &g * &g)
        })?,
        e.map(b, &[o, now], |a| a[1].tanh() * slope(&sigmoid(&a[0])))?,
    ];
    let cell = e.map(b, &[o, now], |a| {
        let c = a[1].tanh();
        sigmoid(&a[0]) * (c.lit(1.0) - &c * &c)
    })?;
    let keep = e.map(b, &[f], |a| sigmoid(&a[0]))?;
    Ok(Factors { gates: b.concat(&by_gate, 2)?, input: None, keep: Some(keep), cell: Some(cell) })
}

/// `x` and `u`: the shares of input and state in the gates.
fn gru_factors(b: &mut Builder<'_>, e: &RnnExtents, [x, u, previous]: [Value; 3]) -> Result<Factors> {
    let [xr, xz, xn] = [0, 1, 2].map(|k| e.gate(b, x, k));
    let [ur, uz, un] = [0, 1, 2].map(|k| e.gate(b, u, k));
    let (ur, un) = (ur?, un?);
    let r = e.map(b, &[xr?, ur], |a| sigmoid(&(&a[0] + &a[1])))?;
    let z = e.map(b, &[xz?, uz?], |a| sigmoid(&(&a[0] + &a[1])))?;
    let n = e.map(b, &[xn?, r, un], |a| (&a[0] + &a[1] * &a[2]).tanh())?;
    let candidate = e.map(b, &[z, n], |a| (a[0].lit(1.0) - &a[0]) * (a[1].lit(1.0) - &a[1] * &a[1]))?;
    let reset = e.map(b, &[candidate, un, r], |a| &a[0] * &a[1] * &a[2] * (a[2].lit(1.0) - &a[2]))?;
    let update = e.map(b, &[previous, n, z], |a| (&a[0] - &a[1]) * &a[2] * (a[2].lit(1.0) - &a[2]))?;
    let inner = b.call("mul", &[candidate, r])?;
    Ok(Factors {
        gates: b.concat(&[reset, update, inner], 2)?,
        input: Some(b.concat(&[reset, update, candidate], 2)?),
        keep: Some(z),
        cell: None,
    })
}

/// Gradients of the gates by step, of the states by step, and of the first state and cell.
struct StepGradients {
    gates: Vec<Value>,
    states: Vec<Value>,
    first: Value,
    first_cell: Option<Value>,
}

/// Gates times what reaches them: the last gate of an LSTM the state, others the cell.
fn gate_gradient(b: &mut Builder<'_>, e: &RnnExtents, factor: Value, dh: Value, dc: Option<Value>) -> Result<Value> {
    let wide = [e.batch, e.gates, e.hidden];
    let factor = b.reshaped(factor, &wide)?;
    let narrow = [e.batch, 1, e.hidden];
    let mut inputs = vec![factor, b.reshaped(dh, &narrow)?];
    if let Some(dc) = dc {
        inputs.push(b.reshaped(dc, &narrow)?);
    }
    let out = b.map_as(&inputs, e.dtype, &wide, |s, a| match a.get(2) {
        Some(dc) => &a[0] * s.coord(1).eq(&s.coord(1).lit(3.0)).select(&a[1], dc),
        None => &a[0] * &a[1],
    })?;
    b.reshaped(out, &[e.batch, e.gates * e.hidden])
}

fn chain(
    b: &mut Builder<'_>,
    e: &RnnExtents,
    heads: &[Option<Value>],
    f: &Factors,
    weight: Value,
) -> Result<StepGradients> {
    let head =
        |b: &mut Builder<'_>, i: usize, t: u64| heads.get(i).copied().flatten().map(|h| step(b, h, t)).transpose();
    let add = |b: &mut Builder<'_>, x: Option<Value>, y: Option<Value>| match (x, y) {
        (Some(x), Some(y)) => b.call("add", &[x, y]).map(Some),
        (x, y) => Ok(x.or(y)),
    };
    let (mut gates, mut states) = (vec![], vec![]);
    let zeros = b.filled(&DenseType::new(e.dtype, &[e.batch, e.hidden]), 0.0)?;
    let mut dh = head(b, 0, e.time - 1)?.unwrap_or(zeros);
    let mut dc: Option<Value> = None;
    for t in (0..e.time).rev() {
        if let Some(cell) = f.cell {
            let from_state = step(b, cell, t)?;
            let own = head(b, 1, t)?;
            let later = add(b, dc, own)?;
            let inputs: Vec<Value> = [dh, from_state].into_iter().chain(later).collect();
            dc = Some(e.step_map(b, &inputs, |a| match a.get(2) {
                Some(later) => &a[0] * &a[1] + later,
                None => &a[0] * &a[1],
            })?);
        }
        let factor = step(b, f.gates, t)?;
        let dz = gate_gradient(b, e, factor, dh, dc)?;
        let keep = f.keep.map(|k| step(b, k, t)).transpose()?;
        let mut direct = if t > 0 { head(b, 0, t - 1)? } else { None };
        match (dc, keep) {
            (Some(cell), Some(keep)) => dc = Some(b.call("mul", &[cell, keep])?),
            (None, Some(keep)) => {
                let kept = b.call("mul", &[dh, keep])?;
                direct = add(b, direct, Some(kept))?;
            }
            _ => {}
        }
        gates.push(dz);
        states.push(dh);
        dh = product(b, [dz, weight], direct, [false, false])?;
    }
    gates.reverse();
    states.reverse();
    Ok(StepGradients { gates, states, first: dh, first_cell: dc })
}

pub fn run(b: &mut Builder<'_>, cx: &GradCtx<'_>) -> Result<Vec<Option<Value>>> {
    let mode = Mode::of(cx.node.params);
    let (input, weight, state) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let (dims, hidden) = (b.dims(input)?, b.dims(weight)?[1]);
    let e = RnnExtents { time: dims[0], batch: dims[1], gates: mode.gates(), hidden, dtype: b.ty(input)?.dtype };
    if e.time == 0 {
        return Ok(vec![None; 5]);
    }
    let bias = cx.inputs.get(4).copied().flatten();
    let states = cx.outputs[0];
    let previous = before(b, state, states)?;
    let previous_rows = e.rows(b, previous, hidden)?;
    let recurrent = |b: &mut Builder<'_>| -> Result<Value> {
        let u = product(b, [previous_rows, weight], bias, [false, true])?;
        b.reshaped(u, &dims)
    };
    let factors = match mode {
        Mode::Tanh => Factors {
            gates: e.map(b, &[states], |a| a[0].lit(1.0) - &a[0] * &a[0])?,
            input: None,
            keep: None,
            cell: None,
        },
        Mode::Relu => Factors {
            gates: e.map(b, &[states], |a| a[0].gt(&a[0].lit(0.0)).select(&a[0].lit(1.0), &a[0].lit(0.0)))?,
            input: None,
            keep: None,
            cell: None,
        },
        Mode::Lstm => {
            let u = recurrent(b)?;
            let z = b.call("add", &[input, u])?;
            let now = cx.outputs[1];
            let first = cx.input(3)?;
            let previous = before(b, first, now)?;
            lstm_factors(b, &e, z, [previous, now])?
        }
        Mode::Gru => {
            let u = recurrent(b)?;
            gru_factors(b, &e, [input, u, previous])?
        }
    };
    let chain = chain(b, &e, cx.heads, &factors, weight)?;
    let gates = stacked(b, &chain.gates)?;
    let d_input = match factors.input {
        None => gates,
        Some(factor) => {
            let dh = stacked(b, &chain.states)?;
            let dh = b.reshaped(dh, &[e.time, e.batch, 1, hidden])?;
            let wide = [e.time, e.batch, e.gates, hidden];
            let factor = b.reshaped(factor, &wide)?;
            let d = b.map_as(&[factor, dh], e.dtype, &wide, |_, a| &a[0] * &a[1])?;
            b.reshaped(d, &dims)?
        }
    };
    let rows = e.rows(b, gates, e.gates * hidden)?;
    let d_weight = product(b, [rows, previous_rows], None, [true, false])?;
    let d_bias = match bias {
        None => None,
        Some(_) => {
            let sum = reduce(b, "reduce_sum", rows, &[0])?;
            Some(b.reshaped(sum, &[e.gates * hidden])?)
        }
    };
    Ok(vec![Some(d_input), Some(d_weight), Some(chain.first), chain.first_cell, d_bias])
}
