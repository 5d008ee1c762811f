//! The seal at the end of libraries and programs: damage is found before any of their code runs.
//!
//! A seal is [`BYTES`] long: magic and version, the length of what it closes, and its XXH3 hash of 128 bits, all
//! little-endian. Loaders of ELF files take no notice of it.

use xxhash_rust::xxh3::xxh3_128;

/// Length of a seal.
pub const BYTES: usize = 32;
const MAGIC: [u8; 8] = *b"tcseal\0\x01";

/// Appends a seal.
pub fn close(bytes: &mut Vec<u8>) {
    let (len, hash) = (bytes.len() as u64, xxh3_128(bytes));
    bytes.extend(MAGIC);
    bytes.extend(len.to_le_bytes());
    bytes.extend(hash.to_le_bytes());
}

/// What a seal closes, if it is unbroken.
pub fn open(bytes: &[u8]) -> Option<&[u8]> {
    let (content, seal) = bytes.split_at_checked(bytes.len().checked_sub(BYTES)?)?;
    let (magic, rest) = seal.split_at(8);
    let (len, hash) = rest.split_at(8);
    let whole = magic == MAGIC && len == (content.len() as u64).to_le_bytes();
    (whole && hash == xxh3_128(content).to_le_bytes()).then_some(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_breaks_the_seal() {
        let mut sealed = b"content".to_vec();
        close(&mut sealed);
        assert_eq!(open(&sealed), Some(&b"content"[..]));
        for bit in 0..sealed.len() * 8 {
            let mut damaged = sealed.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(open(&damaged), None, "bit {bit}");
        }
        for len in 0..sealed.len() {
            assert_eq!(open(&sealed[..len]), None, "cut to {len}");
        }
    }
}
