//! Damaged files: valid ones with bytes changed, moved, left out and put in. A number tells which damage it is.

use std::ops::Range;

use tensorc_ir::Rng;

/// Numbers at which readers go wrong: ends of ranges, signs, and sizes that no file has.
const NUMBERS: [u64; 24] = [
    0,
    1,
    2,
    3,
    7,
    16,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x7fff,
    0x8000,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    1 << 40,
    i64::MAX as u64 - 7,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];

/// Words that stand for numbers in text.
const WORDS: [&str; 8] = ["-1", "", "nan", "inf", "1e999", "0x7fffffffffffffff", "99999999999999999999", "null"];

/// Bytes that mean something in the syntax of some format.
const SIGNS: &[u8] = b"0:,.\n\r\t e-\"'\\(){}[]%@#$?=|;/\xff";

/// The most bytes that damage adds at one place.
const MAX_ADDED: usize = 1 << 14;

/// How many damaged files were read, and how many refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DamageCounts {
    /// A reader took them.
    pub read: u64,
    /// A reader refused them.
    pub refused: u64,
}

/// The numbers of the files to be damaged: `usual` of them, or those of `TENSORC_MUTATIONS`, which is how many, or a
/// range such as `500..510`.
fn numbers(usual: u64) -> Range<u64> {
    let Ok(text) = std::env::var("TENSORC_MUTATIONS") else { return 0..usual };
    let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("TENSORC_MUTATIONS={text} is no number"));
    match text.split_once("..") {
        Some((first, end)) => number(first)..number(end),
        None => 0..number(&text),
    }
}

/// Says of which file a panic was.
struct Named<'b>(u64, &'b [u8]);

impl Drop for Named<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("damaged file {}: b\"{}\"", self.0, self.1.escape_ascii());
        }
    }
}

/// Calls `check`, which says whether a reader takes the bytes, with damaged versions of some files: `usual` of them, or as
/// many as `TENSORC_MUTATIONS` says. The same number is the same damage. `seal` makes good every second one, where a format
/// has checksums.
///
/// # Panics
/// There are no files, or as `check` does; standard error shows the bytes then.
pub fn each_damaged(
    files: &[Vec<u8>],
    usual: u64,
    seal: Option<fn(&mut Vec<u8>)>,
    mut check: impl FnMut(&[u8]) -> bool,
) -> DamageCounts {
    let mut counts = DamageCounts::default();
    for number in numbers(usual) {
        let mut rng = Rng::new(number);
        let mut bytes = rng.pick(files).clone();
        damage(&mut bytes, files, &mut rng);
        if let Some(seal) = seal.filter(|_| rng.one_in(2)) {
            seal(&mut bytes);
        }
        let named = Named(number, &bytes);
        match check(&bytes) {
            true => counts.read += 1,
            false => counts.refused += 1,
        }
        drop(named);
    }
    counts
}

/// Damages bytes at one place or up to four; pieces of `others` may get in.
pub fn damage(bytes: &mut Vec<u8>, others: &[Vec<u8>], rng: &mut Rng) {
    let more = if rng.one_in(2) { rng.below(4) } else { 0 };
    for _ in 0..1 + more {
        damage_once(bytes, others, rng);
    }
}

fn damage_once(bytes: &mut Vec<u8>, others: &[Vec<u8>], rng: &mut Rng) {
    let len = bytes.len() as u64;
    let at = rng.below(len + 1) as usize;
    let end = (at + length(rng)).min(bytes.len());
    match rng.below(13) {
        0 | 1 if at < end => bytes[at] ^= 1 << rng.below(8),
        2 if at < end => bytes[at] = rng.next_u64() as u8,
        3 => bytes[at..end].fill(if rng.one_in(2) { 0 } else { 0xff }),
        4 => drop(bytes.drain(at..end)),
        5 => {
            let piece = bytes[at..end].to_vec();
            let to = rng.below(len + 1) as usize;
            drop(bytes.splice(to..to, piece));
        }
        6 => {
            let piece = bytes[at..end].to_vec();
            let to = rng.below(len + 1) as usize;
            let room = piece.len().min(bytes.len() - to);
            bytes[to..to + room].copy_from_slice(&piece[..room]);
        }
        7 => repeat(bytes, at..end, rng),
        8 if rng.one_in(2) => bytes.truncate(at),
        9 => binary_number(bytes, at, rng),
        10 => decimal_number(bytes, at, rng),
        11 => {
            let other = rng.pick(others);
            let from = rng.below(other.len() as u64 + 1) as usize;
            let piece = other[from..(from + length(rng)).min(other.len())].to_vec();
            drop(bytes.splice(at..at, piece));
        }
        _ => bytes.insert(at, *rng.pick(SIGNS)),
    }
}

