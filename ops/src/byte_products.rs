//! Products and convolutions of bytes less their zero points, as one product of unsigned and signed bytes and corrections
//! that are exact modulo 2³²:
//!
//! `Σ (a - za)·(b - zb) = Σ a·b - za·(Σ b - k·zb) - zb·Σ a`
//!
//! A byte of the other sign is the same number less 128, with a zero point less 128. Sums of constants are constants.
//! A convolution of one group, or of one for each channel, reads images where they lie, or a copy with what is outside; any
//! other one is the product of its filters with the patches of the image, which are copied if they overlap.

use crate::contract::matmul_contraction;
use crate::conv::ConvGeometry;
use crate::prelude::*;
use crate::quantize::shaped_by;

/// Values of a sign bit.
const SIGN: f64 = 128.0;

/// Fewest filters of a group that are worth copying patches for.
const MIN_FILTERS: u64 = 4;

/// An operand and its zero point, of i32.
#[derive(Clone, Copy)]
pub(crate) struct ByteOperand<'g> {
    pub x: Tensor<'g>,
    pub zero: Option<Tensor<'g>>,
}

impl<'g> ByteOperand<'g> {
    /// The operands at `x` and, if it is given, `zero`. `vector` shapes a zero point for each row, column or filter.
    pub fn of(g: GraphScope<'g>, [x, zero]: [usize; 2], vector: impl Fn(u64) -> Vec<u64>) -> Result<ByteOperand<'g>> {
        let zero = g.maybe(zero).map(|zero| shaped_by(zero, vector)).transpose()?;
        Ok(ByteOperand { x: g.operand(x), zero: zero.map(|zero| zero.cast(DType::I32)) })
    }

    /// The zero point, if it is a constant.
    fn known_zero(self) -> Result<Option<i64>> {
        match self.zero {
            None => Ok(Some(0)),
            Some(zero) => Ok(zero.known_item()?.map(Scalar::as_i64)),
        }
    }

    /// The numbers less the zero point.
    pub fn centred(self) -> Tensor<'g> {
        let x = self.x.cast(DType::I32);
        self.zero.map_or(x, |zero| x - zero)
    }

    /// The same numbers in bytes that are signed, or not.
    fn signed(self, signed: bool) -> Result<ByteOperand<'g>> {
        let to = if signed { DType::I8 } else { DType::U8 };
        if self.x.ty()?.dtype == to {
            return Ok(self);
        }
        let shift = if signed { -SIGN } else { SIGN };
        let g = self.x.graph();
        let zero = match self.zero {
            Some(zero) => zero.map(|zero| zero + shift),
            None => g.filled(&DenseType::new(DType::I32, []), shift),
        };
        let x = g.map(&[self.x], to, &self.x.dims()?, |_, a| (a[0].cast(DType::I32) + shift).cast(to));
        Ok(ByteOperand { x, zero: Some(zero) })
    }

    /// The sum over some axes, which stay with extent 1.
    fn sum(self, axes: &[usize]) -> Result<Tensor<'g>> {
        let (dtype, wide) = (self.x.ty()?.dtype, DType::I32);
        self.x.reduced((|| {
            let map = ScalarFn::build(&[dtype], |_, a| vec![a[0].cast(wide)])?;
            let combine = ScalarFn::build(&[wide; 2], |_, a| vec![&a[0] + &a[1]])?;
            let finish = ScalarFn::build(&[wide], |_, a| vec![a[0].clone()])?;
            let init = vec![Scalar::zero(wide)];
            Ok(Reduction { axes: axes.to_vec(), keep_dims: true, init, map, combine, finish })
        })())
    }
}

/// Two operands of which one is signed and one is not, the left one if it was the only one.
fn of_two_signs<'g>(a: ByteOperand<'g>, b: ByteOperand<'g>) -> Result<[ByteOperand<'g>; 2]> {
    let left = (a.x.ty()?.dtype, b.x.ty()?.dtype) == (DType::I8, DType::U8);
    Ok([a.signed(left)?, b.signed(!left)?])
}

