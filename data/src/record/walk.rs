//! Walking over stored bytes: how far a record reaches, and where the next one begins behind damage.

use std::io;

use super::frame::{self, ALIGN, Fault, FrameHeader, HEADER, MAX_PAYLOAD};
use crate::error::Cause;

/// Bytes that can be looked at by their position in a file.
pub(super) trait RecordBytes {
    /// Bytes from position `at` on: `want` or more, unless the source ends before.
    fn bytes(&mut self, at: u64, want: usize) -> io::Result<&[u8]>;

    /// Where the source ends, or `u64::MAX` while this is unknown.
    fn end(&self) -> u64;

    /// Bytes before `at` are not needed any more.
    fn release(&mut self, _at: u64) {}
}

impl RecordBytes for &[u8] {
    fn bytes(&mut self, at: u64, _want: usize) -> io::Result<&[u8]> {
        Ok(usize::try_from(at).ok().and_then(|at| self.get(at..)).unwrap_or_default())
    }

    fn end(&self) -> u64 {
        self.len() as u64
    }
}

/// Why a record does not end properly.
#[derive(Debug, derive_more::From)]
pub(super) enum RecordEnd {
    #[from]
    Io(io::Error),
    /// What is wrong, and from where on a head of a record may follow. All magic numbers before `resume` have been
    /// looked at.
    Fault { fault: Fault, resume: u64 },
}

impl From<RecordEnd> for Cause {
    fn from(stop: RecordEnd) -> Cause {
        match stop {
            RecordEnd::Io(error) => error.into(),
            RecordEnd::Fault { fault, .. } => fault.into(),
        }
    }
}

/// Which bodies of parts are searched for heads of other parts, which only a wrong length can put there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    /// Short ones, which cost little, and those longer than `longest`, the longest record found so far: a length that
    /// is wrong mostly stands out.
    Headers { longest: u64 },
    /// All; a source of unknown end needs this.
    Bodies,
}

/// Bytes of the longest body that counts as short.
pub(super) const MAX_SHORT_BODY: u64 = 1 << 12;

impl Depth {
    fn jumps_over(self, length: u64) -> bool {
        matches!(self, Depth::Headers { longest } if length > MAX_SHORT_BODY && length <= longest)
    }
}

/// What a search for a magic number meets first.
enum MagicSearch {
    Magic(u64),
    /// Nothing up to the end of the range.
    Nothing,
    /// The end of the source.
    End(u64),
}

/// Searches the words from `at` to `end`, whose distance is a multiple of four.
fn search(source: &mut impl RecordBytes, mut at: u64, end: u64) -> io::Result<MagicSearch> {
    while at < end {
        let bytes = source.bytes(at, ALIGN as usize)?;
        let bytes = &bytes[..bytes.len().min((end - at) as usize)];
        if let Some(found) = frame::find_magic(bytes) {
            return Ok(MagicSearch::Magic(at + found as u64));
        }
        if bytes.len() < ALIGN as usize {
            return Ok(MagicSearch::End(at + bytes.len() as u64));
        }
        at += bytes.len() as u64 & !(ALIGN - 1);
    }
    Ok(MagicSearch::Nothing)
}

/// Size of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordExtent {
    /// Bytes of all parts with their headers and padding.
    pub(super) stored: u64,
    pub(super) parts: u64,
}

/// Measures the record that begins at `head`.
pub(super) fn extent(source: &mut impl RecordBytes, head: u64, depth: Depth) -> Result<RecordExtent, RecordEnd> {
    let (mut at, mut payload, mut parts) = (head, 0, 0);
    loop {
        let stop = |fault, resume| RecordEnd::Fault { fault, resume };
        // A truncated header leaves nothing to search.
        let header = FrameHeader::parse(source.bytes(at, HEADER)?).map_err(|fault| stop(fault, at + ALIGN))?;
        if header.part.begins() != (parts == 0) {
            let resume = if parts == 0 { at + ALIGN } else { at };
            return Err(stop(Fault::Order(header.part), resume));
        }
        if !header.part.ends() && u64::from(header.length) != header.padded() {
            return Err(stop(Fault::Uneven(header.length), at + ALIGN));
        }
        payload += u64::from(header.length) + if parts == 0 { 0 } else { ALIGN };
        if payload > MAX_PAYLOAD as u64 {
            return Err(stop(Fault::Length, at + ALIGN));
        }
        let body = at + HEADER as u64;
        let end = body + header.padded();
        if depth.jumps_over(header.padded()) {
            if end > source.end() {
                return Err(stop(Fault::NoBody, body));
            }
        } else {
            match search(source, body, end)? {
                MagicSearch::Magic(inside) => return Err(stop(Fault::Inside, inside)),
                MagicSearch::End(end) => return Err(stop(Fault::NoBody, end.next_multiple_of(ALIGN))),
                MagicSearch::Nothing => {}
            }
        }
        parts += 1;
        at = end;
        if header.part.ends() {
            return Ok(RecordExtent { stored: at - head, parts });
        }
    }
}

/// The first head of a record at `at` or behind it, or the end of the source. Heads of records that would reach beyond
/// the end are passed over.
pub(super) fn next_head(source: &mut impl RecordBytes, at: u64) -> io::Result<u64> {
    // A source that keeps what is not released grows by no more than this.
    const STEP: u64 = 1 << 16;
    let mut at = at.next_multiple_of(ALIGN);
    loop {
        source.release(at);
        match search(source, at, at + STEP)? {
            MagicSearch::Nothing => at += STEP,
            MagicSearch::End(_) => return Ok(source.end()),
            MagicSearch::Magic(found) => {
                let header = FrameHeader::parse(source.bytes(found, HEADER)?);
                let fits = |h: FrameHeader| found + HEADER as u64 + h.padded() <= source.end();
                if header.is_ok_and(|h| h.part.begins() && fits(h)) {
                    return Ok(found);
                }
                at = found + ALIGN;
            }
        }
    }
}

/// Reads the record at the start of `bytes`; its payload replaces what `payload` holds. The result is the number of
/// bytes that the record takes.
///
/// # Errors
/// No whole record begins there.
pub fn decode(mut bytes: &[u8], payload: &mut Vec<u8>) -> Result<usize, Cause> {
    let stored = extent(&mut bytes, 0, Depth::Bodies)?.stored as usize;
    payload.clear();
    payload.try_reserve(stored).map_err(io::Error::from)?;
    payload.extend_from_slice(&bytes[..stored]);
    let length = frame::join(payload)?;
    payload.truncate(length);
    Ok(stored)
}

/// Replaces a stored record, which takes all of `bytes`, by its payload.
pub(super) fn decode_in_place(bytes: &mut Vec<u8>) -> Result<(), Cause> {
    extent(&mut bytes.as_slice(), 0, Depth::Bodies)?;
    let length = frame::join(bytes)?;
    bytes.truncate(length);
    Ok(())
}
