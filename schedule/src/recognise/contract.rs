//! Recognition of library contractions: which index maps are a batched matrix product, a
//! two-dimensional convolution or a gradient of one.

mod computed;
mod gradient;
mod image;

use tensorc_abi::library::GEMM_BATCH_RANK;
use tensorc_abi::{BatchedGemm, Conv2d, ConvPass, DType, ImageLayout, MatrixLayout};

use tensorc_ir::DenseType;
use tensorc_ir::index::{Index, linearize};
use tensorc_ir::prim::{Contraction, Method};

pub use computed::{computed_elements, computed_operand};
pub use gradient::{as_conv_data_gradient, as_conv_filter_gradient};
pub use image::{as_image_convolution, image_convolution};

/// Whether a library kernel computes the contraction.
pub fn is_library(c: &Contraction, lhs: &DenseType, rhs: &DenseType) -> bool {
    as_gemm(c, lhs, rhs, None).is_some() || as_convolution(c, lhs, rhs).is_some()
}

/// The contraction as a convolution, with filters of the run, or as a gradient of one.
pub fn as_convolution(c: &Contraction, lhs: &DenseType, rhs: &DenseType) -> Option<Conv2d> {
    as_conv(c, lhs, rhs)
        .or_else(|| as_image_convolution(c, lhs, rhs))
        .or_else(|| as_conv_filter_gradient(c, lhs, rhs))
        .or_else(|| as_conv_data_gradient(c, lhs, rhs))
        .map(Conv2d::along_width)
}

/// A contraction expressed as a matrix product.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gemm {
    pub call: BatchedGemm,
    /// The library's A is the contraction's right operand, and its B the left one.
    pub swapped: bool,
    /// The iteration axes that make up each batch dimension, the rows and the columns of the
    /// product, outermost first. Axes of extent 1 belong to none.
    pub batch_axes: [Vec<usize>; GEMM_BATCH_RANK],
    pub row_axes: Vec<usize>,
    pub col_axes: Vec<usize>,
    /// The iteration axes that products are added over.
    pub depth_axes: Vec<usize>,
}

/// One iteration axis and how far a step along it moves in each operand, in elements.
#[derive(Clone, Debug)]
struct Axis {
    /// The iteration axes merged here.
    ids: Vec<usize>,
    extent: u64,
    a: i64,
    b: i64,
    c: i64,
}

/// The contraction as a batched matrix product of f32, if its accesses are strided and in bounds.
///
/// `out_strides` gives the distance in the result of a step along each of the first
/// `contraction.out_rank` axes; row-major if `None`.
pub fn as_gemm(c: &Contraction, lhs: &DenseType, rhs: &DenseType, out_strides: Option<&[i64]>) -> Option<Gemm> {
    let single = [lhs, rhs].iter().all(|ty| ty.dtype == DType::F32);
    if single { as_product(c, lhs, rhs, out_strides) } else { None }
}

