//! Decoding of JPEG and PNG files into bytes.

mod headers;
mod jfif;
mod portable;

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::jpeg::{JpegError, RegionDecoder, Scale};
use super::{Image, PIXEL_BYTES, PixelRegion, check_region, resize_buffer};
use crate::error::Cause;
use headers::ImageHeader;
pub use headers::{Info, dimensions};

/// Which channels a decoded image has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channels {
    /// What the file holds: grey, RGB or RGBA. Grey with alpha becomes RGBA; CMYK and YCCK become RGB.
    Unchanged,
    /// Luma as of ITU-R BT.601: 0.299 R + 0.587 G + 0.114 B. Alpha is dropped.
    Grey,
    /// Alpha is dropped: colours are not blended with a background.
    Rgb,
}

/// Decodes images, with memory that is used again.
///
/// JPEG: baseline and progressive with Huffman coding and 8 bits; grey, YCbCr, RGB, CMYK and YCCK, where values of the
/// latter two are inverted, as all known programs write them. PNG: all colour types and depths, of 16 bits the upper
/// 8; of animations the first frame. Orientation tags and colour profiles are not applied.
#[derive(Debug)]
pub struct Decoder {
    limit: u64,
    /// For JPEG files of the usual kinds.
    regions: RegionDecoder,
    /// Pixels with channels that are not asked for.
    wide: Vec<u8>,
}

/// Where a decoded part of an image begins, and what one of its pixels stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduced {
    /// In pixels of the file.
    pub left: u32,
    /// The upper edge, in pixels of the file.
    pub top: u32,
    /// Pixels of the file in width and in height that became one.
    pub divisor: u32,
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder::new()
    }
}

impl Decoder {
    /// A decoder with the default limit of pixels.
    pub fn new() -> Decoder {
        Decoder { limit: PIXEL_BYTES, regions: RegionDecoder::new(PIXEL_BYTES), wide: vec![] }
    }

    /// Images with more bytes of pixels than this are refused before memory is taken; [`PIXEL_BYTES`] at first.
    #[must_use]
    pub fn with_limit(self, bytes: u64) -> Decoder {
        Decoder { limit: bytes, regions: RegionDecoder::new(bytes), ..self }
    }

    /// Bytes of pixels that are allowed.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Decodes a whole image.
    ///
    /// # Errors
    /// The bytes are no JPEG or PNG file, are damaged or end too early, or the image is too large. A JPEG file that
    /// was cut and then closed again by an end marker is not always recognised: it may have a grey part.
    pub fn decode(&mut self, bytes: &[u8], channels: Channels, image: &mut Image) -> Result<(), Cause> {
        let info = dimensions(bytes)?;
        self.decode_reduced(bytes, channels, PixelRegion::all(info.width, info.height), Scale::Full, image).map(drop)
    }

    /// Decodes a part of an image; it equals that part of the whole image.
    ///
    /// # Errors
    /// As [`Decoder::decode`], and where the region does not lie inside of the image. Damage outside of the region may
    /// go unnoticed.
    pub fn decode_region(
        &mut self,
        bytes: &[u8],
        channels: Channels,
        region: PixelRegion,
        image: &mut Image,
    ) -> Result<(), Cause> {
        self.decode_reduced(bytes, channels, region, Scale::Full, image).map(drop)
    }

    /// Decodes a part of an image, reduced if the file is of a kind for which that is faster. The result has all pixels
    /// that the region touches.
    ///
    /// # Errors
    /// As [`Decoder::decode_region`].
    pub(crate) fn decode_reduced(
        &mut self,
        bytes: &[u8],
        channels: Channels,
        region: PixelRegion,
        scale: Scale,
        image: &mut Image,
    ) -> Result<Reduced, Cause> {
        let wanted = DecodeRequest { channels, region, scale };
        // zune-jpeg and png are foreign code with thousands of index operations. None is known to panic, and no input
        // may bring a loading thread down.
        let caught = catch_unwind(AssertUnwindSafe(|| self.decode_unguarded(bytes, wanted, image)));
        caught.unwrap_or_else(|_| {
            *image = Image::new();
            Err(Cause::Image("the decoder met a state that it does not handle".into()))
        })
    }

