//! Images: decoding, encoding, resizing, augmentation and normalisation.

mod area;
pub(crate) mod augment;
mod decode;
mod encode;
pub mod jpeg;
mod normalise;
mod resize;
mod view;

use crate::error::Cause;

pub use augment::{AugmentOptions, AugmentPlan, Augmenter, Workspace};
pub use decode::{Channels, Decoder, Info, Reduced, dimensions};
pub use encode::{ImageFormat, encode};
pub use normalise::{AxisOrder, NormaliseOptions, Normaliser};
pub use resize::{Inter, Resizer, shorter_edge};
pub use view::ImageView;

/// Bytes of pixels that a decoder allows if it is not told otherwise.
pub(crate) const PIXEL_BYTES: u64 = 1 << 28;

/// A rectangle of whole pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PixelRegion {
    /// The first column.
    pub left: u32,
    /// The first row.
    pub top: u32,
    /// The width in pixels.
    pub width: u32,
    /// The height in pixels.
    pub height: u32,
}

impl PixelRegion {
    /// All of an image.
    pub fn all(width: u32, height: u32) -> PixelRegion {
        PixelRegion { left: 0, top: 0, width, height }
    }

    /// Whether it has a pixel, and lies inside of an image.
    pub fn fits(&self, width: u32, height: u32) -> bool {
        let inside =
            |start: u32, extent: u32, limit: u32| extent > 0 && u64::from(start) + u64::from(extent) <= limit.into();
        inside(self.left, self.width, width) && inside(self.top, self.height, height)
    }
}

/// An image of bytes: height × width × channels, row-major. 1 channel is grey, 3 are RGB, 4 are RGBA.
///
/// Functions that write an image keep its memory, so that one that is used again allocates nothing once it is large
/// enough.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    width: u32,
    height: u32,
    channels: u8,
    pixels: Vec<u8>,
}

impl Image {
    /// An image without pixels.
    pub fn new() -> Image {
        Image::default()
    }

    /// # Errors
    /// There is not one byte per channel of a pixel, or another number of channels than 1, 3 or 4.
    pub fn from_pixels(width: u32, height: u32, channels: u8, pixels: Vec<u8>) -> Result<Image, Cause> {
        let bytes = byte_count(width, height, channels)?;
        if pixels.len() != bytes {
            return Err(Cause::Shape { expected: format!("{bytes} bytes"), found: format!("{}", pixels.len()) });
        }
        Ok(Image { width, height, channels, pixels })
    }

    /// The width in pixels.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// The height in pixels.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// Channels of a pixel: 1, 3 or 4.
    pub fn channels(&self) -> u8 {
        self.channels
    }

    /// The pixels, row-major with channels innermost.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    pub(crate) fn pixels_mut(&mut self) -> &mut [u8] {
        &mut self.pixels
    }

    /// Bytes of a row.
    pub fn stride(&self) -> usize {
        self.width as usize * usize::from(self.channels)
    }

    /// Makes it an image of another size, whose pixels are anything.
    ///
    /// # Errors
    /// The memory cannot be had, or the number of channels is not 1, 3 or 4.
    pub fn reshape(&mut self, width: u32, height: u32, channels: u8) -> Result<(), Cause> {
        let bytes = byte_count(width, height, channels)?;
        resize_buffer(&mut self.pixels, bytes)?;
        (self.width, self.height, self.channels) = (width, height, channels);
        Ok(())
    }

    /// Makes it a copy of a part of another image.
    ///
    /// # Errors
    /// The region does not lie inside of the image, or the memory cannot be had.
    pub fn copy_region(&mut self, from: &Image, region: PixelRegion) -> Result<(), Cause> {
        check_region(region, from.width, from.height)?;
        self.reshape(region.width, region.height, from.channels)?;
        let (stride, left) = (from.stride(), region.left as usize * usize::from(from.channels));
        let rows = from.pixels.chunks_exact(stride).skip(region.top as usize);
        for (to, row) in self.pixels.chunks_exact_mut(region.width as usize * usize::from(from.channels)).zip(rows) {
            let bytes = to.len();
            to.copy_from_slice(&row[left..left + bytes]);
        }
        Ok(())
    }

    /// Leaves only a part of the image.
    ///
    /// # Errors
    /// The region does not lie inside of the image.
    pub fn crop(&mut self, region: PixelRegion) -> Result<(), Cause> {
        check_region(region, self.width, self.height)?;
        let (stride, channels) = (self.stride(), usize::from(self.channels));
        let bytes = region.width as usize * channels;
        for row in 0..region.height as usize {
            let start = (row + region.top as usize) * stride + region.left as usize * channels;
            self.pixels.copy_within(start..start + bytes, row * bytes);
        }
        self.pixels.truncate(bytes * region.height as usize);
        (self.width, self.height) = (region.width, region.height);
        Ok(())
    }
}

fn check_region(region: PixelRegion, width: u32, height: u32) -> Result<(), Cause> {
    if region.fits(width, height) {
        return Ok(());
    }
    let PixelRegion { left, top, width: w, height: h } = region;
    let found = format!("{w}×{h} pixels at ({left}, {top})");
    Err(Cause::Shape { expected: format!("a region of {width}×{height} pixels"), found })
}

fn byte_count(width: u32, height: u32, channels: u8) -> Result<usize, Cause> {
    if ![1, 3, 4].contains(&channels) {
        return Err(Cause::Shape { expected: "1, 3 or 4 channels".into(), found: format!("{channels}") });
    }
    let bytes = u64::from(width).checked_mul(u64::from(height)).and_then(|n| n.checked_mul(channels.into()));
    let bytes = bytes.and_then(|n| usize::try_from(n).ok());
    bytes.ok_or_else(|| Cause::Image(format!("{width}×{height} pixels do not fit into memory")))
}

/// Gives a buffer a size that a file decides. What it grows by is zero.
fn resize_buffer(buffer: &mut Vec<u8>, bytes: usize) -> Result<(), Cause> {
    let missing = bytes.saturating_sub(buffer.len());
    buffer.try_reserve_exact(missing).map_err(|_| Cause::Image(format!("no memory for {bytes} bytes of pixels")))?;
    buffer.resize(bytes, 0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(width: u32, height: u32, channels: u8) -> Image {
        let bytes = width * height * u32::from(channels);
        Image::from_pixels(width, height, channels, (0..bytes).map(|i| i as u8).collect()).unwrap()
    }

    #[test]
    fn crop_and_copy_take_the_same_part() {
        let image = counted(5, 4, 3);
        let region = PixelRegion { left: 1, top: 2, width: 3, height: 2 };
        let mut copy = Image::new();
        copy.copy_region(&image, region).unwrap();
        let mut cropped = image.clone();
        cropped.crop(region).unwrap();
        assert_eq!(copy, cropped);
        let expected: Vec<u8> = (33..42).chain(48..57).collect();
        assert_eq!(copy.pixels(), expected);
    }

    #[test]
    fn a_region_outside_is_refused() {
        let mut image = counted(5, 4, 1);
        for (left, top, width, height) in [(5, 0, 1, 1), (0, 0, 0, 1), (1, 0, 5, 1), (0, u32::MAX, 1, 2)] {
            assert!(image.crop(PixelRegion { left, top, width, height }).is_err());
        }
        assert!(Image::from_pixels(2, 2, 2, vec![0; 8]).is_err());
        assert!(Image::from_pixels(2, 2, 3, vec![0; 8]).is_err());
        assert!(Image::new().reshape(u32::MAX, u32::MAX, 4).is_err());
    }
}
