//! Convolutions over volumes as convolutions of images.
//!
//! What the taps along the first axis read of a channel become channels of their own, and the positions along that axis images of the
//! batch: `[n, c, d, h, w]` becomes `[n · out, c · taps, h, w]`. So volumes have the kernels of images, at the price of a copy with as many
//! elements for each element as there are taps.

use super::{Positions, contract};
use crate::prelude::*;

/// Whether a convolution is computed over images: of volumes of f32, unless filters read one element of each channel, which are products.
pub(super) fn is_cut(x: Tensor<'_>, w: Tensor<'_>, spatial: &Extents) -> Result<bool> {
    let (ty, filters) = (x.ty()?, w.dims()?);
    let is_point = filters.range(2..).all().all(|k| k.is_surely(1)) && ty.dims.range(2..) == *spatial;
    Ok(spatial.len() == 3 && ty.dtype == DType::F32 && !is_point)
}

/// As [`contract`], over images.
pub(super) fn convolve<'g>(
    x: Tensor<'g>,
    w: Tensor<'g>,
    groups: u64,
    spatial: &Extents,
    position: Positions<'_>,
) -> Result<Tensor<'g>> {
    let (ty, wd) = (x.ty()?, w.dims()?);
    let (batch, filters, depth, taps) = (ty.dims.at(0), wd.at(0), spatial.at(0), wd.at(2));
    let images = Extents::of([batch * depth, ty.dims.at(1) * taps, ty.dims.at(3), ty.dims.at(4)]);
    let (v, positions, places) = (vars(images.len()), depth.as_divisor(), taps.as_divisor());
    let at = position(0, &v[0].modulo(positions, &images), &v[1].modulo(places, &images));
    let map = vec![v[0].floor_div(positions, &images), v[1].floor_div(places, &images), at, v[2].clone(), v[3].clone()];
    let x = x.view(map, Some(Scalar::zero(ty.dtype)), &images);
    let w = w.reshape(Extents::of([filters, wd.at(1) * taps, wd.at(3), wd.at(4)]));
    let area = spatial.range(1..);
    let y = contract(x, w, groups, &area, &|axis, o, k| position(axis + 1, o, k))?;
    let apart = Extents::of([batch, depth, filters, area.at(0), area.at(1)]);
    Ok(y.reshape(&apart).permute(&[0, 2, 1, 3, 4]))
}
