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
struct Complex {
    re: Value,
    im: Option<Value>,
}

/// What a transform is divided by: the greatest divisor up to [`MAX_RADIX`], else the least prime.
fn radix(n: u64) -> u64 {
    let divides = |d: &u64| n.is_multiple_of(*d);
    let small = (2..=MAX_RADIX.min(n)).rev().find(divides);
    small.or_else(|| (MAX_RADIX..).take_while(|d| d * d <= n).find(divides)).unwrap_or(n)
}

/// `cos` and `sin` of `sign·2π·i·j/n`.
fn rotations(b: &mut Builder<'_>, dims: [u64; 2], n: u64, sign: f64, dtype: DType) -> [Value; 2] {
    [f64::cos, f64::sin].map(|f| {
        let angle = |at: u64| sign * TAU * ((at / dims[1] * (at % dims[1])) % n) as f64 / n as f64;
        let data = TensorData::from_fn(DenseType::new(dtype, &dims), |at| Scalar::from_f64(dtype, f(angle(at))));
        b.constant(data)
    })
}

/// `x·c - y·s` and `x·s + y·c`.
fn rotated(b: &mut Builder<'_>, x: Complex, [c, s]: [Value; 2], product: &str) -> Result<Complex> {
    let (re, im) = (b.call(product, &[c, x.re])?, b.call(product, &[s, x.re])?);
    let Some(y) = x.im else { return Ok(Complex { re, im: Some(im) }) };
    let (ys, yc) = (b.call(product, &[s, y])?, b.call(product, &[c, y])?);
    Ok(Complex { re: b.call("sub", &[re, ys])?, im: Some(b.call("add", &[im, yc])?) })
}

fn each(
    b: &mut Builder<'_>,
    x: Complex,
    mut f: impl FnMut(&mut Builder<'_>, Value) -> Result<Value>,
) -> Result<Complex> {
    let re = f(b, x.re)?;
    let im = x.im.map(|im| f(b, im)).transpose()?;
    Ok(Complex { re, im })
}

/// Transforms the rows of `[rows, n]`.
fn transform(b: &mut Builder<'_>, x: Complex, [rows, n]: [u64; 2], sign: f64) -> Result<Complex> {
    let dtype = b.ty(x.re)?.dtype;
    let r = radix(n);
    let m = n / r;
    let split = each(b, x, |b, part| reshape(b, part, &[rows, r, m]))?;
    let matrix = rotations(b, [r, r], r, sign, dtype);
    let short = rotated(b, split, matrix, "matmul")?;
    if m == 1 {
        return each(b, short, |b, part| reshape(b, part, &[rows, n]));
    }
    let turns = rotations(b, [r, m], n, sign, dtype);
    let turned = rotated(b, short, turns, "mul")?;
    let wide = each(b, turned, |b, part| reshape(b, part, &[rows * r, m]))?;
    let long = transform(b, wide, [rows * r, m], sign)?;
    each(b, long, |b, part| {
        let part = reshape(b, part, &[rows, r, m])?;
        let part = b.permuted(part, &[0, 2, 1])?;
        reshape(b, part, &[rows, n])
    })
}

fn rows(dims: &[u64]) -> u64 {
    dims[..dims.len() - 1].iter().product()
}

fn fft_body(b: &mut Builder<'_>, cx: &NodeCtx<'_>, [x]: [Value; 1]) -> Result<Value> {
    let (ty, out) = (b.ty(x)?, &cx.outputs[0]);
    let (n, rows) = (ty.dims[ty.rank() - 1], rows(&ty.dims));
    let x = cast(b, x, compute_type(ty.dtype))?;
    let x = reshape(b, x, &[rows, n])?;
    let found = transform(b, Complex { re: x, im: None }, [rows, n], -1.0)?;
    let parts = [found.re, found.im.unwrap_or(found.re)];
    let columns = parts.into_iter().map(|part| reshape(b, part, &[rows, n, 1])).collect::<Result<Vec<_>>>()?;
    let pairs = b.concat(&columns, 2)?;
    let pairs = reshape(b, pairs, &out.dims)?;
    cast(b, pairs, out.dtype)
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
    define("mx_fft", doc, composite_of(fft_body), infer)
        .operand("data", FLOATS)
        .ignored(&[("compute_size", ParamValue::Int(128))])
        .ulp(64.0)
        .named(&["_contrib_fft"])
}

fn ifft_body(b: &mut Builder<'_>, cx: &NodeCtx<'_>, [x]: [Value; 1]) -> Result<Value> {
    let (ty, out) = (b.ty(x)?, &cx.outputs[0]);
    let (n, rows) = (out.dims[out.rank() - 1], rows(&out.dims));
    let x = cast(b, x, compute_type(ty.dtype))?;
    let x = reshape(b, x, &[rows, n, 2])?;
    let mut part = |i: u64| -> Result<Value> {
        let part = b.slice_axis(x, 2, i, 1)?;
        reshape(b, part, &[rows, n])
    };
    let pair = Complex { re: part(0)?, im: Some(part(1)?) };
    let found = transform(b, pair, [rows, n], 1.0)?;
    let found = reshape(b, found.re, &out.dims)?;
    cast(b, found, out.dtype)
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
    define("mx_ifft", doc, composite_of(ifft_body), infer)
        .operand("data", FLOATS)
        .ignored(&[("compute_size", ParamValue::Int(128))])
        .ulp(64.0)
        .named(&["_contrib_ifft"])
}
