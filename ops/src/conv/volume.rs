//! Convolutions over volumes as convolutions of images.
//!
//! What the taps along the first axis read of a channel become channels of their own, and the positions along that axis images of the
//! batch: `[n, c, d, h, w]` becomes `[n · out, c · taps, h, w]`. So volumes have the kernels of images, at the price of a copy with as many
//! elements for each element as there are taps. Of filters of one element for each channel the elements that are read become a line,
//! `[n, c, out · out · out]`, of which the convolution is a product.

use super::Convolution;
use crate::prelude::*;

impl<'g> Convolution<'_, 'g> {
    /// Whether it is of volumes of f32. With filters of one element for each channel it is a product.
    pub(super) fn is_of_volumes(&self) -> Result<bool> {
        let (ty, filters) = (self.x.ty()?, self.w.dims()?);
        let is_product = filters.range(2..).all().all(|k| k.is_surely(1)) && ty.dims.range(2..) == self.spatial;
        Ok(self.spatial.len() == 3 && ty.dtype == DType::F32 && !is_product)
    }

    /// The convolution of volumes as one of images.
    pub(super) fn over_images(&self) -> Result<Tensor<'g>> {
        let Convolution { x, w, groups, ref spatial, position } = *self;
        let (ty, wd) = (x.ty()?, w.dims()?);
        if wd.range(2..).all().all(|k| k.is_surely(1)) {
            return self.over_line();
        }
        let (batch, filters, depth, taps) = (ty.dims.at(0), wd.at(0), spatial.at(0), wd.at(2));
        let images = Extents::of([batch * depth, ty.dims.at(1) * taps, ty.dims.at(3), ty.dims.at(4)]);
        let (v, by_depth, by_taps) = (vars(images.len()), depth.as_divisor(), taps.as_divisor());
        let at = position(0, &v[0].modulo(by_depth, &images), &v[1].modulo(by_taps, &images));
        let (image, channel) = (v[0].floor_div(by_depth, &images), v[1].floor_div(by_taps, &images));
        let fill = Some(Scalar::zero(ty.dtype));
        let y = Convolution {
            x: x.view(vec![image, channel, at, v[2].clone(), v[3].clone()], fill, &images),
            w: w.reshape(Extents::of([filters, wd.at(1) * taps, wd.at(3), wd.at(4)])),
            groups,
            spatial: spatial.range(1..),
            position: &|axis, o, k| position(axis + 1, o, k),
        };
        let apart = Extents::of([batch, depth, filters, spatial.at(1), spatial.at(2)]);
        Ok(y.contraction()?.reshape(&apart).permute(&[0, 2, 1, 3, 4]))
    }

    /// The convolution of volumes with filters of one element for each channel as one of lines.
    fn over_line(&self) -> Result<Tensor<'g>> {
        let Convolution { x, w, groups, ref spatial, position } = *self;
        let (ty, wd) = (x.ty()?, w.dims()?);
        let [rows, columns] = [1, 2].map(|axis| spatial.at(axis));
        let line = Extents::of([ty.dims.at(0), ty.dims.at(1), spatial.at(0) * rows * columns]);
        let v = vars(line.len());
        let by = |extent: Extent| extent.as_divisor();
        let at = [
            v[2].floor_div(by(rows * columns), &line),
            v[2].floor_div(by(columns), &line).modulo(by(rows), &line),
            v[2].modulo(by(columns), &line),
        ];
        let read = at.iter().enumerate().map(|(axis, o)| position(axis, o, &Index::constant(0)));
        let y = Convolution {
            x: x.view(
                [v[0].clone(), v[1].clone()].into_iter().chain(read).collect(),
                Some(Scalar::zero(ty.dtype)),
                &line,
            ),
            w: w.reshape(Extents::of([wd.at(0), wd.at(1), Extent::ONE])),
            groups,
            spatial: line.range(2..),
            position: &|_, o, _| o.clone(),
        };
        Ok(y.contraction()?.reshape(Extents::from_iter([ty.dims.at(0), wd.at(0)].into_iter().chain(spatial.all()))))
    }
}
