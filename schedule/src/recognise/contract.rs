//! Recognition of library contractions: which index maps are a batched matrix product, a
//! two-dimensional convolution or a gradient of one.

mod bytes;
mod computed;
mod gradient;
mod image;

use tensorc_abi::library::GEMM_BATCH_RANK;
use tensorc_abi::{BatchedGemm, Conv2d, ConvPass, DType, GemmElements, ImageLayout, MatrixLayout};

use tensorc_ir::extent::Axes;
use tensorc_ir::index::{Index, linearize};
use tensorc_ir::prim::{Contraction, ConvAlgorithm};
use tensorc_ir::{DenseType, Extent, Extents};

use crate::access::stays_inside;

pub use computed::{computed_elements, computed_operand};
pub(crate) use gradient::{as_conv_data_gradient, as_conv_filter_gradient};
pub use image::{as_image_convolution, image_convolution};

/// A contraction as a kernel of the library computes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LibraryCall {
    /// A convolution.
    Conv(Box<Conv2d<Extent>>),
    /// A matrix product.
    Gemm(Box<Gemm>),
}

impl LibraryCall {
    /// The convolution, if it is one.
    pub fn convolution(self) -> Option<Conv2d<Extent>> {
        match self {
            LibraryCall::Conv(conv) => Some(*conv),
            LibraryCall::Gemm(_) => None,
        }
    }

    /// Whether it adds products of bytes in i32: an epilogue may make a result of another type of these.
    pub fn sums_bytes(&self) -> bool {
        match self {
            LibraryCall::Conv(conv) => conv.pass.is_of_bytes(),
            LibraryCall::Gemm(gemm) => gemm.call.elements.are_bytes(),
        }
    }
}

/// How the kernel library computes a contraction of f32 or of bytes, or a product of f64, if it does. `out_strides`: the distance in the result of a step along each
/// of the first `out_rank` axes; row-major if `None`. Only products store in another order.
pub fn library_call(
    c: &Contraction,
    lhs: &DenseType,
    rhs: &DenseType,
    out_strides: Option<&[Extent]>,
) -> Option<LibraryCall> {
    let convolution = if out_strides.is_none() { as_convolution(c, lhs, rhs) } else { None };
    let product = || as_gemm(c, lhs, rhs, out_strides).map(|gemm| LibraryCall::Gemm(Box::new(gemm)));
    convolution.map(|conv| LibraryCall::Conv(Box::new(conv))).or_else(product)
}

/// Whether a library kernel computes the contraction.
pub fn is_library(c: &Contraction, lhs: &DenseType, rhs: &DenseType) -> bool {
    library_call(c, lhs, rhs, None).is_some()
}

/// Whether the library's product computes the contraction, though it may be a convolution as well.
pub fn is_product(c: &Contraction, lhs: &DenseType, rhs: &DenseType) -> bool {
    as_gemm(c, lhs, rhs, None).is_some()
}

/// The contraction as a convolution, with filters of the run, or as a gradient of one.
fn as_convolution(c: &Contraction, lhs: &DenseType, rhs: &DenseType) -> Option<Conv2d<Extent>> {
    planar_convolution(c, lhs, rhs)
        .or_else(|| as_image_convolution(c, lhs, rhs))
        .or_else(|| bytes::as_byte_convolution(c, lhs, rhs))
        .or_else(|| as_conv_filter_gradient(c, lhs, rhs))
        .or_else(|| as_conv_data_gradient(c, lhs, rhs))
        .map(Conv2d::along_width)
}

/// Distances of a step along each axis of a dense tensor.
pub(crate) fn row_major(dims: &Extents) -> Vec<Extent> {
    let mut strides = vec![Extent::ONE; dims.len()];
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = strides[axis] * dims.at(axis);
    }
    strides
}

/// A contraction expressed as a matrix product.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gemm {
    /// The call of the library.
    pub call: BatchedGemm<Extent>,
    /// The library's A is the contraction's right operand, and its B the left one.
    pub swapped: bool,
    /// The iteration axes that make up each batch dimension, the rows and the columns of the
    /// product, outermost first. Axes of extent 1 belong to none.
    pub batch_axes: [Vec<usize>; GEMM_BATCH_RANK],
    /// The axes of the result's rows.
    pub row_axes: Vec<usize>,
    /// The axes of the result's columns.
    pub col_axes: Vec<usize>,
    /// The iteration axes that products are added over.
    pub depth_axes: Vec<usize>,
}

