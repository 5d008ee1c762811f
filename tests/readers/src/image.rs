//! Images: JPEG and PNG.

use flate2::Crc;
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use tensorc_data::Draws;
use tensorc_data::image::{
    AugmentOptions, Augmenter, Channels, Decoder, Image, ImageFormat, PixelRegion, Workspace, dimensions, encode,
};

use crate::FileReader;

/// JPEG and PNG.
pub const PICTURE: FileReader =
    FileReader { name: "image", files: pictures, seal: Some(seal), read: read_picture, memory: 4096 };

/// Bytes of pixels.
const LIMIT: u64 = 1 << 18;

/// Any bytes become an image within the limit, or are refused, and a part of it equals that part of the whole.
fn read_picture(bytes: &[u8]) -> bool {
    let mut decoder = Decoder::new().with_limit(LIMIT);
    let (mut whole, mut part, mut expected) = (Image::new(), Image::new(), Image::new());
    let mut decoded = false;
    for channels in [Channels::Unchanged, Channels::Grey, Channels::Rgb] {
        if let Err(error) = decoder.decode(bytes, channels, &mut whole) {
            assert!(!error.to_string().contains("does not handle"), "a decoder panicked");
            continue;
        }
        decoded = true;
        assert!(whole.pixels().len() as u64 <= LIMIT);
        let (width, height) = (whole.width(), whole.height());
        let info = dimensions(bytes).expect("an image that was decoded");
        assert_eq!((width, height), (info.width, info.height));
        let region =
            PixelRegion { left: width / 4, top: height / 4, width: width.div_ceil(2), height: height.div_ceil(2) };
        decoder.decode_region(bytes, channels, region, &mut part).expect("a part of an image that can be decoded");
        expected.copy_region(&whole, region).expect("the region fits");
        assert_eq!(part, expected);
    }
    let options = AugmentOptions { data_shape: [3, 16, 16], random_resized_crop: true, ..AugmentOptions::default() };
    let augmenter = Augmenter::new(AugmentOptions { min_random_area: 0.1, ..options }).expect("the options are sound");
    let mut work = Workspace::new();
    work.decoder = decoder;
    drop(augmenter.augment(bytes, &mut Draws::new(1, 1, 1), &mut work));
    decoded
}

/// Makes the checksums of a PNG file's chunks right.
#[allow(clippy::ptr_arg, reason = "seals of other formats change the length")]
fn seal(file: &mut Vec<u8>) {
    let mut at = 8;
    while let Some(head) = file.get(at..at + 8).filter(|_| file.starts_with(b"\x89PNG")) {
        let end = at + 8 + u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
        if file.len() < end + 4 {
            return;
        }
        let mut crc = Crc::new();
        crc.update(&file[at + 4..end]);
        file[end..end + 4].copy_from_slice(&crc.sum().to_be_bytes());
        at = end + 4;
    }
}

fn jpeg(width: u16, height: u16, progressive: bool, sampling: SamplingFactor, color: ColorType) -> Vec<u8> {
    let channels = if color == ColorType::Luma {
        1
    } else if color == ColorType::Cmyk {
        4
    } else {
        3
    };
    let pixels: Vec<u8> = (0..usize::from(width) * usize::from(height) * channels).map(|i| (i * 7 / 5) as u8).collect();
    let mut bytes = vec![];
    let mut encoder = Encoder::new(&mut bytes, 80);
    encoder.set_progressive(progressive);
    encoder.set_sampling_factor(sampling);
    encoder.encode(&pixels, width, height, color).unwrap();
    bytes
}

fn pictures() -> Vec<Vec<u8>> {
    let one = |channels: u8| {
        let pixels = (0..13 * 9 * usize::from(channels)).map(|i| (i * 11 / 3) as u8).collect();
        let image = Image::from_pixels(13, 9, channels, pixels).unwrap();
        let mut bytes = vec![];
        encode(&image, ImageFormat::Png { compression: 6 }, &mut bytes).unwrap();
        bytes
    };
    let (whole, half) = (SamplingFactor::F_1_1, SamplingFactor::F_2_2);
    vec![
        jpeg(13, 9, false, whole, ColorType::Rgb),
        jpeg(17, 11, false, half, ColorType::Rgb),
        jpeg(13, 9, true, half, ColorType::Rgb),
        jpeg(9, 5, false, whole, ColorType::Luma),
        jpeg(9, 5, false, whole, ColorType::Cmyk),
        one(1),
        one(3),
    ]
}
