//! Operators of a crate that depends on `tensorc` alone, one of each kind.

use tensorc::op::{Define, Keep, OpDef, closure, composite, like};
use tensorc::{DType, scalar_op};

scalar_op! {
    /// ½σ²x² where |x| < 1/σ², |x| - ½/σ² elsewhere.
    pub smooth_l1(data; scalar: f64 = 1.0, "σ") = {
        let s2 = scalar * scalar;
        let near = data.abs().lt(&data.lit(1.0 / s2));
        near.select(&(0.5 * s2 * &data * &data), &(data.abs() - 0.5 / s2))
    }
}

scalar_op! {
    /// a·x² + b·x + c.
    pub quadratic(data; a: f64 = 0.0, "Coefficient of x²", b: f64 = 0.0, "Coefficient of x", c: f64 = 0.0, "Constant")
        = &data * (a * &data + b) + c
}

/// x divided by the root of the mean of its squares along the last axis, times a gain for each column.
pub fn rms_norm() -> OpDef {
    let def = composite("scaled_by_rms", &["data", "gamma"], like(0), |b, cx, args| {
        let squares = b.call("mul", &[args[0], args[0]])?;
        let axis = b.i64s(&[-1]);
        let mean = b.call("reduce_mean", &[squares, axis])?;
        let eps = b.filled(&b.ty(mean)?, cx.params.float("eps").unwrap_or(0.0))?;
        let shifted = b.call("add", &[mean, eps])?;
        let root = b.call("sqrt", &[shifted])?;
        let scaled = b.call("div", &[args[0], root])?;
        b.call("mul", &[scaled, args[1]])
    });
    def.doc("x / √(mean x² + ε) · γ along the last axis.").param("eps", 1e-6, "Added to the mean.").within(0.0, 1.0)
}

/// The largest element so far along the last axis. The gradient goes to where it was found.
pub fn running_max() -> OpDef {
    let row = |dims: &[u64]| dims.last().map_or(1, |n| *n as usize).max(1);
    closure("running_max", &["data"], like(0), move |call| {
        let (x, row) = (call.read::<f32>(0)?, row(call.input(0)?.dims));
        for (x, y) in x.chunks(row).zip(call.write::<f32>(0)?.chunks_mut(row)) {
            let mut best = f32::NEG_INFINITY;
            for (x, y) in x.iter().zip(y) {
                best = best.max(*x);
                *y = best;
            }
        }
        Ok(())
    })
    .backward(Keep::heads().inputs(&[0]), move |call| {
        let (x, head) = (call.input::<f32>(0)?, call.head::<f32>(0)?);
        let row = row(call.heads[0].dims);
        let grads = call.grad::<f32>(0)?;
        grads.fill(0.0);
        for ((x, head), grad) in x.chunks(row).zip(head.chunks(row)).zip(grads.chunks_mut(row)) {
            let mut best = 0;
            for (i, head) in head.iter().enumerate() {
                best = if x[i] > x[best] { i } else { best };
                grad[best] += head;
            }
        }
        Ok(())
    })
    .types(&[DType::F32])
    .doc("The largest element so far along the last axis.")
    .build()
}

/// Every operator of this crate.
pub fn all() -> Vec<OpDef> {
    vec![smooth_l1(), quadratic(), rms_norm(), running_max()]
}
