//! Which format a file has, and what its header says: size, and whether its data can be all there.

use crate::error::Cause;

const PNG: [u8; 8] = *b"\x89PNG\r\n\x1a\n";

/// The header of an image file.
pub(super) enum ImageHeader {
    Jpeg(JpegHeader),
    Png(Info),
}

impl ImageHeader {
    /// Identifies the format by the first bytes and parses the header.
    pub fn parse(bytes: &[u8]) -> Result<ImageHeader, Cause> {
        if bytes.starts_with(&[0xff, 0xd8, 0xff]) {
            return JpegHeader::parse(bytes).map(ImageHeader::Jpeg);
        }
        if bytes.starts_with(&PNG) {
            return png_info(bytes).map(ImageHeader::Png);
        }
        if bytes.is_empty() {
            return Err(Cause::Image("no bytes".into()));
        }
        let first: Vec<String> = bytes.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Err(Cause::Image(format!("neither JPEG nor PNG: the first bytes are {}", first.join(" "))))
    }

    /// The size of the image, which is not empty.
    pub fn info(&self) -> Result<Info, Cause> {
        let info = match self {
            ImageHeader::Jpeg(header) => header.info,
            ImageHeader::Png(info) => *info,
        };
        match info.width == 0 || info.height == 0 {
            true => Err(Cause::Image(format!("{}×{} pixels", info.width, info.height))),
            false => Ok(info),
        }
    }
}

/// The size of an image, from its header alone.
///
/// # Errors
/// The bytes are no JPEG or PNG file, or have no header that gives a size.
pub fn dimensions(bytes: &[u8]) -> Result<Info, Cause> {
    ImageHeader::parse(bytes)?.info()
}

fn png_info(bytes: &[u8]) -> Result<Info, Cause> {
    let header = bytes.get(8..24).ok_or(Cause::Truncated { what: "a header of PNG" })?;
    if &header[4..8] != b"IHDR" {
        return Err(Cause::Image("PNG does not begin with its header".into()));
    }
    let number = |at: usize| header[at..at + 4].iter().fold(0, |n, byte| n << 8 | u32::from(*byte));
    Ok(Info { width: number(8), height: number(12) })
}

/// What stands before the first scan of a JPEG file.
pub(super) struct JpegHeader {
    pub info: Info,
    /// Number of colour components.
    pub components: u8,
    /// Where coded data begins, if the file goes on so far.
    scan: Option<usize>,
}

impl JpegHeader {
    /// Walks over marker segments up to the first scan.
    pub fn parse(bytes: &[u8]) -> Result<JpegHeader, Cause> {
        let mut frame = None;
        let mut at = 2;
        while let Some((marker, body)) = segment(bytes, at) {
            let Some(payload) = bytes.get(body.clone()) else { break };
            match marker {
                // Frames of any process, without those markers in between that have another meaning.
                0xc0..=0xcf if ![0xc4, 0xc8, 0xcc].contains(&marker) && frame.is_none() => {
                    frame = Some(parse_frame(payload)?);
                }
                0xda => {
                    let frame = frame.ok_or_else(|| Cause::Image("JPEG: a scan without a frame".into()))?;
                    return Ok(JpegHeader { scan: Some(body.end), ..frame });
                }
                0xd9 => break,
                _ => {}
            }
            at = body.end;
        }
        frame.ok_or(Cause::Truncated { what: "a header of JPEG" })
    }

    /// Refuses files whose data cannot be all there.
    ///
    /// A block of 64 samples takes a bit at least, and components of the greatest resolution hold half of the area at
    /// least. So the memory that a header demands is bounded by the length of the file.
    pub fn check_complete(&self, bytes: &[u8]) -> Result<(), Cause> {
        let truncated = Cause::Truncated { what: "the data of a JPEG image" };
        let Some(data) = self.scan.and_then(|scan| bytes.get(scan..)) else { return Err(truncated) };
        let possible = (data.len() as u64).saturating_mul(8 * 128);
        let ended = data.windows(2).rev().any(|pair| pair == [0xff, 0xd9]);
        if u64::from(self.info.width) * u64::from(self.info.height) > possible || !ended {
            return Err(truncated);
        }
        Ok(())
    }
}

/// The marker at or behind an offset, and where the contents of its segment lie, the length field left out.
fn segment(bytes: &[u8], at: usize) -> Option<(u8, std::ops::Range<usize>)> {
    // Decoders pass over bytes between segments.
    let mut at = at + bytes.get(at..)?.iter().position(|byte| *byte == 0xff)?;
    let marker = loop {
        at += 1;
        match *bytes.get(at)? {
            0xff => {}
            0x00 => at += bytes.get(at..)?.iter().position(|byte| *byte == 0xff)?,
            marker => break marker,
        }
    };
    at += 1;
    // Markers that stand alone.
    if matches!(marker, 0x01 | 0xd0..=0xd9) {
        return Some((marker, at..at));
    }
    let length = usize::from(*bytes.get(at)?) << 8 | usize::from(*bytes.get(at + 1)?);
    Some((marker, at + 2..at + length.max(2)))
}

/// A frame header (SOF), without the position of a scan.
fn parse_frame(payload: &[u8]) -> Result<JpegHeader, Cause> {
    let [_, h1, h0, w1, w0, rest @ ..] = payload else {
        return Err(Cause::Image("JPEG: a frame header is too short".into()));
    };
    let number = |high: &u8, low: &u8| u32::from(*high) << 8 | u32::from(*low);
    let info = Info { width: number(w1, w0), height: number(h1, h0) };
    Ok(JpegHeader { info, components: rest.first().copied().unwrap_or(0), scan: None })
}

/// What the header of a file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// The width in pixels.
    pub width: u32,
    /// The height in pixels.
    pub height: u32,
}