/// As [`as_gemm`], whatever the types.
pub fn as_product(c: &Contraction, lhs: &DenseType, rhs: &DenseType, out_strides: Option<&[i64]>) -> Option<Gemm> {
    if c.extents.contains(&0) {
        return None;
    }
    let (a, a_offset) = strides(&c.lhs, lhs, &c.extents)?;
    let (b, b_offset) = strides(&c.rhs, rhs, &c.extents)?;
    let row_major = DenseType::new(lhs.dtype, &c.extents[..c.out_rank]).strides();
    let out = out_strides.unwrap_or(&row_major);
    let axes: Vec<Axis> = (0..c.extents.len())
        .filter(|&i| c.extents[i] != 1)
        .map(|i| Axis { ids: vec![i], extent: c.extents[i], a: a[i], b: b[i], c: out.get(i).copied().unwrap_or(0) })
        .collect();
    let reduced = |i: usize| i >= axes.len() - c.extents[c.out_rank..].iter().filter(|e| **e != 1).count();
    let mut k = vec![];
    let (mut batch, mut m, mut n) = (vec![], vec![], vec![]);
    for (i, axis) in axes.iter().enumerate() {
        match (axis.a != 0, axis.b != 0) {
            _ if reduced(i) => k.push(axis.clone()),
            (true, true) => batch.push(axis.clone()),
            (false, true) => n.push(axis.clone()),
            _ => m.push(axis.clone()),
        }
    }
    let (k, m, n) = (merge(k), merge(m), merge(n));
    if k.len() > 1 {
        return None;
    }
    // The result's unit-stride axis must be the product's columns.
    let unit = |axes: &[Axis]| axes.iter().any(|x| x.c == 1);
    let swapped = !unit(&n) && (unit(&m) || (n.is_empty() && !m.is_empty()));
    let (mut m, mut n, flip) = if swapped { (n, m, true) } else { (m, n, false) };
    if let Some(i) = n.iter().position(|x| x.c == 1) {
        let last = n.remove(i);
        n.push(last);
    }
    if n.last().is_some_and(|x| x.c != 1) {
        return None;
    }
    let cols = n.pop();
    let rows = m.pop();
    batch.extend(m);
    batch.extend(n);
    let batch = merge(batch);
    if batch.len() > GEMM_BATCH_RANK {
        return None;
    }
    let k = k.into_iter().next();
    let pick = |axis: &Option<Axis>, f: Stride| axis.as_ref().map_or(0, f);
    let extent = |axis: &Option<Axis>| axis.as_ref().map_or(1, |x| x.extent);
    let layout = |offset, f: Stride, row: &Option<Axis>, col: &Option<Axis>| {
        let mut batch_strides = [0; GEMM_BATCH_RANK];
        batch.iter().enumerate().for_each(|(i, x)| batch_strides[GEMM_BATCH_RANK - batch.len() + i] = f(x));
        MatrixLayout { offset, batch_strides, row_stride: pick(row, f), col_stride: pick(col, f) }
    };
    let mut extents = [1; GEMM_BATCH_RANK];
    batch.iter().enumerate().for_each(|(i, x)| extents[GEMM_BATCH_RANK - batch.len() + i] = x.extent);
    let (fa, fb): (Stride, Stride) = if flip { (|x| x.b, |x| x.a) } else { (|x| x.a, |x| x.b) };
    let (ao, bo) = if flip { (b_offset, a_offset) } else { (a_offset, b_offset) };
    let mut c_layout = layout(0, |x| x.c, &rows, &cols);
    c_layout.col_stride = 1;
    let call = BatchedGemm {
        batch: extents,
        m: extent(&rows),
        n: extent(&cols),
        k: extent(&k),
        a: layout(ao, fa, &rows, &k),
        b: layout(bo, fb, &k, &cols),
        c: c_layout,
        b_packed: false,
    };
    let ids = |axis: Option<Axis>| axis.map_or(vec![], |x| x.ids);
    let depth_axes = ids(k);
    let mut batch_axes: [Vec<usize>; GEMM_BATCH_RANK] = Default::default();
    let used = batch.len();
    batch.into_iter().enumerate().for_each(|(i, x)| batch_axes[GEMM_BATCH_RANK - used + i] = x.ids);
    Some(Gemm { call, swapped: flip, batch_axes, row_axes: ids(rows), col_axes: ids(cols), depth_axes })
}

type Stride = fn(&Axis) -> i64;

/// Fuses neighbouring axes that every operand walks as one.
fn merge(axes: Vec<Axis>) -> Vec<Axis> {
    let mut out: Vec<Axis> = vec![];
    for axis in axes {
        match out.last_mut() {
            Some(o) if fits(o.a, &axis, axis.a) && fits(o.b, &axis, axis.b) && fits(o.c, &axis, axis.c) => {
                let ids = [&o.ids[..], &axis.ids].concat();
                *o = Axis { ids, extent: o.extent * axis.extent, ..axis };
            }
            _ => out.push(axis),
        }
    }
    out
}

fn fits(outer: i64, inner: &Axis, stride: i64) -> bool {
    outer == stride * inner.extent as i64
}