/// One iteration axis and how far a step along it moves in each operand, in elements.
#[derive(Clone, Debug)]
struct ContractionAxis {
    /// The iteration axes merged here.
    ids: Vec<usize>,
    extent: Extent,
    a: Extent,
    b: Extent,
    c: Extent,
}

/// The contraction as a batched matrix product of the library, if its accesses are strided and in bounds.
///
/// `out_strides` gives the distance in the result of a step along each of the first
/// `contraction.out_rank` axes; row-major if `None`.
fn as_gemm(c: &Contraction, lhs: &DenseType, rhs: &DenseType, out_strides: Option<&[Extent]>) -> Option<Gemm> {
    let elements = |l, r| GemmElements::PLAIN.into_iter().find(|kind| kind.types()[..2] == [l, r]);
    elements(lhs.dtype, rhs.dtype)?;
    let mut gemm = as_product(c, lhs, rhs, out_strides)?;
    let (l, r) = if gemm.swapped { (rhs, lhs) } else { (lhs, rhs) };
    gemm.call.elements = match (elements(l.dtype, r.dtype)?, c.algorithm) {
        (GemmElements::F32, ConvAlgorithm::Bf16) => GemmElements::Bf16,
        (elements, _) => elements,
    };
    Some(gemm)
}

/// As [`as_gemm`], whatever the types.
pub(crate) fn as_product(
    c: &Contraction,
    lhs: &DenseType,
    rhs: &DenseType,
    out_strides: Option<&[Extent]>,
) -> Option<Gemm> {
    (!sums_nothing(c)).then_some(())?;
    let (a, a_offset) = strides(&c.lhs, lhs, &c.extents)?;
    let (b, b_offset) = strides(&c.rhs, rhs, &c.extents)?;
    let row_major = row_major(&c.extents.range(..c.out_rank));
    let out = out_strides.unwrap_or(&row_major);
    let axis = |i| {
        // Folded axes have no step in the result.
        let c_step = if i < c.out_rank { *out.get(i)? } else { Extent::ZERO };
        Some(ContractionAxis { ids: vec![i], extent: c.extents.at(i), a: a[i], b: b[i], c: c_step })
    };
    let axes = (0..c.extents.len()).filter(|&i| !c.extents.at(i).is_surely(1)).map(axis).collect::<Option<Vec<_>>>()?;
    let folded = c.extents.all().skip(c.out_rank).filter(|e| !e.is_surely(1)).count();
    let [mut batch, m, n, k] = by_operand(&axes, folded);
    let (k, m, n) = (merge(k), merge(m), merge(n));
    if k.len() > 1 {
        return None;
    }
    // The result's unit-stride axis must be the product's columns.
    let unit = |axes: &[ContractionAxis]| axes.iter().any(|x| x.c == 1);
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
    let pick = |axis: &Option<ContractionAxis>, f: Stride| axis.as_ref().map_or(Extent::ZERO, f);
    let extent = |axis: &Option<ContractionAxis>| axis.as_ref().map_or(Extent::ONE, |x| x.extent);
    let layout = |offset, f: Stride, row: &Option<ContractionAxis>, col: &Option<ContractionAxis>| {
        let mut batch_strides = [Extent::ZERO; GEMM_BATCH_RANK];
        batch.iter().enumerate().for_each(|(i, x)| batch_strides[GEMM_BATCH_RANK - batch.len() + i] = f(x));
        MatrixLayout { offset, batch_strides, row_stride: pick(row, f), col_stride: pick(col, f) }
    };
    let mut extents = [Extent::ONE; GEMM_BATCH_RANK];
    batch.iter().enumerate().for_each(|(i, x)| extents[GEMM_BATCH_RANK - batch.len() + i] = x.extent);
    let (fa, fb): (Stride, Stride) = if flip { (|x| x.b, |x| x.a) } else { (|x| x.a, |x| x.b) };
    let (ao, bo) = if flip { (b_offset, a_offset) } else { (a_offset, b_offset) };
    let mut c_layout = layout(Extent::ZERO, |x| x.c, &rows, &cols);
    c_layout.col_stride = Extent::ONE;
    let call = BatchedGemm {
        batch: extents,
        m: extent(&rows),
        n: extent(&cols),
        k: extent(&k),
        a: layout(ao, fa, &rows, &k),
        b: layout(bo, fb, &k, &cols),
        c: c_layout,
        b_packed: false,
        elements: GemmElements::F32,
    };
    let ids = |axis: Option<ContractionAxis>| axis.map_or(vec![], |x| x.ids);
    let depth_axes = ids(k);
    let mut batch_axes: [Vec<usize>; GEMM_BATCH_RANK] = Default::default();
    let used = batch.len();
    batch.into_iter().enumerate().for_each(|(i, x)| batch_axes[GEMM_BATCH_RANK - used + i] = x.ids);
    Some(Gemm { call, swapped: flip, batch_axes, row_axes: ids(rows), col_axes: ids(cols), depth_axes })
}

