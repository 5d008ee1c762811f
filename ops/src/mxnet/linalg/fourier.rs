//! Discrete Fourier transforms along the last axis, real and imaginary parts side by side.
//!
//! A transform of `r·m` numbers is `m` transforms of `r`, a rotation of each number, and `r` transforms of `m` (Cooley
//! and Tukey 1965). Transforms of up to [`MAX_RADIX`] numbers, and of primes, are products with a constant matrix.

use std::f64::consts::TAU;

use crate::prelude::*;

/// Longest transform that is a product, if there is a choice.
const MAX_RADIX: u64 = 16;

pub fn ops() -> Vec<OpDef> {
    vec![fft(), ifft()]
}

/// Real and imaginary parts; without the latter they are zero.
#[derive(Clone, Copy)]
struct Complex<'g> {
    re: Tensor<'g>,
    im: Option<Tensor<'g>>,
}

impl<'g> Complex<'g> {
    fn each(self, f: impl Fn(Tensor<'g>) -> Tensor<'g>) -> Complex<'g> {
        Complex { re: f(self.re), im: self.im.map(f) }
    }
}

/// What a transform is divided by: the greatest divisor up to [`MAX_RADIX`], else the least prime.
fn radix(n: u64) -> u64 {
    let divides = |d: &u64| n.is_multiple_of(*d);
    let small = (2..=MAX_RADIX.min(n)).rev().find(divides);
    small.or_else(|| (MAX_RADIX..).take_while(|d| d * d <= n).find(divides)).unwrap_or(n)
}

/// `cos` and `sin` of `sign·2π·i·j/n`.
fn rotations(g: GraphScope<'_>, dims: [u64; 2], n: u64, sign: f64, dtype: DType) -> [Tensor<'_>; 2] {
    [f64::cos, f64::sin].map(|f| {
        let angle = |at: u64| sign * TAU * ((at / dims[1] * (at % dims[1])) % n) as f64 / n as f64;
        g.constant(TensorData::from_fn(DenseType::new(dtype, dims), |at| Scalar::from_f64(dtype, f(angle(at)))))
    })
}

/// `x·c - y·s` and `x·s + y·c`.
fn rotated<'g>(x: Complex<'g>, [c, s]: [Tensor<'g>; 2], product: &str) -> Complex<'g> {
    let (re, im) = (c.call(product, &[x.re]), s.call(product, &[x.re]));
    let Some(y) = x.im else { return Complex { re, im: Some(im) } };
    let (ys, yc) = (s.call(product, &[y]), c.call(product, &[y]));
    Complex { re: re - ys, im: Some(im + yc) }
}

/// Transforms the rows of `[rows, n]`.
fn transform<'g>(x: Complex<'g>, [rows, n]: [u64; 2], sign: f64) -> Result<Complex<'g>> {
    let (g, dtype, r) = (x.re.graph(), x.re.ty()?.dtype, radix(n));
    let m = n / r;
    let split = x.each(|part| part.reshaped([rows, r, m]));
    let short = rotated(split, rotations(g, [r, r], r, sign, dtype), "matmul");
    if m == 1 {
        return Ok(short.each(|part| part.reshaped([rows, n])));
    }
    let turned = rotated(short, rotations(g, [r, m], n, sign, dtype), "mul");
    let long = transform(turned.each(|part| part.reshaped([rows * r, m])), [rows * r, m], sign)?;
    Ok(long.each(|part| part.reshaped([rows, r, m]).permute(&[0, 2, 1]).reshaped([rows, n])))
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
