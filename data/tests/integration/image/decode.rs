//! Decoding: each kind of file gives the pixels it was made of, and what is no whole file is refused.

use jpeg_encoder::ColorType;
use tensorc_data::Cause;
use tensorc_data::image::{Channels, Decoder, Image, ImageFormat, PixelRegion, dimensions, encode};

use super::files::{Jpeg, Png, all_kinds, interlaced, jpeg, smooth};

fn decode(bytes: &[u8], channels: Channels) -> Result<Image, Cause> {
    let mut image = Image::new();
    Decoder::new().decode(bytes, channels, &mut image).map(|()| image)
}

#[track_caller]
fn assert_near(image: &Image, expected: &[u8], most: u8) {
    let differences = || image.pixels().iter().zip(expected).map(|(a, b)| a.abs_diff(*b));
    assert_eq!(image.pixels().len(), expected.len());
    let mean = differences().map(f64::from).sum::<f64>() / expected.len() as f64;
    assert!(differences().max().unwrap() <= most && mean < 2.0, "{mean} {:?}", differences().max());
}

#[test]
fn jpeg_gives_the_pixels() {
    let (w, h) = (37, 21);
    let (rgb, grey) = (smooth(w, h, 3), smooth(w, h, 1));
    for (progressive, subsampled, restart) in
        [(false, false, 0), (false, true, 0), (false, false, 3), (true, false, 0), (true, true, 0)]
    {
        let kind = Jpeg { progressive, subsampled, restart, optimised: restart == 0 };
        let bytes = jpeg(rgb.pixels(), w, h, ColorType::Rgb, kind);
        let info = dimensions(&bytes).unwrap();
        assert_eq!((info.width, info.height), (w, h));
        let image = decode(&bytes, Channels::Unchanged).unwrap();
        assert_eq!((image.width(), image.height(), image.channels()), (w, h, 3));
        assert_near(&image, rgb.pixels(), if subsampled { 24 } else { 8 });

        let bytes = jpeg(grey.pixels(), w, h, ColorType::Luma, kind);
        assert_near(&decode(&bytes, Channels::Unchanged).unwrap(), grey.pixels(), 8);
        let rgb: Vec<u8> = grey.pixels().iter().flat_map(|value| [*value; 3]).collect();
        assert_near(&decode(&bytes, Channels::Rgb).unwrap(), &rgb, 8);
    }
}

#[test]
fn luma_of_colours() {
    let rgb = smooth(40, 32, 3);
    let luma: Vec<u8> = rgb
        .pixels()
        .chunks_exact(3)
        .map(|p| (0.299 * f64::from(p[0]) + 0.587 * f64::from(p[1]) + 0.114 * f64::from(p[2])).round() as u8)
        .collect();
    let bytes = jpeg(rgb.pixels(), 40, 32, ColorType::Rgb, Jpeg::default());
    assert_near(&decode(&bytes, Channels::Grey).unwrap(), &luma, 6);
    let mut bytes = vec![];
    encode(&rgb, ImageFormat::Png { compression: 9 }, &mut bytes).unwrap();
    assert_near(&decode(&bytes, Channels::Grey).unwrap(), &luma, 1);
}

#[test]
fn inverted_inks_become_colours() {
    let four = smooth(32, 16, 4);
    // Stored inverted, cyan of 255 is no cyan at all.
    let expected: Vec<u8> = four
        .pixels()
        .chunks_exact(4)
        .flat_map(|p| [0, 1, 2].map(|i| ((255 - u32::from(p[i])) * (255 - u32::from(p[3])) / 255) as u8))
        .collect();
    for color in [ColorType::Cmyk, ColorType::CmykAsYcck] {
        let bytes = jpeg(four.pixels(), 32, 16, color, Jpeg::default());
        for channels in [Channels::Unchanged, Channels::Rgb] {
            let image = decode(&bytes, channels).unwrap();
            assert_eq!(image.channels(), 3);
            assert_near(&image, &expected, 12);
        }
        assert_eq!(decode(&bytes, Channels::Grey).unwrap().channels(), 1);
    }
}

/// A file of four pixels, and these as they are, as RGB and as grey.
type Case<'a> = (Vec<u8>, &'a [u8], [u8; 12], [u8; 4]);

