//! The bytes of a record: how a payload is cut into parts, their headers, and how parts are joined again.

use std::io::Write;

use crate::error::Cause;

/// The word that every part of a record begins with, stored with its low byte first.
pub const MAGIC: u32 = 0xCED7_230A;

/// Bytes of the longest payload: a length has 29 bits.
pub const MAX_PAYLOAD: usize = (1 << 29) - 1;

/// Bytes of a part's header.
pub(super) const HEADER: usize = 8;

/// Parts begin at multiples of this many bytes.
pub(super) const ALIGN: u64 = 4;

const MAGIC_BYTES: [u8; 4] = MAGIC.to_le_bytes();
const LENGTH_BITS: u32 = 29;

/// Which part of its record a part is; the numbers are those of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartKind {
    Whole = 0,
    First = 1,
    Middle = 2,
    Last = 3,
}

impl PartKind {
    /// Whether a record begins with the part.
    pub(super) fn begins(self) -> bool {
        matches!(self, PartKind::Whole | PartKind::First)
    }

    /// Whether a record ends with the part.
    pub(super) fn ends(self) -> bool {
        matches!(self, PartKind::Whole | PartKind::Last)
    }
}

/// What is wrong with the bytes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Another word where a part should begin.
    Magic(u32),
    /// A kind of part that the format does not have.
    Kind(u32),
    /// A record begins with a part that continues one, or the other way round.
    Order(PartKind),
    /// A part begins inside of another one, whose length is therefore wrong.
    Inside,
    /// A part of this many bytes, no multiple of four, which is not the last one.
    Uneven(u32),
    /// The parts together are longer than a record can be.
    Length,
    /// The file ends inside of a header.
    NoHeader,
    /// The file ends inside of a part.
    NoBody,
}

impl From<Fault> for Cause {
    fn from(fault: Fault) -> Cause {
        match fault {
            Fault::Magic(word) => {
                Cause::Format(format!("{word:#010x} where the magic number {MAGIC:#010x} is expected"))
            }
            Fault::Kind(kind) => Cause::Format(format!("a part of kind {kind}; there are 0 to 3")),
            Fault::Order(PartKind::Whole | PartKind::First) => {
                Cause::Format("the last part of a record is missing".into())
            }
            Fault::Order(part) => Cause::Format(format!("a part of kind {} where a record should begin", part as u32)),
            Fault::Inside => Cause::Format("another part begins before the end that a header tells".into()),
            Fault::Uneven(length) => {
                Cause::Format(format!("a part of {length} bytes, no multiple of 4, before another"))
            }
            Fault::Length => Cause::Format(format!("a record longer than {MAX_PAYLOAD} bytes")),
            Fault::NoHeader => Cause::Truncated { what: "a record's header" },
            Fault::NoBody => Cause::Truncated { what: "a record" },
        }
    }
}

/// Kind and length of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub(super) part: PartKind,
    pub(super) length: u32,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map(|&bytes| u32::from_le_bytes(bytes))
}

impl FrameHeader {
    pub(super) fn parse(bytes: &[u8]) -> Result<FrameHeader, Fault> {
        let magic = word(bytes, 0).ok_or(Fault::NoHeader)?;
        if magic != MAGIC {
            return Err(Fault::Magic(magic));
        }
        let record = word(bytes, 4).ok_or(Fault::NoHeader)?;
        let part = match record >> LENGTH_BITS {
            0 => PartKind::Whole,
            1 => PartKind::First,
            2 => PartKind::Middle,
            3 => PartKind::Last,
            kind => return Err(Fault::Kind(kind)),
        };
        Ok(FrameHeader { part, length: record & ((1 << LENGTH_BITS) - 1) })
    }

    fn bytes(part: PartKind, length: usize) -> [u8; HEADER] {
        let record = (part as u32) << LENGTH_BITS | length as u32;
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&MAGIC_BYTES);
        bytes[4..].copy_from_slice(&record.to_le_bytes());
        bytes
    }

    /// Bytes that follow the header: the part and what pads it.
    pub(super) fn padded(self) -> u64 {
        u64::from(self.length).next_multiple_of(ALIGN)
    }
}