/// A product of raw bytes less what zero points add. Sums of operands, over `terms` terms, and zero points broadcast to the
/// product.
fn corrected<'g>(
    product: Tensor<'g>,
    zeros: [Option<Tensor<'g>>; 2],
    terms: Extent,
    [left_sum, right_sum]: [&dyn Fn() -> Result<Tensor<'g>>; 2],
) -> Result<Tensor<'g>> {
    let count = || product.graph().extents(&Extents::from_iter([terms])).cast(DType::I32).reshape([]);
    let mut y = product;
    if let Some(left) = zeros[0] {
        let sums = right_sum()?;
        y = y - left * zeros[1].map_or(sums, |right| sums - right * count());
    }
    if let Some(right) = zeros[1] {
        y = y - right * left_sum()?;
    }
    Ok(y)
}

/// The product of matrices of bytes less their zero points, which broadcast to it, in i32, of shape `dims`.
pub(crate) fn byte_matmul<'g>(a: ByteOperand<'g>, b: ByteOperand<'g>, dims: &Extents) -> Result<Tensor<'g>> {
    if a.x.dims()?.len() < 2 || b.x.dims()?.len() < 2 {
        return Ok(a.centred().call("matmul", &[b.centred()]));
    }
    let [a, b] = of_two_signs(a, b)?;
    let (left, right) = (a.x.dims()?, b.x.dims()?);
    let product = a.x.contract(b.x, matmul_contraction(&left, &right, dims));
    let (last, terms) = (left.len() - 1, left.at(left.len() - 1));
    corrected(product, [a.zero, b.zero], terms, [&|| a.sum(&[last]), &|| b.sum(&[right.len() - 2])])
}

/// The convolution of an image of bytes [n, c, …] with filters of bytes [filters, c / groups, …] less their zero points,
/// in i32. The zero point of the image is a scalar, that of the filters a scalar or [filters]. `None` where copying patches
/// does not pay.
pub(crate) fn byte_conv<'g>(
    image: ByteOperand<'g>,
    filters: ByteOperand<'g>,
    geometry: &ConvGeometry<'_>,
) -> Result<Option<Tensor<'g>>> {
    let ConvGeometry { groups, ref spatial, .. } = *geometry;
    let wd = filters.x.dims()?;
    let (all, terms) = (wd[0], wd.all().skip(1).product::<Extent>());
    let of_group = all / groups;
    if let Some(y) = image_conv(image, filters, geometry)? {
        return Ok(Some(y));
    }
    if of_group < MIN_FILTERS {
        return Ok(None);
    }
    let [w, x] = of_two_signs(filters, image)?;
    let patches = patches(x, &wd, geometry)?;
    let (n, channels, rank) = (x.x.dims()?.at(0), wd.at(1), spatial.len());
    // Images, groups and filters of a group, pixels; then channels and taps.
    let lead = Extents::from_iter([n, groups.into(), of_group.into()].into_iter().chain(spatial.all()));
    let extents: Extents = lead.all().chain(wd.all().skip(1)).collect();
    let v = vars(extents.len());
    let (pixels, taps) = (&v[3..3 + rank], &v[4 + rank..]);
    let filter = v[1].scale(of_group as i64).add(&v[2]);
    let channel = v[1].scale(channels).add(&v[3 + rank]);
    let lhs = [&[filter, v[3 + rank].clone()], taps].concat();
    let rhs = [&[v[0].clone(), channel], taps, pixels].concat();
    let product = w.x.contract(patches, Contraction::new(extents, lead.len(), lhs, rhs));
    let per_filter = |zero: Tensor<'g>| -> Result<Tensor<'g>> {
        let one = zero.dims()?.all().product::<Extent>().is_surely(1);
        let ones = std::iter::repeat_n(Extent::ONE, rank);
        Ok(match one {
            true => zero.reshape([]),
            false => zero.reshape(Extents::from_iter([groups.into(), of_group.into()].into_iter().chain(ones))),
        })
    };
    let filter_sums = || per_filter(w.sum(&(1..wd.len()).collect::<Vec<_>>())?);
    let patch_sums = || {
        let split = [n, groups.into(), Extent::ONE, channels].into_iter().chain(wd.all().skip(2)).chain(spatial.all());
        let x = ByteOperand { x: patches.reshape(Extents::from_iter(split)), zero: None };
        let sums = x.sum(&(3..4 + rank).collect::<Vec<_>>())?;
        let kept = [n, groups.into(), Extent::ONE].into_iter().chain(spatial.all());
        Ok(sums.reshape(Extents::from_iter(kept)))
    };
    let zeros = [w.zero.map(per_filter).transpose()?, x.zero.map(|zero| zero.reshape([]))];
    let y = corrected(product, zeros, terms, [&filter_sums, &patch_sums])?;
    Ok(Some(y.reshape(Extents::from_iter([n, all.into()].into_iter().chain(spatial.all())))))
}