/// The axes of batches, rows, columns and terms: of both operands, of the left one, of the right one, and the last `folded`.
fn by_operand(axes: &[ContractionAxis], folded: usize) -> [Vec<ContractionAxis>; 4] {
    let mut found: [Vec<ContractionAxis>; 4] = Default::default();
    for (i, axis) in axes.iter().enumerate() {
        let class = match (axis.a != 0, axis.b != 0) {
            _ if i >= axes.len() - folded => 3,
            (true, true) => 0,
            (false, true) => 2,
            _ => 1,
        };
        found[class].push(axis.clone());
    }
    found
}

type Stride = fn(&ContractionAxis) -> Extent;

/// Fuses neighbouring axes that every operand walks as one.
fn merge(axes: Vec<ContractionAxis>) -> Vec<ContractionAxis> {
    let mut out: Vec<ContractionAxis> = vec![];
    for axis in axes {
        match out.last_mut() {
            Some(o) if fits(o.a, &axis, axis.a) && fits(o.b, &axis, axis.b) && fits(o.c, &axis, axis.c) => {
                let ids = [&o.ids[..], &axis.ids].concat();
                *o = ContractionAxis { ids, extent: o.extent * axis.extent, ..axis };
            }
            _ => out.push(axis),
        }
    }
    out
}

fn fits(outer: Extent, inner: &ContractionAxis, stride: Extent) -> bool {
    outer == stride * inner.extent
}

/// Strides of each iteration axis in an operand, and the offset, if access is affine and in bounds.
fn strides(map: &[Index], ty: &DenseType, extents: &Extents) -> Option<(Vec<Extent>, Extent)> {
    if !map.iter().zip(ty.dims.all()).all(|(index, n)| stays_inside(index, n, extents)) {
        return None;
    }
    let flat = linearize(map, &ty.dims);
    let strides = (0..extents.len() as u32).map(|v| flat.coefficient(v));
    flat.is_affine().then(|| strides.collect::<Option<Vec<_>>>())?.map(|s| (s, flat.constant))
}

/// The contraction as a convolution of f32 as [`as_forward`] recognises it.
pub fn planar_convolution(c: &Contraction, lhs: &DenseType, rhs: &DenseType) -> Option<Conv2d<Extent>> {
    let single = [lhs, rhs].iter().all(|ty| ty.dtype == DType::F32);
    if single { as_forward(c, lhs, rhs) } else { None }
}

/// Whether a product has no terms, or is known to have no elements. A library multiplies along axes that turn out to have none.
pub(super) fn sums_nothing(c: &Contraction) -> bool {
    c.extents.has_none() || c.extents.range(c.out_rank..).all().any(|n| n == 0)
}

/// Whether kernels of convolutions, which count elements by 32 bits, can address those of operands and result.
fn addressable(c: &Contraction, operands: [&DenseType; 2]) -> bool {
    let result = c.extents.range(..c.out_rank).count();
    operands.map(|ty| ty.dims.count()).into_iter().chain([result]).all(|len| len <= i32::MAX)
}

/// A convolution with one pixel, one tap and no padding along each axis.
fn unit(pass: ConvPass, [batch, groups, in_channels, out_channels]: [Extent; 4]) -> Conv2d<Extent> {
    Conv2d {
        batch,
        groups,
        in_channels,
        out_channels,
        input: [Extent::ONE; 2],
        output: [Extent::ONE; 2],
        kernel: [Extent::ONE; 2],
        strides: [Extent::ONE; 2],
        dilations: [Extent::ONE; 2],
        pads: [Extent::ZERO; 2],
        pass,
        images: [Extent::ZERO; 2],
        layouts: [ImageLayout::Nchw; 2],
    }
}

