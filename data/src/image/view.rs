//! A rectangle of an image in fractions of pixels.

use super::PixelRegion;

/// A rectangle of an image in pixels, from the left upper corner of the first pixel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ImageView {
    /// The left edge, in pixels.
    pub left: f64,
    /// The upper edge, in pixels.
    pub top: f64,
    /// The width, in pixels.
    pub width: f64,
    /// The height, in pixels.
    pub height: f64,
}

impl ImageView {
    /// All of an image.
    pub fn all(width: u32, height: u32) -> ImageView {
        ImageView::from(PixelRegion::all(width, height))
    }

    /// The rectangle of whole pixels that it is, if it is one.
    pub fn region(&self) -> Option<PixelRegion> {
        let whole = |x: f64| (x.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&x)).then_some(x as u32);
        let (left, top) = (whole(self.left)?, whole(self.top)?);
        Some(PixelRegion { left, top, width: whole(self.width)?, height: whole(self.height)? })
    }

    /// Cuts off what rounding put outside of an image.
    pub(super) fn within(self, width: u32, height: u32) -> ImageView {
        let axis = |start: f64, extent: f64, limit: u32| {
            let start = start.clamp(0.0, f64::from(limit));
            (start, extent.min(f64::from(limit) - start))
        };
        let (left, width) = axis(self.left, self.width, width);
        let (top, height) = axis(self.top, self.height, height);
        ImageView { left, top, width, height }
    }
}

impl From<PixelRegion> for ImageView {
    fn from(region: PixelRegion) -> ImageView {
        let PixelRegion { left, top, width, height } = region;
        ImageView { left: left.into(), top: top.into(), width: width.into(), height: height.into() }
    }
}