#[test]
fn png_of_each_depth_and_color() {
    use png::{BitDepth, ColorType};
    let file = |color, depth, rows, palette, transparency| {
        Png { width: 4, height: 1, color, depth, rows, palette, transparency }.bytes()
    };
    let cases: [Case<'_>; 9] = [
        (
            file(ColorType::Grayscale, BitDepth::One, &[0b1010_0000], &[], &[]),
            &[255, 0, 255, 0],
            [255, 255, 255, 0, 0, 0, 255, 255, 255, 0, 0, 0],
            [255, 0, 255, 0],
        ),
        (
            file(ColorType::Grayscale, BitDepth::Two, &[0b0001_1011], &[], &[]),
            &[0, 85, 170, 255],
            [0, 0, 0, 85, 85, 85, 170, 170, 170, 255, 255, 255],
            [0, 85, 170, 255],
        ),
        (
            file(ColorType::Grayscale, BitDepth::Four, &[0x01, 0xef], &[], &[]),
            &[0, 17, 238, 255],
            [0, 0, 0, 17, 17, 17, 238, 238, 238, 255, 255, 255],
            [0, 17, 238, 255],
        ),
        (
            file(ColorType::Grayscale, BitDepth::Sixteen, &[1, 200, 2, 0, 3, 255, 4, 9], &[], &[]),
            &[1, 2, 3, 4],
            [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4],
            [1, 2, 3, 4],
        ),
        (
            file(ColorType::GrayscaleAlpha, BitDepth::Eight, &[1, 10, 2, 20, 3, 30, 4, 40], &[], &[]),
            &[1, 1, 1, 10, 2, 2, 2, 20, 3, 3, 3, 30, 4, 4, 4, 40],
            [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4],
            [1, 2, 3, 4],
        ),
        (
            file(ColorType::Rgb, BitDepth::Eight, &[255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9], &[], &[]),
            &[255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9],
            [255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9],
            [76, 150, 29, 9],
        ),
        (
            file(ColorType::Rgba, BitDepth::Eight, &[9, 8, 7, 0, 6, 5, 4, 1, 3, 2, 1, 2, 0, 0, 0, 3], &[], &[]),
            &[9, 8, 7, 0, 6, 5, 4, 1, 3, 2, 1, 2, 0, 0, 0, 3],
            [9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0, 0],
            [8, 5, 2, 0],
        ),
        (
            file(ColorType::Indexed, BitDepth::Two, &[0b0001_1000], &[1, 2, 3, 40, 50, 60, 7, 8, 9], &[]),
            &[1, 2, 3, 40, 50, 60, 7, 8, 9, 1, 2, 3],
            [1, 2, 3, 40, 50, 60, 7, 8, 9, 1, 2, 3],
            [2, 48, 8, 2],
        ),
        (
            file(ColorType::Indexed, BitDepth::Two, &[0b0001_1000], &[1, 2, 3, 40, 50, 60, 7, 8, 9], &[5, 6]),
            &[1, 2, 3, 5, 40, 50, 60, 6, 7, 8, 9, 255, 1, 2, 3, 5],
            [1, 2, 3, 40, 50, 60, 7, 8, 9, 1, 2, 3],
            [2, 48, 8, 2],
        ),
    ];
    for (bytes, unchanged, rgb, grey) in cases {
        let image = decode(&bytes, Channels::Unchanged).unwrap();
        assert_eq!((image.pixels(), usize::from(image.channels())), (unchanged, unchanged.len() / 4));
        assert_eq!(decode(&bytes, Channels::Rgb).unwrap().pixels(), rgb);
        assert_near(&decode(&bytes, Channels::Grey).unwrap(), &grey, 1);
    }
}

#[test]
fn interlaced_png_and_encoded_images_are_exact() {
    for channels in [1, 3, 4] {
        for (width, height) in [(1, 1), (3, 5), (19, 21)] {
            let image = smooth(width, height, channels);
            assert_eq!(decode(&interlaced(&image), Channels::Unchanged).unwrap(), image);
            for compression in [0, 3, 9] {
                let mut bytes = vec![];
                encode(&image, ImageFormat::Png { compression }, &mut bytes).unwrap();
                assert_eq!(decode(&bytes, Channels::Unchanged).unwrap(), image);
            }
        }
    }
}

