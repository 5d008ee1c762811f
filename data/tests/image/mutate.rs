//! Damaged files: none makes a decoder panic, hang or take memory beyond its limit.

use tensorc_data::Draws;
use tensorc_data::image::{Channels, Decoder, Image, PixelRegion, dimensions};

use crate::files::{all_kinds, seal};

const FILES: u64 = 100_000;
const LIMIT: u64 = 1 << 20;

/// Changes, removes, repeats or adds bytes at a few random places.
fn mutate(bytes: &mut Vec<u8>, draws: &mut Draws) {
    for _ in 0..=draws.below(4) {
        let at = draws.below(bytes.len() as u64 + 1) as usize;
        let end = (at + draws.below(9) as usize).min(bytes.len());
        match draws.below(8) {
            0 => {
                bytes.drain(at..end);
            }
            1 => {
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
            2 => bytes.insert(at, draws.bits() as u8),
            3 => bytes[at..end].fill(0xff),
            4 => bytes[at..end].fill(0),
            5 => bytes.truncate(at),
            6 if at < end => bytes[at] ^= 1 << draws.below(8),
            _ if at < end => bytes[at] = draws.bits() as u8,
            _ => {}
        }
    }
}

#[test]
fn damaged_files_are_decoded_or_refused() {
    let kinds = all_kinds();
    let mut decoder = Decoder::new().with_limit(LIMIT);
    let mut image = Image::new();
    let mut decoded = 0;
    for number in 0..FILES {
        let mut draws = Draws::new(7, 0, number);
        let (what, file) = &kinds[draws.below(kinds.len() as u64) as usize];
        let mut bytes = file.clone();
        mutate(&mut bytes, &mut draws);
        if what.starts_with("PNG") && draws.coin() {
            seal(&mut bytes);
        }
        let channels = [Channels::Unchanged, Channels::Grey, Channels::Rgb][draws.below(3) as usize];
        if let Err(error) = decoder.decode(&bytes, channels, &mut image) {
            assert!(!error.to_string().contains("does not handle"), "{what} {number}: {error}");
            continue;
        }
        decoded += 1;
        let info = dimensions(&bytes).unwrap();
        assert_eq!((image.width(), image.height()), (info.width, info.height), "{what} {number}");
        assert!(image.pixels().len() as u64 <= LIMIT);
        let region = PixelRegion { left: info.width / 3, top: info.height / 3, width: 1, height: 1 };
        decoder.decode_region(&bytes, channels, region, &mut image).unwrap();
    }
    assert!(decoded > FILES / 50 && decoded < FILES * 9 / 10, "{decoded} files were decoded");
}