/// The contraction as a convolution over NCHW data (one- or two-dimensional, grouped or not) of any type, with
/// filters as they are.
///
/// Axes `[n, oc, out…, ic, kernel…]`, where `oc` counts output channels of all groups; left operand
/// `(n, floordiv(oc, oc per group)·ic per group + ic, out·stride + kernel·dilation - pad, …)`, right
/// operand `(oc, ic, kernel…)`.
pub(crate) fn as_forward(c: &Contraction, lhs: &DenseType, rhs: &DenseType) -> Option<Conv2d<Extent>> {
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
    if sums_nothing(c) || c.out_rank != spatial + 2 || c.extents.len() != kernel + spatial {
        return None;
    }
    let (channels, per_group) = (c.extents.at(1), c.extents.at(ic));
    let groups = lhs.dims.at(1).sure_quotient(per_group)?;
    if rhs.dims.at(0) != channels {
        return None;
    }
    let filters = channels.sure_quotient(groups.greatest(1))?;
    let var = |i: usize| Index::var(i as u32);
    let group = var(1).floor_div(filters.greatest(1), &c.extents);
    let canonical = same(&c.lhs[0], &var(0), &c.extents)
        && same(&c.lhs[1], &group.scale(per_group).add(&var(ic)), &c.extents)
        && same(&c.rhs[0], &var(1), &c.extents)
        && same(&c.rhs[1], &var(ic), &c.extents)
        && (0..spatial).all(|s| same(&c.rhs[2 + s], &var(kernel + s), &c.extents));
    if !canonical
        || !addressable(c, [lhs, rhs])
        || rhs.dims.range(2..) != c.extents.range(kernel..)
        || lhs.dims.at(0) != c.extents.at(0)
    {
        return None;
    }
    let mut conv = unit(ConvPass::Forward, [c.extents.at(0), groups, per_group, filters]);
    for s in 0..spatial {
        let (axis, index) = (2 - spatial + s, &c.lhs[2 + s]);
        let (o, k) = (out + s, kernel + s);
        (conv.strides[axis], conv.dilations[axis], conv.pads[axis]) = window(index, o, k, &c.extents)?;
        conv.input[axis] = lhs.dims.at(2 + s);
        conv.output[axis] = c.extents.at(o);
        conv.kernel[axis] = c.extents.at(k);
    }
    conv.pass = pass(&conv, c.algorithm);
    Some(conv)
}

/// The pass that computes a convolution by an algorithm, or by the sum where that does not compute it.
fn pass(conv: &Conv2d<Extent>, algorithm: ConvAlgorithm) -> ConvPass {
    ConvPass::by(if conv.allows(algorithm) { algorithm } else { ConvAlgorithm::Direct })
}

/// Stride, dilation and padding of the index `o·stride + k·dilation - pad`.
fn window(index: &Index, o: usize, k: usize, extents: &Extents) -> Option<(Extent, Extent, Extent)> {
    let step = |v: usize| if extents.at(v) == 1 { Some(Extent::ONE) } else { index.coefficient(v as u32) };
    let (stride, dilation) = (step(o)?, step(k)?);
    let var = |v: usize, c: Extent| Index::var(v as u32).scale(c);
    let rebuilt = var(o, stride).add(&var(k, dilation)).offset(index.constant);
    let fits = stride >= 1 && dilation >= 1 && index.constant <= 0 && same(index, &rebuilt, extents);
    fits.then_some((stride, dilation, -index.constant))
}

/// Joins axes `axis` and `axis + 1` of an operand.
fn join_pair(map: &mut Vec<Index>, dims: &mut Vec<Extent>, axis: usize, extents: &Extents) {
    let joined = linearize(&map[axis..axis + 2], &dims[axis..axis + 2]).recombine(extents);
    map.splice(axis..axis + 2, [joined]);
    let size = dims[axis] * dims[axis + 1];
    dims.splice(axis..axis + 2, [size]);
}

/// The contraction with its axes 1 and 2 joined to one.
fn join_channels(c: &Contraction) -> Contraction {
    let mut extents: Vec<Extent> = c.extents.all().collect();
    let inner = extents.remove(2);
    extents[1] = extents[1] * inner;
    let extents = Extents::from_iter(extents);
    // Of no elements no coordinate matters.
    let divisor = inner.greatest(1);
    let split = |v: u32| match v {
        0 => Index::var(0),
        1 => Index::var(1).floor_div(divisor, &extents),
        2 => Index::var(1).modulo(divisor, &extents),
        _ => Index::var(v - 1),
    };
    let map = |m: &[Index]| m.iter().map(|i| i.substitute(&split, &extents).recombine(&extents)).collect();
    Contraction {
        lhs: map(&c.lhs),
        rhs: map(&c.rhs),
        out_rank: c.out_rank - 1,
        extents: extents.clone(),
        algorithm: ConvAlgorithm::Direct,
    }
}

/// Equality of indices whose unit-extent axes are known to be zero.
fn same(a: &Index, b: &Index, extents: &Extents) -> bool {
    a.sub(b).interval(extents) == (Extent::ZERO, Extent::ZERO)
}