/// Mostly short, at times long.
fn length(rng: &mut Rng) -> usize {
    let bits = rng.below(9);
    1 + rng.below(1 << bits) as usize
}

/// Repeats a piece, up to hundreds of times: nesting and long lists.
fn repeat(bytes: &mut Vec<u8>, piece: Range<usize>, rng: &mut Rng) {
    let piece = bytes[piece].to_vec();
    let times = (1 << rng.below(10)).min(MAX_ADDED / piece.len().max(1));
    let at = rng.below(bytes.len() as u64 + 1) as usize;
    drop(bytes.splice(at..at, piece.repeat(times)));
}

/// Overwrites one to eight bytes with a number, in either order of bytes, mostly at a multiple of its size.
fn binary_number(bytes: &mut [u8], at: usize, rng: &mut Rng) {
    let size = 1 << rng.below(4);
    let at = if rng.one_in(4) { at } else { at / size * size };
    let Some(place) = bytes.get_mut(at..at + size) else { return };
    let near = place.iter().rev().fold(0, |n: u64, byte| n << 8 | u64::from(*byte));
    let number = match rng.below(4) {
        0 => near.wrapping_add(1),
        1 => near.wrapping_sub(1),
        _ => *rng.pick(&NUMBERS),
    };
    place.copy_from_slice(&number.to_le_bytes()[..size]);
    if rng.one_in(2) {
        place.reverse();
    }
}

/// Replaces the first number in decimals behind a place.
fn decimal_number(bytes: &mut Vec<u8>, at: usize, rng: &mut Rng) {
    let Some(start) = bytes[at..].iter().position(u8::is_ascii_digit).map(|n| at + n) else { return };
    let end = start + bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let text = match rng.one_in(4) {
        true => (*rng.pick(&WORDS)).to_owned(),
        false => rng.pick(&NUMBERS).to_string(),
    };
    drop(bytes.splice(start..end, text.into_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_reproducible_and_of_every_kind() {
        let files = [b"header 12 [1, 2]\0\x01\0\0\0".to_vec(), (0..64).collect()];
        let of = |number| {
            let mut rng = Rng::new(number);
            let mut bytes = files[0].clone();
            damage_once(&mut bytes, &files, &mut rng);
            bytes
        };
        let all: Vec<Vec<u8>> = (0..30_000).map(of).collect();
        assert_eq!(all, (0..30_000).map(of).collect::<Vec<_>>());
        let contains = |part: &[u8]| all.iter().any(|bytes| bytes.windows(part.len()).any(|w| w == part));
        assert!(contains(b"18446744073709551615") && contains(b"1e999"), "numbers in decimals");
        assert!(contains(&[0xff, 0xff, 0xff, 0x7f]) && contains(&[0x7f, 0xff, 0xff, 0xff]), "numbers in binary");
        assert!(all.iter().any(|bytes| bytes.len() > 1000), "repeated pieces");
        assert!(all.iter().any(|bytes| bytes.len() < 8), "cuts");
        assert!(contains(&[40, 41, 42, 43]), "pieces of other files");
        let bits = |bytes: &Vec<u8>| bytes.iter().zip(&files[0]).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>();
        assert!(all.iter().any(|bytes| bytes.len() == files[0].len() && bits(bytes) == 1), "single bits");
        let counts = each_damaged(&files, 100, None, |bytes| bytes.len() > 20);
        assert!(counts.read > 0 && counts.refused > 0 && counts.read + counts.refused >= 100);
    }
}
