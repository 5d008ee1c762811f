//! Decoding the symbols of a block (ITU-T T.81 annex F.2.2), with and without keeping its coefficients.

use super::bits::{Bits, UnstuffedWindow};
use super::huffman::{AC_BITS, AcEntry, AcTable, DcTable, END};
use super::markers::ZIGZAG;

/// Two blocks side by side: their rows take turns, eight coefficients each. What is nowhere in a block goes to
/// [`DUMP`], behind them.
pub(super) const PAIR: usize = 144;
const DUMP: u8 = 128;

/// Coefficients from the first of a block on, with padding behind a pair of blocks so that every `u8` index is valid.
pub(super) type BlockView = [i16; 256];

/// Position in a pair for every position in the order of the file.
static PLACES: [u8; 320] = places();

const fn places() -> [u8; 320] {
    let mut places = [DUMP; 320];
    let mut k = 0;
    while k < 64 {
        places[k] = ZIGZAG[k] / 8 * 16 + ZIGZAG[k] % 8;
        k += 1;
    }
    places
}

/// The tables of a component.
#[derive(Clone, Copy)]
pub(super) struct Tables<'a> {
    pub dc: &'a DcTable,
    pub ac: &'a AcTable,
}

/// A block whose codes are no codes, or go beyond its end.
pub(super) struct BadBlock;

/// Decodes a block whose coefficients are zero so far. Without `KEEP` only the DC coefficient is stored.
///
/// Returns one more than the position of its last coefficient that is coded, at least 1.
#[inline(always)]
pub(super) fn decode<const KEEP: bool>(
    bits: &mut Bits,
    window: &UnstuffedWindow,
    tables: Tables<'_>,
    predictor: &mut i32,
    block: &mut BlockView,
) -> Result<usize, BadBlock> {
    bits.refill(window);
    let (count, difference) = tables.dc.find(bits.buffer);
    if count == 0 {
        return Err(BadBlock);
    }
    bits.skip(u64::from(count));
    *predictor = predictor.wrapping_add(difference);
    block[0] = *predictor as i16;
    let mut k = 1;
    loop {
        bits.refill(window);
        // Two entries of the table take at most 20 bits, so that one of the long symbols still is ready.
        for last in [false, true] {
            let saved = bits.mark();
            let mut entry = tables.ac.entries[(bits.buffer >> (64 - AC_BITS)) as usize];
            let long = entry.bits == 0;
            if long {
                entry = tables.ac.find(bits.buffer);
                if entry.bits == 0 {
                    return Err(BadBlock);
                }
            }
            let next = apply::<KEEP>(entry, k, bits, block);
            if next < 64 {
                k = next;
                if long || last {
                    break;
                }
                continue;
            }
            if let Some(end) = end_of(next) {
                return Ok(end);
            }
            // The block ends before the end of the entry, or never.
            bits.go_back(saved);
            return finish::<KEEP>(bits, window, tables, k, block);
        }
    }
}

/// Decodes the rest of a block from position `k` on, one symbol at a time.
#[inline(always)]
fn finish<const KEEP: bool>(
    bits: &mut Bits,
    window: &UnstuffedWindow,
    tables: Tables<'_>,
    mut k: usize,
    block: &mut BlockView,
) -> Result<usize, BadBlock> {
    loop {
        bits.refill(window);
        let entry = tables.ac.find(bits.buffer);
        k = apply::<KEEP>(entry, k, bits, block);
        if entry.bits == 0 || k >= 64 {
            return end_of(k).ok_or(BadBlock);
        }
    }
}

/// Stores what an entry of [`AcTable`] says and returns the position after it, which tells [`end_of`] the rest.
#[inline(always)]
fn apply<const KEEP: bool>(entry: AcEntry, k: usize, bits: &mut Bits, block: &mut BlockView) -> usize {
    bits.skip(u64::from(entry.bits));
    if KEEP {
        let [one, two] = entry.places.map(|p| PLACES[k + usize::from(p)]);
        block[usize::from(one)] = entry.values[0];
        block[usize::from(two)] = entry.values[1];
    }
    k + usize::from(entry.advance)
}

/// Where a block ends of which `next` is the position behind the last entry, 64 or more; none if it is not there.
#[inline(always)]
fn end_of(next: usize) -> Option<usize> {
    let end = next % usize::from(END);
    if next == 64 || (next > usize::from(END) && end < 64) { Some(end) } else { None }
}