/// Strides of each iteration axis in an operand, and the offset, if access is affine and in bounds.
fn strides(map: &[Index], ty: &DenseType, extents: &[u64]) -> Option<(Vec<i64>, i64)> {
    let inside = |(index, n): (&Index, &u64)| {
        let (lo, hi) = index.interval(extents);
        lo >= 0 && hi < *n as i64
    };
    if !map.iter().zip(&ty.dims).all(inside) {
        return None;
    }
    let flat = linearize(map, &ty.dims);
    let strides = (0..extents.len() as u32).map(|v| flat.coefficient(v));
    flat.is_affine().then(|| strides.collect::<Option<Vec<_>>>())?.map(|s| (s, flat.constant))
}

/// The contraction as a convolution of f32 as [`as_forward`] recognises it.
pub fn as_conv(c: &Contraction, lhs: &DenseType, rhs: &DenseType) -> Option<Conv2d> {
    let single = [lhs, rhs].iter().all(|ty| ty.dtype == DType::F32);
    if single { as_forward(c, lhs, rhs) } else { None }
}

/// The contraction as a convolution over NCHW data (one- or two-dimensional, grouped or not) of any type, with
/// filters as they are.
///
/// Axes `[n, oc, out…, ic, kernel…]`, where `oc` counts output channels of all groups; left operand
/// `(n, floordiv(oc, oc per group)·ic per group + ic, out·stride + kernel·dilation - pad, …)`, right
/// operand `(oc, ic, kernel…)`.
pub fn as_forward(c: &Contraction, lhs: &DenseType, rhs: &DenseType) -> Option<Conv2d> {
    let spatial = lhs.rank().checked_sub(2)?;
    let joined;
    let c = match c.out_rank == spatial + 3 {
        true => {
            joined = join_channels(c);
            &joined
        }
        false => c,
    };
    if rhs.rank() != lhs.rank() || !(1..=2).contains(&spatial) {
        return None;
    }
    let (out, ic) = (2, c.out_rank);
    let kernel = ic + 1;
    if c.extents.contains(&0) || c.out_rank != spatial + 2 || c.extents.len() != kernel + spatial {
        return None;
    }
    let (channels, per_group) = (c.extents[1], c.extents[ic]);
    let groups = lhs.dims[1] / per_group;
    if lhs.dims[1] != groups * per_group || rhs.dims[0] != channels || !channels.is_multiple_of(groups.max(1)) {
        return None;
    }
    let filters = channels / groups.max(1);
    let var = |i: usize| Index::var(i as u32);
    let group = var(1).floor_div(filters.max(1) as i64, &c.extents[..]);
    let canonical = same(&c.lhs[0], &var(0), &c.extents)
        && same(&c.lhs[1], &group.scale(per_group as i64).add(&var(ic)), &c.extents)
        && same(&c.rhs[0], &var(1), &c.extents)
        && same(&c.rhs[1], &var(ic), &c.extents)
        && (0..spatial).all(|s| same(&c.rhs[2 + s], &var(kernel + s), &c.extents));
    let small = [lhs, rhs].iter().all(|ty| ty.len() <= i32::MAX as u64);
    if !canonical || !small || rhs.dims[2..] != c.extents[kernel..] || lhs.dims[0] != c.extents[0] {
        return None;
    }
    let mut conv = Conv2d {
        batch: c.extents[0],
        groups,
        in_channels: per_group,
        out_channels: filters,
        input: [1; 2],
        output: [1; 2],
        kernel: [1; 2],
        strides: [1; 2],
        dilations: [1; 2],
        pads: [0; 2],
        pass: ConvPass::Forward,
        images: [0; 2],
        layouts: [ImageLayout::Planes; 2],
    };
    for s in 0..spatial {
        let (axis, index) = (2 - spatial + s, &c.lhs[2 + s]);
        let (o, k) = (out + s, kernel + s);
        (conv.strides[axis], conv.dilations[axis], conv.pads[axis]) = window(index, o, k, &c.extents)?;
        conv.input[axis] = lhs.dims[2 + s];
        conv.output[axis] = c.extents[o];
        conv.kernel[axis] = c.extents[k];
    }
    conv.pass = pass(&conv, c.method);
    Some(conv)
}

