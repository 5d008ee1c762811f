//! Damaged files: bytes changed, removed, inserted, and copied from elsewhere in the file.

use tensorc_ir::Rng;

/// Bytes that mean something in protobuf: ends of varints, and keys of fields.
const BYTES: [u8; 12] = [0, 1, 2, 0x08, 0x0a, 0x12, 0x3a, 0x7f, 0x80, 0xfe, 0xff, 0x4a];

/// The file with one to four places damaged; the same seed is the same damage.
pub fn damaged(file: &[u8], seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut bytes = file.to_vec();
    for _ in 0..=rng.below(4) {
        let at = rng.below(bytes.len() as u64) as usize;
        let len = 1 + rng.below(16) as usize;
        match (rng.below(6), bytes.get_mut(at)) {
            (0, Some(byte)) => *byte ^= 1 << rng.below(8),
            (1, Some(byte)) => *byte = *rng.pick(&BYTES),
            (2, Some(byte)) => *byte = rng.next_u64() as u8,
            (3, _) => drop(bytes.drain(at..(at + len).min(bytes.len()))),
            (4, _) => bytes.insert(at, *rng.pick(&BYTES)),
            _ => {
                let from = rng.below(bytes.len() as u64) as usize;
                let part = bytes[from..(from + len).min(bytes.len())].to_vec();
                bytes.splice(at..at, part);
            }
        }
    }
    bytes
}
