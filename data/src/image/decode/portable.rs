//! PNG files.

use std::io::Cursor;

use png::{ColorType, DecodingError, Limits, Transformations};

use super::{Channels, Info, convert, resize_buffer, too_large};
use crate::error::Cause;
use crate::image::Image;

/// Memory for what is no pixel: palettes, text, profiles.
const ANCILLARY: usize = 1 << 22;

/// How many bytes a byte of deflated data gives at most.
const MAX_DEFLATE_RATIO: u64 = 1032;

pub(super) fn decode(
    bytes: &[u8],
    info: Info,
    channels: Channels,
    limit: u64,
    wide: &mut Vec<u8>,
    image: &mut Image,
) -> Result<(), Cause> {
    // A pixel has a bit at least.
    let possible = (bytes.len() as u64).saturating_mul(MAX_DEFLATE_RATIO * 8);
    if u64::from(info.width) * u64::from(info.height) > possible {
        return Err(Cause::Truncated { what: "the data of a PNG image" });
    }
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), Limits { bytes: ANCILLARY });
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let mut reader = decoder.read_info().map_err(cause)?;
    let from = match reader.output_color_type().0 {
        ColorType::Grayscale => 1,
        ColorType::GrayscaleAlpha => 2,
        ColorType::Rgb | ColorType::Indexed => 3,
        ColorType::Rgba => 4,
    };
    let to = match channels {
        Channels::Unchanged if from == 2 => 4,
        Channels::Unchanged => from,
        Channels::Grey => 1,
        Channels::Rgb => 3,
    };
    let size = reader.output_buffer_size().ok_or_else(|| too_large(info, limit))?;
    let pixels = u64::from(info.width) * u64::from(info.height);
    if size as u64 > limit || pixels * u64::from(to) > limit {
        return Err(too_large(info, limit));
    }
    image.reshape(info.width, info.height, to)?;
    let buffer = if from == to {
        image.pixels_mut()
    } else {
        resize_buffer(wide, size)?;
        wide.as_mut_slice()
    };
    if buffer.len() != size {
        return Err(Cause::Image("PNG: the first frame has another size than the image".into()));
    }
    reader.next_frame(buffer).map_err(cause)?;
    if from != to {
        convert(wide, from, image);
    }
    Ok(())
}

fn cause(error: DecodingError) -> Cause {
    match error {
        DecodingError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            Cause::Truncated { what: "the data of a PNG image" }
        }
        error => Cause::Image(format!("PNG: {error}")),
    }
}
