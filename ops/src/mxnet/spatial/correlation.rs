//! Correlation of two images at displacements (Dosovitskiy and others 2015).

use crate::prelude::*;

#[derive(Clone, Copy)]
struct Geometry {
    kernel: i64,
    reach: i64,
    stride: i64,
    step: i64,
    pad: i64,
}

impl Geometry {
    fn of(params: &Params) -> Geometry {
        let get = |name: &str, default: i64| params.int(name).unwrap_or(default);
        Geometry {
            kernel: get("kernel_size", 1).max(1),
            reach: get("max_displacement", 1).max(0),
            stride: get("stride1", 1).max(1),
            step: get("stride2", 1).max(1),
            pad: get("pad_size", 0).max(0),
        }
    }

    /// Displacements along an axis on either side.
    fn radius(&self) -> i64 {
        self.reach / self.step
    }

    fn displacements(&self) -> u64 {
        (2 * self.radius() + 1) as u64
    }

    /// Positions along an axis of `n` elements.
    fn count(&self, n: u64) -> Result<u64, OpError> {
        let room = n as i64 + 2 * self.pad - 2 * (self.reach + (self.kernel - 1) / 2);
        match room {
            r if r > 0 => Ok((r as u64).div_ceil(self.stride as u64)),
            _ => Err(OpError(format!("displacements of {} leave no position in {n} elements", self.reach))),
        }
    }
}

fn body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Tensor<'g>> {
    let [x, y] = g.operands();
    let (at, ty, out) = (Geometry::of(cx.params), x.ty()?, &cx.outputs[0].dims);
    let (d, k) = (at.displacements(), at.kernel as u64);
    // Image, displacement (2), position (2), channel, place in the kernel (2).
    let space = [ty.dims[0], d, d, out[2], out[3], ty.dims[1], k, k];
    let v = |i: u32| Index::var(i);
    let along = |position: u32, place: u32| v(position).scale(at.stride).add(&v(place)).offset(at.reach - at.pad);
    let moved = |position: u32, place: u32, by: u32| {
        along(position, place).add(&v(by).scale(at.step)).offset(-at.radius() * at.step)
    };
    let fill = Some(Scalar::zero(ty.dtype));
    let x = x.view(vec![v(0), v(5), along(3, 6), along(4, 7)], fill, space);
    let y = y.view(vec![v(0), v(5), moved(3, 6, 1), moved(4, 7, 2)], fill, space);
    let share = 1.0 / (ty.dims[1] * k * k) as f64;
    let multiply = cx.params.bool("is_multiply") != Some(false);
    let joined = x.map_with(&[y], |_, a| if multiply { &a[0] * &a[1] } else { (&a[0] - &a[1]).abs() });
    Ok((joined.sum(&[5, 6, 7]) * share).reshape(out))
}

pub fn correlation() -> OpDef {
    let infer = shape_rule(|cx| {
        agree_shapes(cx, &[0, 1], &[])?;
        let Some(x) = rank_in(cx, 0, 4..=4)? else { return Ok(()) };
        let (Dim::Const(h), Dim::Const(w)) = (x[2], x[3]) else { return Ok(()) };
        let g = Geometry::of(cx.params);
        let d = g.displacements();
        cx.set_output_dims(0, [x[0], Dim::Const(d * d), Dim::Const(g.count(h)?), Dim::Const(g.count(w)?)])
    });
    let doc = "Means of products (or of absolute differences) of two images at all displacements up to a distance.";
    define("mx_correlation", doc, formula(body), infer)
        .groups(&["data1", "data2"], FLOATS)
        .param("kernel_size", 1, "extent of the window compared")
        .within(1.0, 255.0)
        .param("max_displacement", 1, "greatest displacement")
        .param("stride1", 1, "distance of positions in the first image")
        .param("stride2", 1, "distance of displacements")
        .param("pad_size", 0, "zeros around the images")
        .param("is_multiply", true, "products instead of absolute differences")
        .ulp(2.0)
        .mxnet("Correlation")
}
