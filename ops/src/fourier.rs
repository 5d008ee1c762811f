//! Discrete Fourier transforms, real and imaginary parts side by side.
//!
//! A transform of `r·m` numbers is `m` transforms of `r`, a rotation of each number, and `r` transforms of `m` (Cooley
//! and Tukey 1965). Transforms of up to [`MAX_RADIX`] numbers, and of primes, are products with a constant matrix.

use std::f64::consts::TAU;

use crate::prelude::*;
use crate::rules::need_ints;

/// Longest transform that is a product, if there is a choice.
const MAX_RADIX: u64 = 16;

/// Real and imaginary parts.
#[derive(Clone, Copy)]
pub struct Complex<'g> {
    pub re: Tensor<'g>,
    /// Zero without.
    pub im: Option<Tensor<'g>>,
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
pub fn transform<'g>(x: Complex<'g>, [rows, n]: [u64; 2], sign: f64) -> Result<Complex<'g>> {
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

pub fn ops() -> Vec<OpDef> {
    vec![dft(), stft()]
}

/// Numbers of a one-sided spectrum of `n`.
fn one_sided(n: u64) -> u64 {
    n / 2 + 1
}

/// The only element of a static operand.
fn number(values: Option<Vec<i64>>, name: &str) -> Result<Option<i64>, OpError> {
    match values.as_deref() {
        None => Ok(None),
        Some([n]) => Ok(Some(*n)),
        Some(list) => Err(OpError(format!("operand `{name}`: expected one element, found {}", list.len()))),
    }
}

/// As [`number`], at least 1.
fn positive(values: Option<Vec<i64>>, name: &str) -> Result<Option<u64>, OpError> {
    let n = number(values, name)?;
    reject_if(n.is_some_and(|n| n < 1), || format!("operand `{name}`: expected a positive number"))?;
    Ok(n.map(|n| n as u64))
}

/// What the operands and parameters of a transform say.
struct Shape1d {
    axis: usize,
    /// Numbers of the transform.
    n: u64,
    inverse: bool,
    onesided: bool,
}

impl Shape1d {
    /// Of an operand with `dims`, given the values of `dft_length` and `axis`.
    fn new(params: &Params, dims: &[u64], length: Option<u64>, axis: Option<i64>) -> Result<Shape1d, OpError> {
        let axis = normalize_axis(axis.unwrap_or(-2), dims.len())?;
        reject_if(axis + 1 == dims.len(), || "the last axis has the parts of numbers")?;
        let (inverse, onesided) = (params.flag("inverse"), params.flag("onesided"));
        let given = dims[axis];
        let n = length.unwrap_or(if inverse && onesided { 2 * given.saturating_sub(1) } else { given });
        reject_if(n == 0, || "a transform of no numbers")?;
        Ok(Shape1d { axis, n, inverse, onesided })
    }

    /// The spectrum of real numbers is transformed back to these.
    fn to_real(&self) -> bool {
        self.inverse && self.onesided
    }

    fn result(&self, dims: &[u64]) -> Vec<u64> {
        let mut dims = dims.to_vec();
        let last = dims.len() - 1;
        dims[self.axis] = if self.onesided && !self.inverse { one_sided(self.n) } else { self.n };
        dims[last] = if self.to_real() { 1 } else { 2 };
        dims
    }
}

/// The first `n` columns of rows, zeros behind the last.
fn resized<'g>(x: Tensor<'g>, n: u64) -> Result<Tensor<'g>> {
    let ty = x.ty()?;
    let rows = ty.dims[0];
    Ok(match ty.dims[1] {
        has if has == n => x,
        has if has > n => x.slice(1, 0, n),
        _ => x.view(vars(2), Some(Scalar::zero(ty.dtype)), [rows, n]),
    })
}

/// The spectrum of `n` real numbers, of which the first half is given.
fn mirrored<'g>(x: Complex<'g>, n: u64) -> Result<Complex<'g>> {
    let half = one_sided(n);
    let rows = x.re.dims()?[0];
    let rest = n - half;
    let turned = |part: Tensor<'g>| {
        let map = vec![Index::var(0), Index::var(1).scale(-1).offset(rest as i64)];
        part.view(map, None, [rows, rest])
    };
    let whole = |part: Tensor<'g>, rest: Tensor<'g>| part.graph().concat(&[part, rest], 1);
    Ok(match rest {
        0 => x,
        _ => Complex { re: whole(x.re, turned(x.re)), im: x.im.map(|im| whole(im, -turned(im))) },
    })
}