/// [`byte_conv`] of one group, or of one for each filter, of images with rows and columns, or columns alone, whose zero point is
/// known.
fn image_conv<'g>(
    image: ByteOperand<'g>,
    filters: ByteOperand<'g>,
    geometry: &ConvGeometry<'_>,
) -> Result<Option<Tensor<'g>>> {
    match geometry.spatial.len() {
        1 => row_conv(image, filters, geometry),
        2 => plane_conv(image, filters, geometry),
        _ => Ok(None),
    }
}

/// [`image_conv`] of columns alone: of images of one row.
fn row_conv<'g>(
    image: ByteOperand<'g>,
    filters: ByteOperand<'g>,
    geometry: &ConvGeometry<'_>,
) -> Result<Option<Tensor<'g>>> {
    let with_row = |x: Tensor<'g>| -> Result<Tensor<'g>> {
        let dims = x.dims()?;
        let lead = dims.range(..2);
        Ok(x.reshape(Extents::from_iter(lead.all().chain([Extent::ONE]).chain(dims.range(2..).all()))))
    };
    let of_row = |x: ByteOperand<'g>| -> Result<ByteOperand<'g>> { Ok(ByteOperand { x: with_row(x.x)?, ..x }) };
    let position = |axis: usize, o: &Index, k: &Index| match axis {
        0 => Index::constant(0),
        _ => (geometry.position)(axis - 1, o, k),
    };
    let spatial = Extents::from_iter([Extent::ONE].into_iter().chain(geometry.spatial.all()));
    let rows = ConvGeometry { spatial, position: &position, ..*geometry };
    let Some(y) = plane_conv(of_row(image)?, of_row(filters)?, &rows)? else { return Ok(None) };
    let dims = y.dims()?;
    Ok(Some(y.reshape(Extents::from_iter(dims.range(..2).all().chain(geometry.spatial.all())))))
}

/// [`image_conv`] of rows and columns.
fn plane_conv<'g>(
    image: ByteOperand<'g>,
    filters: ByteOperand<'g>,
    geometry: &ConvGeometry<'_>,
) -> Result<Option<Tensor<'g>>> {
    let ConvGeometry { groups, ref spatial, padded, .. } = *geometry;
    let depthwise = groups > 1 && filters.x.dims()?[..2] == [groups, 1];
    let Some(outside) = image.known_zero()?.filter(|_| groups == 1 || depthwise) else { return Ok(None) };
    let (x, w) = (image.signed(false)?, filters.signed(true)?);
    // What is outside of the image, as bytes that are not signed.
    let outside = outside + if image.x.ty()?.dtype == DType::I8 { SIGN as i64 } else { 0 };
    let (xd, wd) = (x.x.dims()?, w.x.dims()?);
    let (n, filters, channels) = (xd.at(0), wd.at(0), xd.at(1));
    let (taps, v) = ([wd.at(2), wd.at(3)], vars(7));
    // Copied if there is something else than zeros around the pixels.
    let copied = padded && outside != 0;
    let x = if copied { ByteOperand { x: surrounded(x.x, taps, geometry, outside)?, ..x } } else { x };
    let position = |axis: usize, o: &Index, k: &Index| {
        let index = (geometry.position)(axis, o, k);
        if copied { index.offset(-first_read(geometry, axis)) } else { index }
    };
    // Axes of the result, then taps and, of one group, channels.
    let (ordered, axes): (_, &[usize]) = match depthwise {
        true => (w.x.reshape(Extents::from_iter([filters, taps[0], taps[1]])), &[1, 4, 5]),
        false => (w.x.permute(&[0, 2, 3, 1]), &[1, 4, 5, 6]),
    };
    let terms = ordered.dims()?.range(1..);
    let extents: Extents = [n, filters].into_iter().chain(spatial.all()).chain(terms.all()).collect();
    let at = |axis: usize| position(axis, &v[2 + axis], &v[4 + axis]);
    let lhs = vec![v[0].clone(), v[if depthwise { 1 } else { 6 }].clone(), at(0), at(1)];
    let rhs = axes.iter().map(|axis| v[*axis].clone()).collect();
    let product = x.x.contract(ordered, Contraction::new(extents, 4, lhs, rhs));
    let per_filter = |zero: Tensor<'g>| -> Result<Tensor<'g>> {
        let one = zero.dims()?.all().product::<Extent>().is_surely(1);
        Ok(if one { zero.reshape([]) } else { zero.reshape([wd[0], 1, 1]) })
    };
    let filter_sums = || per_filter(w.sum(&[1, 2, 3])?);
    let window_sums = || {
        let dims = Extents::from_iter([n, channels, taps[0], taps[1]].into_iter().chain(spatial.all()));
        let at = |axis: usize| position(axis, &v[4 + axis], &v[2 + axis]);
        let map = vec![v[0].clone(), v[1].clone(), at(0), at(1)];
        let windows = x.x.view(map, Some(Scalar::zero(DType::U8)), &dims);
        let (summed, of): (&[usize], _) = if depthwise { (&[2, 3], channels) } else { (&[1, 2, 3], Extent::ONE) };
        let sums = ByteOperand { x: windows, zero: None }.sum(summed)?;
        Ok(sums.reshape(Extents::from_iter([n, of].into_iter().chain(spatial.all()))))
    };
    let zeros = [w.zero.map(per_filter).transpose()?, x.zero.map(|zero| zero.reshape([]))];
    corrected(product, zeros, wd.all().skip(1).product(), [&filter_sums, &window_sums]).map(Some)
}

