//! Images: any bytes become an image within the limit, or are refused, and a part of it equals that part of the whole.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tensorc_data::Draws;
use tensorc_data::image::{AugmentOptions, Augmenter, Channels, Decoder, Image, PixelRegion, Workspace};

const LIMIT: u64 = 1 << 22;

fuzz_target!(|data: &[u8]| {
    let mut decoder = Decoder::new().with_limit(LIMIT);
    let (mut whole, mut part, mut expected) = (Image::new(), Image::new(), Image::new());
    for channels in [Channels::Unchanged, Channels::Grey, Channels::Rgb] {
        if let Err(error) = decoder.decode(data, channels, &mut whole) {
            assert!(!error.to_string().contains("does not handle"), "a decoder panicked");
            continue;
        }
        assert!(whole.pixels().len() as u64 <= LIMIT);
        let (width, height) = (whole.width(), whole.height());
        let region = PixelRegion { left: width / 4, top: height / 4, width: width.div_ceil(2), height: height.div_ceil(2) };
        decoder.decode_region(data, channels, region, &mut part).expect("a part of an image that can be decoded");
        expected.copy_region(&whole, region).expect("the region fits");
        assert_eq!(part, expected);
    }
    let options = AugmentOptions { data_shape: [3, 16, 16], random_resized_crop: true, ..AugmentOptions::default() };
    let augmenter = Augmenter::new(AugmentOptions { min_random_area: 0.1, ..options }).expect("the options are sound");
    let mut work = Workspace::new();
    work.decoder = decoder;
    let _ = augmenter.augment(data, &mut Draws::new(1, 1, 1), &mut work);
});