/// Rows of `[rows, n, parts]` as numbers.
fn numbers<'g>(x: Tensor<'g>, n: u64) -> Result<Complex<'g>> {
    let dims = x.dims()?;
    let part = |i: u64| resized(x.slice(2, i, 1).reshaped([dims[0], dims[1]]), n);
    Ok(Complex { re: part(0)?, im: if dims[2] == 2 { Some(part(1)?) } else { None } })
}

/// The parts of rows of numbers, side by side.
fn parts<'g>(x: Complex<'g>, keep: u64) -> Result<Tensor<'g>> {
    let rows = x.re.dims()?[0];
    let zero = x.re.map(|re| re.lit(0.0));
    let columns = [x.re, x.im.unwrap_or(zero)].map(|part| part.slice(1, 0, keep).reshaped([rows, keep, 1]));
    Ok(x.re.graph().concat(&columns, 2))
}

fn dft_body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Tensor<'g>> {
    let x = g.operand(0).widened();
    let dims = x.dims()?;
    let value = |i: usize, name| match cx.value(i) {
        Some(_) => need_ints(cx, i, name).map(Some),
        None => Ok(None),
    };
    let length = value(1, "dft_length").and_then(|v| positive(v, "dft_length")).or_fail(&g)?;
    let axis = value(2, "axis").and_then(|v| number(v, "axis")).or_fail(&g)?;
    let s = Shape1d::new(cx.params, &dims, length, axis).or_fail(&g)?;
    let (rank, out) = (dims.len(), &cx.outputs[0]);
    // The axis stands before that of the parts.
    let order: Vec<usize> = (0..rank - 1).filter(|i| *i != s.axis).chain([s.axis, rank - 1]).collect();
    let moved = |of: &[u64]| order.iter().map(|i| of[*i]).collect::<Vec<u64>>();
    let from = moved(&dims);
    let rows: u64 = from[..rank - 2].iter().product();
    let x = x.permute(&order).reshaped([rows, from[rank - 2], from[rank - 1]]);
    let given = if s.to_real() { mirrored(numbers(x, one_sided(s.n))?, s.n)? } else { numbers(x, s.n)? };
    let found = transform(given, [rows, s.n], if s.inverse { 1.0 } else { -1.0 })?;
    let found = match s.inverse {
        true => found.each(|part| part.map(|x| x * (1.0 / s.n as f64))),
        false => found,
    };
    let to = moved(&out.dims);
    let y = if s.to_real() { found.re } else { parts(found, to[rank - 2])? };
    let mut back = vec![0; rank];
    order.iter().enumerate().for_each(|(at, i)| back[*i] = at);
    Ok(y.reshaped(to).permute(&back).cast(out.dtype))
}

/// The extents of an operand, all known, with one or two parts at last.
fn signal(cx: &mut InferCtx<'_>) -> Result<Option<Vec<u64>>, OpError> {
    let Some(dims) = rank_in(cx, 0, 2..=usize::MAX)? else { return Ok(None) };
    let known = |d: &Dim| if let Dim::Const(n) = d { Some(*n) } else { None };
    let Some(dims) = dims.iter().map(known).collect::<Option<Vec<u64>>>() else { return Ok(None) };
    let parts = dims[dims.len() - 1];
    reject_if(!(1..=2).contains(&parts), || format!("the last axis has {parts} elements, expected 1 or 2 parts"))?;
    Ok(Some(dims))
}

/// The elements of a static operand: none without one, and `Err` while they are not known.
fn given(cx: &InferCtx<'_>, i: usize) -> Result<Option<Vec<i64>>, ()> {
    match ints(cx, i) {
        None if cx.has_input(i) => Err(()),
        values => Ok(values),
    }
}

