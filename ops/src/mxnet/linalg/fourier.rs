//! Discrete Fourier transforms along the last axis, real and imaginary parts side by side.

use crate::fourier::{Complex, transform};
use crate::prelude::*;

pub fn ops() -> Vec<OpDef> {
    vec![fft(), ifft()]
}

fn rows(dims: &[u64]) -> u64 {
    dims[..dims.len() - 1].iter().product()
}

fn fft_body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Tensor<'g>> {
    let dims = g.operand(0).dims()?;
    let (n, rows) = (dims[dims.len() - 1], rows(&dims));
    let re = g.operand(0).widened().reshaped([rows, n]);
    let found = transform(Complex { re, im: None }, [rows, n], -1.0)?;
    let columns = [found.re, found.im.unwrap_or(found.re)].map(|part| part.reshaped([rows, n, 1]));
    Ok(g.concat(&columns, 2).reshaped_to(&cx.outputs[0]))
}

fn fft() -> OpDef {
    let infer = shape_rule(|cx| {
        let Some(mut dims) = rank_in(cx, 0, 1..=usize::MAX)? else { return Ok(()) };
        let Some(Dim::Const(n)) = dims.pop() else { return Ok(()) };
        reject_if(n == 0, || "operand `data`: its last axis has no elements")?;
        cx.set_output_dims(0, dims.into_iter().chain([Dim::Const(2 * n)]))
    });
    let doc = "The discrete Fourier transform of real rows, Σ x[j]·e^(-2πi·j·k/n): real and imaginary parts by turns \
               along the last axis.";
    define("mx_fft", doc, formula(fft_body), infer)
        .operand("data", FLOATS)
        .ignored(&[("compute_size", ParamValue::Int(128))])
        .ulp(64.0)
        .named(&["_contrib_fft"])
}

fn ifft_body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Tensor<'g>> {
    let out = &cx.outputs[0];
    let (n, rows) = (out.dims[out.rank() - 1], rows(&out.dims));
    let x = g.operand(0).widened().reshaped([rows, n, 2]);
    let [re, im] = [0, 1].map(|i| x.slice(2, i, 1).reshaped([rows, n]));
    Ok(transform(Complex { re, im: Some(im) }, [rows, n], 1.0)?.re.reshaped_to(out))
}

fn ifft() -> OpDef {
    let infer = shape_rule(|cx| {
        let Some(mut dims) = rank_in(cx, 0, 1..=usize::MAX)? else { return Ok(()) };
        let Some(Dim::Const(n)) = dims.pop() else { return Ok(()) };
        if n == 0 || !n.is_multiple_of(2) {
            let why = format!("operand `data`: its last axis has {n} elements, expected pairs of parts");
            return Err(OpError(why));
        }
        cx.set_output_dims(0, dims.into_iter().chain([Dim::Const(n / 2)]))
    });
    let doc = "The real part of Σ X[k]·e^(2πi·j·k/n), real and imaginary parts of X by turns along the last axis. Not \
               divided by n.";
    define("mx_ifft", doc, formula(ifft_body), infer)
        .operand("data", FLOATS)
        .ignored(&[("compute_size", ParamValue::Int(128))])
        .ulp(64.0)
        .named(&["_contrib_ifft"])
}
