//! Damaged files: none makes a decoder panic, hang or take memory beyond its limit.

use tensorc_data::image::{Channels, Decoder, Image, PixelRegion, dimensions};
use tensorc_random::each_damaged;

use super::files::{all_kinds, seal};

const FILES: u64 = 100_000;
const LIMIT: u64 = 1 << 20;

/// Makes the checksums of PNG files right.
#[allow(clippy::ptr_arg, reason = "seals of other formats change the length")]
fn seal_png(bytes: &mut Vec<u8>) {
    if bytes.starts_with(b"\x89PNG") {
        seal(bytes);
    }
}

#[test]
fn damaged_files_are_decoded_or_refused() {
    let files: Vec<Vec<u8>> = all_kinds().into_iter().map(|(_, file)| file).collect();
    let mut decoder = Decoder::new().with_limit(LIMIT);
    let (mut image, mut number) = (Image::new(), 0);
    let counts = each_damaged(&files, FILES, Some(seal_png), |bytes| {
        number += 1;
        let channels = [Channels::Unchanged, Channels::Grey, Channels::Rgb][number % 3];
        if let Err(error) = decoder.decode(bytes, channels, &mut image) {
            assert!(!error.to_string().contains("does not handle"), "{error}");
            return false;
        }
        let info = dimensions(bytes).unwrap();
        assert_eq!((image.width(), image.height()), (info.width, info.height));
        assert!(image.pixels().len() as u64 <= LIMIT);
        let region = PixelRegion { left: info.width / 3, top: info.height / 3, width: 1, height: 1 };
        decoder.decode_region(bytes, channels, region, &mut image).unwrap();
        true
    });
    assert!(counts.read > FILES / 50 && counts.refused > FILES / 10, "{counts:?}");
}