    fn decode_unguarded(&mut self, bytes: &[u8], wanted: DecodeRequest, image: &mut Image) -> Result<Reduced, Cause> {
        let DecodeRequest { channels, region, .. } = wanted;
        let header = ImageHeader::parse(bytes)?;
        let info = header.info()?;
        check_region(region, info.width, info.height)?;
        // An image has at least one channel.
        if u64::from(info.width) * u64::from(info.height) > self.limit {
            return Err(too_large(info, self.limit));
        }
        match header {
            ImageHeader::Jpeg(header) => {
                header.check_complete(bytes)?;
                if let Some(reduced) = self.decode_usual(bytes, header.components, wanted, image)? {
                    return Ok(reduced);
                }
                jfif::decode(bytes, info, channels, self.limit, &mut self.wide, image)?;
            }
            ImageHeader::Png(_) => portable::decode(bytes, info, channels, self.limit, &mut self.wide, image)?,
        }
        if region != PixelRegion::all(image.width(), image.height()) {
            image.crop(region)?;
        }
        Ok(Reduced { left: region.left, top: region.top, divisor: 1 })
    }

    /// Decodes a JPEG file of a kind that [`RegionDecoder`] supports, if it has the wanted channels; else returns none.
    fn decode_usual(
        &mut self,
        bytes: &[u8],
        components: u8,
        DecodeRequest { channels, region, scale }: DecodeRequest,
        image: &mut Image,
    ) -> Result<Option<Reduced>, Cause> {
        let converts = match channels {
            Channels::Unchanged => false,
            Channels::Grey => components != 1,
            Channels::Rgb => components != 3,
        };
        if converts || u64::from(region.width) * u64::from(region.height) * 3 > self.limit {
            return Ok(None);
        }
        match self.regions.decode(bytes, Some(region), scale, &mut image.pixels) {
            Ok(done) => {
                (image.width, image.height) = (done.width as u32, done.height as u32);
                image.channels = done.channels as u8;
                let (left, top, divisor) = (done.x as u32, done.y as u32, scale.divisor() as u32);
                Ok(Some(Reduced { left, top, divisor }))
            }
            Err(JpegError::Unsupported(_)) => Ok(None),
            Err(error) => Err(Cause::Image(format!("JPEG: {error}"))),
        }
    }
}

/// What of an image is decoded.
#[derive(Clone, Copy)]
struct DecodeRequest {
    channels: Channels,
    region: PixelRegion,
    scale: Scale,
}

fn too_large(info: Info, limit: u64) -> Cause {
    Cause::Image(format!("{}×{} pixels are more than the limit of {limit} bytes", info.width, info.height))
}

/// Luma in units of 1/2¹⁶, rounded.
pub(super) fn luma(r: u8, g: u8, b: u8) -> u8 {
    ((19595 * u32::from(r) + 38470 * u32::from(g) + 7471 * u32::from(b) + (1 << 15)) >> 16) as u8
}

/// Converts interleaved pixels (1 channel: grey, 2: grey with alpha, 3: RGB, 4: RGBA) to the channels of `image`.
fn convert(pixels: &[u8], channels: u8, image: &mut Image) {
    let to_channels = image.channels();
    let to = image.pixels_mut();
    match (channels, to_channels) {
        (2, 1) => each::<2, 1>(pixels, to, |p| [p[0]]),
        (3, 1) => each::<3, 1>(pixels, to, |p| [luma(p[0], p[1], p[2])]),
        (4, 1) => each::<4, 1>(pixels, to, |p| [luma(p[0], p[1], p[2])]),
        (1, 3) => each::<1, 3>(pixels, to, |p| [p[0]; 3]),
        (2, 3) => each::<2, 3>(pixels, to, |p| [p[0]; 3]),
        (4, 3) => each::<4, 3>(pixels, to, |p| [p[0], p[1], p[2]]),
        (2, 4) => each::<2, 4>(pixels, to, |p| [p[0], p[0], p[0], p[1]]),
        _ => to.copy_from_slice(&pixels[..to.len()]),
    }
}

fn each<const FROM: usize, const TO: usize>(from: &[u8], to: &mut [u8], pixel: impl Fn(&[u8; FROM]) -> [u8; TO]) {
    for (to, from) in to.as_chunks_mut::<TO>().0.iter_mut().zip(from.as_chunks::<FROM>().0) {
        *to = pixel(from);
    }
}
