//! The steps of a recurrent layer.

use super::{Mode, product};
use crate::activation::sigmoid;
use crate::prelude::*;

/// Gate `g` of [batch, gates · hidden].
fn gate(b: &mut Builder<'_>, z: Value, g: u64, hidden: u64) -> Result<Value> {
    b.slice_axis(z, 1, g * hidden, hidden)
}

/// Step `t` of [time, batch, n] as [batch, n].
pub fn step(b: &mut Builder<'_>, x: Value, t: u64) -> Result<Value> {
    let dims = b.dims(x)?;
    let x = b.slice_axis(x, 0, t, 1)?;
    b.reshaped(x, &dims[1..])
}

/// Steps of [batch, n] as [time, batch, n].
pub fn stacked(b: &mut Builder<'_>, steps: &[Value]) -> Result<Value> {
    let mut parts = vec![];
    for &s in steps {
        let dims = b.dims(s)?;
        parts.push(b.reshaped(s, &[&[1], &dims[..]].concat())?);
    }
    b.concat(&parts, 0)
}

pub fn run(b: &mut Builder<'_>, cx: &NodeCtx<'_>, args: &[Option<Value>]) -> Result<Vec<Value>> {
    let mode = Mode::of(cx.params);
    let (mut input, weight) = (operand(b, args, 0)?, operand(b, args, 1)?);
    let (mut h, mut c) = (operand(b, args, 2)?, maybe(args, 3));
    let bias = maybe(args, 4);
    if let (Some(bias), false) = (bias, mode == Mode::Gru) {
        input = b.call("add", &[input, bias])?;
    }
    let ty = b.ty(h)?;
    let (hidden, map) = (ty.dims[1], |b: &mut Builder<'_>, x: &[Value], f: &dyn Fn(&[Ex]) -> Ex| {
        b.map_as(x, ty.dtype, &ty.dims, |_, a| f(a))
    });
    let (mut states, mut cells) = (vec![], vec![]);
    for t in 0..b.dims(input)?[0] {
        let x = step(b, input, t)?;
        h = match mode {
            Mode::Relu | Mode::Tanh => {
                let z = product(b, [h, weight], Some(x), [false, true])?;
                match mode {
                    Mode::Tanh => map(b, &[z], &|a| a[0].tanh())?,
                    _ => b.call("relu", &[z])?,
                }
            }
            Mode::Lstm => {
                let z = product(b, [h, weight], Some(x), [false, true])?;
                let [i, f, g, o] = [0, 1, 2, 3].map(|k| gate(b, z, k, hidden));
                let before = match c {
                    Some(c) => c,
                    None => operand(b, args, 3)?,
                };
                let now = map(b, &[i?, f?, g?, before], &|a| sigmoid(&a[1]) * &a[3] + sigmoid(&a[0]) * a[2].tanh())?;
                c = Some(now);
                cells.push(now);
                map(b, &[o?, now], &|a| sigmoid(&a[0]) * a[1].tanh())?
            }
            Mode::Gru => {
                let u = product(b, [h, weight], bias, [false, true])?;
                let [xr, xz, xn] = [0, 1, 2].map(|k| gate(b, x, k, hidden));
                let [ur, uz, un] = [0, 1, 2].map(|k| gate(b, u, k, hidden));
                map(b, &[xr?, xz?, xn?, ur?, uz?, un?, h], &|a| {
                    let (r, z) = (sigmoid(&(&a[0] + &a[3])), sigmoid(&(&a[1] + &a[4])));
                    let n = (&a[2] + r * &a[5]).tanh();
                    (z.lit(1.0) - &z) * n + &z * &a[6]
                })?
            }
        };
        states.push(h);
    }
    let mut out = vec![stacked(b, &states)?];
    if mode == Mode::Lstm {
        out.push(stacked(b, &cells)?);
    }
    Ok(out)
}