/// The first row or column that windows read, counted from that of the image.
fn first_read(geometry: &ConvGeometry<'_>, axis: usize) -> Extent {
    (geometry.position)(axis, &Index::constant(0), &Index::constant(0)).constant
}

/// A copy of the rows and columns of images that windows of `taps` read, with `outside` around the pixels.
fn surrounded<'g>(x: Tensor<'g>, taps: [Extent; 2], geometry: &ConvGeometry<'_>, outside: i64) -> Result<Tensor<'g>> {
    let (first, v) = ([0, 1].map(|axis| first_read(geometry, axis)), vars(4));
    let read = [0, 1].map(|axis| {
        let last = |n: Extent| Index::constant(n - 1);
        (geometry.position)(axis, &last(geometry.spatial.at(axis)), &last(taps[axis])).constant - first[axis] + 1
    });
    let map = [v[0].clone(), v[1].clone(), v[2].offset(first[0]), v[3].offset(first[1])];
    let dims = Extents::from_iter(x.dims()?.range(..2).all().chain(read));
    Ok(x.view(map.to_vec(), Some(Scalar::from_i64(DType::U8, outside)), &dims))
}

/// What each tap of each pixel reads, [n, c, taps…, pixels…]; outside of the image the zero point.
fn patches<'g>(x: ByteOperand<'g>, filters: &Extents, geometry: &ConvGeometry<'_>) -> Result<Tensor<'g>> {
    let (xd, spatial) = (x.x.dims()?, &geometry.spatial);
    let rank = spatial.len();
    let lead = [xd.at(0), xd.at(1)].into_iter();
    let dims = Extents::from_iter(lead.chain(filters.all().skip(2)).chain(spatial.all()));
    let v = vars(dims.len());
    let at = |axis: usize| (geometry.position)(axis, &v[2 + rank + axis], &v[2 + axis]);
    let map: Vec<Index> = v[..2].iter().cloned().chain((0..rank).map(at)).collect();
    let dtype = x.x.ty()?.dtype;
    Ok(match x.zero.filter(|_| geometry.padded) {
        None => x.x.view(map, Some(Scalar::zero(dtype)), &dims),
        Some(zero) => {
            let zero = zero.reshape([]);
            let centred = x.x.cast(DType::I32) - zero;
            (centred.view(map, Some(Scalar::zero(DType::I32)), &dims) + zero).cast(dtype)
        }
    })
}