/// How a convolution is computed by a method, with filters as they are where it is the sum.
fn pass(conv: &Conv2d, method: Method) -> ConvPass {
    match method {
        Method::Winograd2 if conv.allows_winograd() => ConvPass::Winograd2,
        Method::Winograd4 if conv.allows_winograd() => ConvPass::Winograd4,
        _ => ConvPass::Forward,
    }
}

/// Stride, dilation and padding of the index `o·stride + k·dilation - pad`.
fn window(index: &Index, o: usize, k: usize, extents: &[u64]) -> Option<(u64, u64, u64)> {
    let step = |v: usize| if extents[v] == 1 { Some(1) } else { index.coefficient(v as u32) };
    let (stride, dilation) = (step(o)?, step(k)?);
    let var = |v: usize, c: i64| Index::var(v as u32).scale(c);
    let rebuilt = var(o, stride).add(&var(k, dilation)).offset(index.constant);
    let fits = stride >= 1 && dilation >= 1 && index.constant <= 0 && same(index, &rebuilt, extents);
    fits.then_some((stride as u64, dilation as u64, (-index.constant) as u64))
}

/// Joins axes `axis` and `axis + 1` of an operand.
fn join_pair(map: &mut Vec<Index>, dims: &mut Vec<u64>, axis: usize, extents: &[u64]) {
    let joined = linearize(&map[axis..axis + 2], &dims[axis..axis + 2]).recombine(extents);
    map.splice(axis..axis + 2, [joined]);
    let size = dims[axis] * dims[axis + 1];
    dims.splice(axis..axis + 2, [size]);
}

/// The contraction with its axes 1 and 2 joined to one.
fn join_channels(c: &Contraction) -> Contraction {
    let mut extents = c.extents.clone();
    let inner = extents.remove(2);
    extents[1] *= inner;
    let split = |v: u32| match v {
        0 => Index::var(0),
        1 => Index::var(1).floor_div(inner as i64, &extents[..]),
        2 => Index::var(1).modulo(inner as i64, &extents[..]),
        _ => Index::var(v - 1),
    };
    let map = |m: &[Index]| m.iter().map(|i| i.substitute(&split, &extents[..]).recombine(&extents[..])).collect();
    Contraction {
        lhs: map(&c.lhs),
        rhs: map(&c.rhs),
        out_rank: c.out_rank - 1,
        extents: extents.clone(),
        method: Method::Sum,
    }
}

