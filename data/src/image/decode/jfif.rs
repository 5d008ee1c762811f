//! JPEG files.

use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;

use super::{Channels, Info, convert, resize_buffer, too_large};
use crate::error::Cause;
use crate::image::Image;

/// Scans of a progressive image that are decoded; each costs a pass over the whole image.
const SCANS: usize = 100;

/// Decodes a file whose header was checked.
pub(super) fn decode(
    bytes: &[u8],
    info: Info,
    channels: Channels,
    limit: u64,
    wide: &mut Vec<u8>,
    image: &mut Image,
) -> Result<(), Cause> {
    let options = DecoderOptions::default()
        .set_strict_mode(true)
        .set_max_width(info.width as usize)
        .set_max_height(info.height as usize)
        .jpeg_set_max_scans(SCANS)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(cause)?;
    let found = decoder.info().map(|found| (u32::from(found.width), u32::from(found.height)));
    if found != Some((info.width, info.height)) {
        return Err(Cause::Image("JPEG: more than one frame header".into()));
    }
    let space = decoder.input_colorspace();
    let grey = channels == Channels::Grey || channels == Channels::Unchanged && space == Some(ColorSpace::Luma);
    let to = if grey { 1 } else { 3 };
    // Luma can be had alone where it is stored.
    let plane = grey && matches!(space, Some(ColorSpace::Luma | ColorSpace::YCbCr));
    let from = if plane { 1 } else { 3 };
    if plane {
        decoder.set_options(options.jpeg_set_out_colorspace(ColorSpace::Luma));
    }
    let bytes = u64::from(info.width) * u64::from(info.height) * u64::from(from);
    if bytes > limit {
        return Err(too_large(info, limit));
    }
    image.reshape(info.width, info.height, to)?;
    if from == to {
        return decoder.decode_into(image.pixels_mut()).map_err(cause);
    }
    resize_buffer(wide, bytes as usize)?;
    decoder.decode_into(wide).map_err(cause)?;
    convert(wide, from, image);
    Ok(())
}

fn cause(error: DecodeErrors) -> Cause {
    Cause::Image(format!("JPEG: {error:?}"))
}