#[test]
fn encoded_jpeg_is_near() {
    for channels in [1, 3, 4] {
        let image = smooth(48, 32, channels);
        let mut bytes = vec![];
        encode(&image, ImageFormat::Jpeg { quality: 95 }, &mut bytes).unwrap();
        let back = decode(&bytes, Channels::Unchanged).unwrap();
        let kept = usize::from(channels.min(3));
        let expected: Vec<u8> = image.pixels().chunks_exact(channels.into()).flat_map(|p| p[..kept].to_vec()).collect();
        assert_near(&back, &expected, 24);
    }
    let image = smooth(4, 4, 3);
    for format in
        [ImageFormat::Jpeg { quality: 0 }, ImageFormat::Jpeg { quality: 101 }, ImageFormat::Png { compression: 10 }]
    {
        assert!(matches!(encode(&image, format, &mut vec![]), Err(Cause::Image(_))));
    }
    let wide = smooth(65_536, 1, 1);
    assert!(matches!(encode(&wide, ImageFormat::Jpeg { quality: 90 }, &mut vec![]), Err(Cause::Image(_))));
}

#[test]
fn a_region_is_a_part_of_the_whole() {
    let mut decoder = Decoder::new();
    for (what, bytes) in all_kinds() {
        let whole = decode(&bytes, Channels::Rgb).unwrap();
        for (left, top, width, height) in [(0, 0, 19, 21), (3, 4, 5, 6), (18, 20, 1, 1), (0, 20, 19, 1)] {
            let region = PixelRegion { left, top, width, height };
            let (mut part, mut expected) = (Image::new(), Image::new());
            decoder.decode_region(&bytes, Channels::Rgb, region, &mut part).unwrap();
            expected.copy_region(&whole, region).unwrap();
            assert_eq!(part, expected, "{what}");
        }
        let outside = PixelRegion { left: 10, top: 0, width: 10, height: 1 };
        assert!(decoder.decode_region(&bytes, Channels::Rgb, outside, &mut Image::new()).is_err());
    }
}

#[test]
fn files_that_end_early_are_refused() {
    for (what, bytes) in all_kinds() {
        assert!(decode(&bytes, Channels::Rgb).is_ok(), "{what}");
        // PNG has a last chunk of 12 bytes without meaning.
        let needed = if what.starts_with("PNG") { bytes.len() - 13 } else { bytes.len() };
        for length in 0..needed {
            assert!(decode(&bytes[..length], Channels::Rgb).is_err(), "{what}: {length} of {} bytes", bytes.len());
        }
    }
}

#[test]
fn other_bytes_are_named() {
    let Err(Cause::Image(message)) = decode(b"GIF89a  ", Channels::Rgb) else { panic!() };
    assert!(message.contains("47 49 46 38 39 61"), "{message}");
    assert!(matches!(decode(&[], Channels::Rgb), Err(Cause::Image(_))));
    assert!(matches!(dimensions(b"\x89PNG\r\n\x1a\nxx"), Err(Cause::Truncated { .. })));
}

#[test]
fn sizes_are_limited_before_memory_is_taken() {
    let mut bytes = jpeg(smooth(16, 16, 3).pixels(), 16, 16, ColorType::Rgb, Jpeg::default());
    let mut image = Image::new();
    let refused = Decoder::new().with_limit(16 * 16 * 3 - 1).decode(&bytes, Channels::Rgb, &mut image);
    assert!(matches!(refused, Err(Cause::Image(_))));
    Decoder::new().with_limit(16 * 16 * 3).decode(&bytes, Channels::Rgb, &mut image).unwrap();
    let frame = bytes.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    bytes[frame + 5..frame + 9].fill(0xff);
    assert_eq!(dimensions(&bytes).unwrap().width, 65_535);
    assert!(matches!(decode(&bytes, Channels::Rgb), Err(Cause::Image(message)) if message.contains("limit")));
    bytes[frame + 5] = 0x02;
    bytes[frame + 7] = 0x20;
    assert!(matches!(decode(&bytes, Channels::Rgb), Err(Cause::Truncated { .. })));
}