fn dft() -> OpDef {
    let infer = shape_rule(|cx| {
        let (Some(dims), Ok(length), Ok(axis)) = (signal(cx)?, given(cx, 1), given(cx, 2)) else { return Ok(()) };
        let (length, axis) = (positive(length, "dft_length")?, number(axis, "axis")?);
        let s = Shape1d::new(cx.params, &dims, length, axis)?;
        cx.set_output_dims(0, s.result(&dims).into_iter().map(Dim::Const))
    });
    let doc = "The discrete Fourier transform along `axis`, Σ x[j]·e^(-2πi·j·k/n), of `dft_length` numbers; the last axis \
               has real and imaginary parts.";
    define("dft", doc, formula(dft_body), infer)
        .operand("input", FLOATS)
        .static_optionals(&["dft_length", "axis"], INDICES)
        .param("inverse", false, "the inverse transform, divided by its length")
        .param("onesided", false, "only the first half of the spectrum of real numbers, n / 2 + 1 numbers")
        .ulp(64.0)
        .onnx("DFT", 17)
}

/// Frames of a signal: the distance of their beginnings, their length, and how many there are.
struct Frames {
    step: u64,
    n: u64,
    count: u64,
}

impl Frames {
    fn new(length: u64, step: Option<u64>, n: Option<u64>, window: Option<u64>) -> Result<Frames, OpError> {
        let Some(step) = step else { return Err("operand `frame_step` has no value at compile time".into()) };
        let n = n.or(window).unwrap_or(length);
        reject_if(window.is_some_and(|w| w != n), || format!("operand `window`: expected {n} elements"))?;
        reject_if(n == 0 || n > length, || format!("frames of {n} elements in a signal of {length}"))?;
        Ok(Frames { step, n, count: (length - n) / step + 1 })
    }

    fn bins(&self, params: &Params) -> u64 {
        if params.flag("onesided") { one_sided(self.n) } else { self.n }
    }
}

fn stft_body<'g>(g: GraphScope<'g>, cx: &NodeCtx<'_>) -> Result<Tensor<'g>> {
    let x = g.operand(0).widened();
    let ty = x.ty()?;
    let dims = &ty.dims;
    let step = need_ints(cx, 1, "frame_step").and_then(|v| positive(Some(v), "frame_step")).or_fail(&g)?;
    let n = match cx.value(3) {
        Some(_) => need_ints(cx, 3, "frame_length").and_then(|v| positive(Some(v), "frame_length")).or_fail(&g)?,
        None => None,
    };
    let window = g.maybe(2).map(|w| w.convert(ty.dtype));
    let width = window.map(|w| w.dims().map(|d| d[0])).transpose()?;
    let frames = Frames::new(dims[1], step, n, width).or_fail(&g)?;
    let rows = dims[0] * frames.count;
    let at = Index::var(1).scale(frames.step as i64).add(&Index::var(2));
    let cut = [dims[0], frames.count, frames.n, dims[2]];
    let mut cut = x.view(vec![Index::var(0), at, Index::var(3)], None, cut);
    if let Some(window) = window {
        cut = cut * window.reshape([frames.n, 1]);
    }
    let given = numbers(cut.reshaped([rows, frames.n, dims[2]]), frames.n)?;
    let found = transform(given, [rows, frames.n], -1.0)?;
    Ok(parts(found, frames.bins(cx.params))?.reshaped_to(&cx.outputs[0]))
}

fn stft() -> OpDef {
    let infer = shape_rule(|cx| {
        let (Some(dims), Ok(step), Ok(n)) = (signal(cx)?, given(cx, 1), given(cx, 3)) else { return Ok(()) };
        reject_if(dims.len() != 3, || format!("operand `signal` has {} axes, expected 3", dims.len()))?;
        let width = match cx.input_dims(2) {
            None if cx.has_input(2) => return Ok(()),
            None => None,
            Some(dims) => match dims[..] {
                [Dim::Const(width)] => Some(width),
                [_] => return Ok(()),
                _ => return Err("operand `window`: expected one axis".into()),
            },
        };
        let (step, n) = (positive(step, "frame_step")?, positive(n, "frame_length")?);
        let frames = Frames::new(dims[1], step, n, width)?;
        let out = [dims[0], frames.count, frames.bins(cx.params), 2];
        cx.set_output_dims(0, out.map(Dim::Const))
    });
    let doc = "Fourier transforms of frames of a signal, `frame_step` apart, multiplied by a window.";
    define("stft", doc, formula(stft_body), infer)
        .groups(&["signal"], FLOATS)
        .static_operands(&["frame_step"], INDICES)
        .optional("window", TypeRule::Group(0, FLOATS))
        .static_optionals(&["frame_length"], INDICES)
        .param("onesided", true, "only the first half of the spectrum, n / 2 + 1 numbers")
        .ulp(64.0)
        .onnx("STFT", 17)
}
