//! Encoding of images as JPEG and PNG files.

use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use png::{BitDepth, DeflateCompression, Filter};

use super::Image;
use crate::error::Cause;

/// How an image is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageFormat {
    /// Baseline, with chroma at half resolution. Alpha is dropped.
    Jpeg {
        /// From 1 to 100, as the Independent JPEG Group scales its tables.
        quality: u8,
    },
    /// PNG, which is lossless.
    Png {
        /// From 0, nothing is compressed, to 9, the smallest file.
        compression: u8,
    },
}

/// Appends the file of an image.
///
/// # Errors
/// The quality or compression is out of range, or the image is empty or has more pixels along an axis than the format
/// can say.
pub fn encode(image: &Image, format: ImageFormat, bytes: &mut Vec<u8>) -> Result<(), Cause> {
    if image.width() == 0 || image.height() == 0 {
        return Err(Cause::Image("an image without pixels has no file".into()));
    }
    match format {
        ImageFormat::Jpeg { quality } => encode_jpeg(image, quality, bytes),
        ImageFormat::Png { compression } => encode_png(image, compression, bytes),
    }
}

fn encode_jpeg(image: &Image, quality: u8, bytes: &mut Vec<u8>) -> Result<(), Cause> {
    if !(1..=100).contains(&quality) {
        return Err(Cause::Image(format!("JPEG: a quality of {quality} is not in 1..=100")));
    }
    let extent = |n: u32| u16::try_from(n).map_err(|_| Cause::Image(format!("JPEG: {n} pixels along an axis")));
    let (width, height) = (extent(image.width())?, extent(image.height())?);
    let color = match image.channels() {
        1 => ColorType::Luma,
        3 => ColorType::Rgb,
        _ => ColorType::Rgba,
    };
    let mut encoder = Encoder::new(bytes, quality);
    encoder.set_sampling_factor(SamplingFactor::F_2_2);
    encoder.encode(image.pixels(), width, height, color).map_err(|error| Cause::Image(format!("JPEG: {error}")))
}

fn encode_png(image: &Image, compression: u8, bytes: &mut Vec<u8>) -> Result<(), Cause> {
    let cause = |error: png::EncodingError| Cause::Image(format!("PNG: {error}"));
    let mut encoder = png::Encoder::new(bytes, image.width(), image.height());
    encoder.set_color(match image.channels() {
        1 => png::ColorType::Grayscale,
        3 => png::ColorType::Rgb,
        _ => png::ColorType::Rgba,
    });
    encoder.set_depth(BitDepth::Eight);
    encoder.set_filter(Filter::Adaptive);
    encoder.set_deflate_compression(match compression {
        0 => DeflateCompression::NoCompression,
        1..=9 => DeflateCompression::Level(compression),
        _ => return Err(Cause::Image(format!("PNG: a compression of {compression} is not in 0..=9"))),
    });
    let mut writer = encoder.write_header().map_err(cause)?;
    writer.write_image_data(image.pixels()).map_err(cause)?;
    writer.finish().map_err(cause)
}