/// Equality of indices whose unit-extent axes are known to be zero.
fn same(a: &Index, b: &Index, extents: &[u64]) -> bool {
    a.sub(b).interval(extents) == (0, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorc_ir::TensorData;
    use tensorc_ir::interp::eval_prim;
    use tensorc_ir::prim::Prim;
    use tensorc_ir::scalar::{MathFn, MathLibrary, ScalarFn};

    struct NoMath(ScalarFn);

    impl MathLibrary for NoMath {
        fn body(&self, _: MathFn) -> &ScalarFn {
            &self.0
        }
    }

    fn ty(dims: &[u64]) -> DenseType {
        DenseType::new(DType::F32, dims)
    }

    fn ramp(dims: &[u64]) -> TensorData {
        TensorData::from_fn(ty(dims), |i| tensorc_ir::scalar::Scalar::f32((i % 13) as f32 - 6.0))
    }

    /// Executes the recognised product directly on the operands' memory.
    fn run(g: &Gemm, a: &[f32], b: &[f32], len: usize) -> Vec<f32> {
        let (a, b) = if g.swapped { (b, a) } else { (a, b) };
        let mut out = vec![f32::NAN; len];
        let c = g.call;
        for batch in 0..c.batch.iter().product::<u64>() {
            let at = [batch / (c.batch[1] * c.batch[2]), batch / c.batch[2] % c.batch[1], batch % c.batch[2]];
            let base = |l: &MatrixLayout| l.offset + (0..3).map(|i| at[i] as i64 * l.batch_strides[i]).sum::<i64>();
            for (m, n) in (0..c.m as i64).flat_map(|m| (0..c.n as i64).map(move |n| (m, n))) {
                let sum = (0..c.k as i64).map(|k| {
                    let x = a[(base(&c.a) + m * c.a.row_stride + k * c.a.col_stride) as usize];
                    x * b[(base(&c.b) + k * c.b.row_stride + n * c.b.col_stride) as usize]
                });
                out[(base(&c.c) + m * c.c.row_stride + n) as usize] = sum.sum();
            }
        }
        out
    }

    fn check(c: Contraction, lhs: &[u64], rhs: &[u64]) -> Gemm {
        let gemm = as_gemm(&c, &ty(lhs), &ty(rhs), None).expect("recognised");
        let (a, b) = (ramp(lhs), ramp(rhs));
        let out = ty(&c.extents[..c.out_rank]);
        let math = NoMath(ScalarFn::identity(DType::F32));
        let expected = eval_prim(&Prim::Contract(c.into()), &[&a, &b], std::slice::from_ref(&out), &math).unwrap();
        assert_eq!(run(&gemm, &a.to_f32s(), &b.to_f32s(), out.len() as usize), expected[0].to_f32s());
        gemm
    }

    fn vars(ids: &[u32]) -> Vec<Index> {
        ids.iter().map(|v| Index::var(*v)).collect()
    }

    #[test]
    fn products_in_every_orientation() {
        let c = |lhs: &[u32], rhs: &[u32], extents: &[u64], out_rank| Contraction {
            extents: extents.to_vec(),
            out_rank,
            lhs: vars(lhs),
            rhs: vars(rhs),
            method: Method::Sum,
        };
        assert!(!check(c(&[0, 2], &[2, 1], &[3, 4, 5], 2), &[3, 5], &[5, 4]).swapped);
        check(c(&[2, 0], &[1, 2], &[3, 4, 5], 2), &[5, 3], &[4, 5]);
        assert!(check(c(&[2, 1], &[0, 2], &[3, 4, 5], 2), &[5, 4], &[3, 5]).swapped);
        // Attention scores straight from [batch, sequence, head, depth].
        let g = check(c(&[0, 2, 1, 4], &[0, 3, 1, 4], &[2, 3, 4, 5, 6], 4), &[2, 4, 3, 6], &[2, 5, 3, 6]);
        assert_eq!((g.call.batch, g.call.m, g.call.n, g.call.k), ([1, 2, 3], 4, 5, 6));
        // Rows merge over batch and sequence when the right operand is shared.
        let g = check(c(&[0, 1, 3], &[3, 2], &[2, 3, 4, 5], 3), &[2, 3, 5], &[5, 4]);
        assert_eq!((g.call.batch, g.call.m), ([1, 1, 1], 6));
        check(c(&[1], &[0, 1], &[3, 4], 1), &[4], &[3, 4]);
        check(c(&[0], &[0], &[7], 0), &[7], &[7]);
    }

    #[test]
    fn convolutions_are_found_and_near_misses_are_not() {
        let axis =
            |o: u32, k: u32, s: i64, d: i64, p: i64| Index::var(o).scale(s).add(&Index::var(k).scale(d)).offset(-p);
        let mut c = Contraction {
            extents: vec![2, 4, 5, 6, 3, 3, 1],
            out_rank: 4,
            lhs: vec![Index::var(0), Index::var(4), axis(2, 5, 2, 1, 1), axis(3, 6, 1, 1, 0)],
            rhs: vars(&[1, 4, 5, 6]),
            method: Method::Sum,
        };
        let conv = as_conv(&c, &ty(&[2, 3, 10, 6]), &ty(&[4, 3, 3, 1])).expect("recognised");
        assert_eq!((conv.strides, conv.pads, conv.kernel, conv.groups), ([2, 1], [1, 0], [3, 1], 1));
        c.lhs[2] = c.lhs[2].scale(-1).offset(9);
        assert_eq!(as_conv(&c, &ty(&[2, 3, 10, 6]), &ty(&[4, 3, 3, 1])), None);
    }
}