/// Offset of the first magic number among the words of `bytes`.
pub(super) fn find_magic(bytes: &[u8]) -> Option<usize> {
    let (words, _) = bytes.as_chunks::<4>();
    let (blocks, _) = words.as_chunks::<16>();
    // Without an early exit inside of a block, the comparison becomes vector instructions.
    let free = |block: &&[[u8; 4]; 16]| !block.iter().fold(false, |found, word| found | (*word == MAGIC_BYTES));
    let skipped = blocks.iter().take_while(free).count() * 16;
    let at = words[skipped..].iter().position(|word| *word == MAGIC_BYTES)?;
    Some((skipped + at) * 4)
}

/// The parts of a payload.
struct PayloadParts<'p> {
    rest: Option<&'p [u8]>,
    first: bool,
}

impl<'p> Iterator for PayloadParts<'p> {
    type Item = (PartKind, &'p [u8]);

    fn next(&mut self) -> Option<(PartKind, &'p [u8])> {
        let rest = self.rest.take()?;
        let first = std::mem::replace(&mut self.first, false);
        let Some(at) = find_magic(rest) else {
            return Some((if first { PartKind::Whole } else { PartKind::Last }, rest));
        };
        self.rest = Some(&rest[at + MAGIC_BYTES.len()..]);
        Some((if first { PartKind::First } else { PartKind::Middle }, &rest[..at]))
    }
}

/// Writes a payload as a record. The result is the number of bytes written, a multiple of four.
///
/// # Errors
/// The payload is longer than [`MAX_PAYLOAD`], or writing fails.
pub fn encode(payload: &[u8], out: &mut impl Write) -> Result<u64, Cause> {
    if payload.len() > MAX_PAYLOAD {
        let why = format!("a payload of {} bytes; a record holds at most {MAX_PAYLOAD}", payload.len());
        return Err(Cause::Format(why));
    }
    let mut written = 0;
    for (part, body) in (PayloadParts { rest: Some(payload), first: true }) {
        let padding = body.len().next_multiple_of(ALIGN as usize) - body.len();
        out.write_all(&FrameHeader::bytes(part, body.len()))?;
        out.write_all(body)?;
        out.write_all(&[0; ALIGN as usize][..padding])?;
        written += (HEADER + body.len() + padding) as u64;
    }
    Ok(written)
}

/// Joins the parts of a record, which must be whole and in order, and moves its payload to the front of `bytes`. The
/// result is the payload's length.
pub(super) fn join(bytes: &mut [u8]) -> Result<usize, Fault> {
    let (mut from, mut to) = (0, 0);
    loop {
        let header = FrameHeader::parse(bytes.get(from..).ok_or(Fault::NoHeader)?)?;
        if !header.part.begins() {
            bytes[to..to + 4].copy_from_slice(&MAGIC_BYTES);
            to += 4;
        }
        let body = from + HEADER..from + HEADER + header.length as usize;
        if body.end > bytes.len() {
            return Err(Fault::NoBody);
        }
        from = body.start + header.padded() as usize;
        to += body.len();
        bytes.copy_within(body.clone(), to - body.len());
        if header.part.ends() {
            return Ok(to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_magic_is_found_at_every_aligned_place_and_at_no_other() {
        for length in 0..300 {
            for at in 0..length.max(4) - 3 {
                let mut bytes = vec![0x0a; length];
                if length >= 4 {
                    bytes[at..at + 4].copy_from_slice(&MAGIC_BYTES);
                }
                let expected = (length >= 4 && at % 4 == 0).then_some(at);
                assert_eq!(find_magic(&bytes), expected, "length {length}, magic at {at}");
            }
        }
    }

    #[test]
    fn a_payload_has_at_most_29_bits_of_length() {
        let payload = vec![0; MAX_PAYLOAD + 1];
        assert!(matches!(encode(&payload, &mut std::io::sink()), Err(Cause::Format(why)) if why.contains("536870912")));
        assert_eq!(encode(&payload[1..], &mut std::io::sink()).unwrap(), 8 + (1 << 29));
    }
}
