//! Tests of the decoder of regions of JPEG files, on files that are made here.

use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use tensorc_data::Draws;
use tensorc_data::image::PixelRegion;
use tensorc_data::image::jpeg::{Decoded, JpegError, RegionDecoder, Scale, read_size};
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

const SAMPLINGS: [SamplingFactor; 4] =
    [SamplingFactor::F_1_1, SamplingFactor::F_2_1, SamplingFactor::F_1_2, SamplingFactor::F_2_2];

const SCALES: [Scale; 4] = [Scale::Full, Scale::Half, Scale::Quarter, Scale::Eighth];

const LIMIT: u64 = 1 << 24;

/// How a test file is made.
#[derive(Clone, Copy, Debug)]
struct Recipe {
    width: usize,
    height: usize,
    /// None: grey.
    sampling: Option<SamplingFactor>,
    quality: u8,
    restart: Option<u16>,
    /// How fast the waves go that the image is made of, and the amplitude of the noise on them.
    waves: f64,
    noise: f64,
    optimised: bool,
}

impl Recipe {
    fn new(width: usize, height: usize, sampling: Option<SamplingFactor>) -> Recipe {
        Recipe { width, height, sampling, quality: 90, restart: None, waves: 0.13, noise: 20.0, optimised: false }
    }

    fn encoder<'b>(&self, bytes: &'b mut Vec<u8>) -> Encoder<&'b mut Vec<u8>> {
        let mut encoder = Encoder::new(bytes, self.quality);
        encoder.set_sampling_factor(self.sampling.unwrap_or(SamplingFactor::F_1_1));
        encoder.set_optimized_huffman_tables(self.optimised);
        if let Some(interval) = self.restart {
            encoder.set_restart_interval(interval);
        }
        encoder
    }

    fn file(&self) -> Vec<u8> {
        let channels = if self.sampling.is_some() { 3 } else { 1 };
        let mut draws = Draws::new(7, self.width as u64, self.height as u64);
        let mut pixels = vec![];
        for i in 0..self.width * self.height * channels {
            let (x, y) = ((i / channels % self.width) as f64, (i / channels / self.width) as f64);
            let wave = (x * self.waves + (i % channels) as f64).sin() + ((y * 1.3 - x * 0.4) * self.waves).cos();
            pixels.push((128.0 + 55.0 * wave + self.noise * (draws.unit() - 0.5)) as u8);
        }
        let mut bytes = vec![];
        let kind = if channels == 3 { ColorType::Rgb } else { ColorType::Luma };
        self.encoder(&mut bytes).encode(&pixels, self.width as u16, self.height as u16, kind).unwrap();
        bytes
    }
}

/// Grey and every sampling.
fn kinds() -> impl Iterator<Item = Option<SamplingFactor>> {
    SAMPLINGS.into_iter().map(Some).chain([None])
}

fn decode(decoder: &mut RegionDecoder, bytes: &[u8], region: Option<PixelRegion>, scale: Scale) -> (Decoded, Vec<u8>) {
    let mut out = vec![];
    let decoded = decoder.decode(bytes, region, scale, &mut out).unwrap();
    assert_eq!(out.len(), decoded.width * decoded.height * decoded.channels);
    (decoded, out)
}

/// A rectangle of an image of `channels` channels and `width` pixels in a row.
fn crop(pixels: &[u8], width: usize, channels: usize, region: PixelRegion) -> Vec<u8> {
    let [left, top, wide, high] = [region.left, region.top, region.width, region.height].map(|n| n as usize);
    let rows = top..top + high;
    let row = |y: usize| &pixels[(y * width + left) * channels..(y * width + left + wide) * channels];
    rows.flat_map(|y| row(y).iter().copied()).collect()
}

fn random_region(draws: &mut Draws, width: usize, height: usize) -> PixelRegion {
    let mut below = |n: u32| draws.below(n.into()) as u32;
    let (width, height) = (width as u32, height as u32);
    let (left, top) = (below(width), below(height));
    PixelRegion { left, top, width: 1 + below(width - left), height: 1 + below(height - top) }
}

fn zune(bytes: &[u8], channels: usize) -> Vec<u8> {
    let space = if channels == 3 { ColorSpace::RGB } else { ColorSpace::Luma };
    let options = DecoderOptions::default().jpeg_set_out_colorspace(space);
    JpegDecoder::new_with_options(ZCursor::new(bytes), options).decode().unwrap()
}

/// Greatest and mean difference.
fn difference(a: &[u8], b: &[u8]) -> (u8, f64) {
    assert_eq!(a.len(), b.len());
    let all = a.iter().zip(b).map(|(a, b)| a.abs_diff(*b));
    (all.clone().max().unwrap(), all.map(f64::from).sum::<f64>() / a.len() as f64)
}

#[test]
fn whole_images_are_close_to_those_of_another_decoder() {
    let mut decoder = RegionDecoder::new(LIMIT);
    for sampling in kinds() {
        for (width, height) in [(16, 16), (67, 41), (160, 120), (223, 97)] {
            for (quality, noise) in [(50, 20.0), (90, 60.0), (100, 250.0)] {
                let recipe = Recipe { quality, noise, ..Recipe::new(width, height, sampling) };
                let file = recipe.file();
                let (decoded, ours) = decode(&mut decoder, &file, None, Scale::Full);
                assert_eq!((decoded.width, decoded.height, decoded.x, decoded.y), (width, height, 0, 0));
                let (most, mean) = difference(&ours, &zune(&file, decoded.channels));
                // The other decoder does not interpolate chroma from one strip of rows to the next as libjpeg does.
                let strips = matches!(sampling, Some(SamplingFactor::F_1_2 | SamplingFactor::F_2_2)) && height > 64;
                let limit = if strips { 255 } else { 5 };
                assert!(most <= limit && mean < 0.5, "{recipe:?}: {most}, mean {mean}");
            }
        }
    }
}

#[test]
fn the_size_is_read_without_the_data() {
    for sampling in kinds() {
        let file = Recipe::new(37, 21, sampling).file();
        let size = read_size(&file[..file.len() / 2 + 300]).unwrap();
        assert_eq!((size.width, size.height, size.channels), (37, 21, if sampling.is_some() { 3 } else { 1 }));
    }
}

/// Checks that random regions of a file are those of the whole image, at every scale and with both codes.
fn check_regions(recipe: Recipe, draws: &mut Draws, count: usize) {
    let file = recipe.file();
    let (mut fast, mut portable) = (RegionDecoder::new(LIMIT), RegionDecoder::portable(LIMIT));
    for scale in SCALES {
        let by = scale.divisor();
        let (whole, all) = decode(&mut fast, &file, None, scale);
        assert_eq!((whole.width, whole.height), (recipe.width.div_ceil(by), recipe.height.div_ceil(by)));
        assert!(all == decode(&mut portable, &file, None, scale).1, "{recipe:?} {scale:?}");
        // Without optimisation a part of them must do.
        for _ in 0..if cfg!(debug_assertions) { count.div_ceil(4) } else { count } {
            let region = random_region(draws, recipe.width, recipe.height);
            let (part, pixels) = decode(&mut fast, &file, Some(region), scale);
            let [left, top, wide, high] = [region.left, region.top, region.width, region.height].map(|n| n as usize);
            let (x, y) = (left / by, top / by);
            assert_eq!((part.x, part.y, part.scale), (x * by, y * by, scale));
            assert_eq!(x + part.width, (left + wide).div_ceil(by));
            assert_eq!(y + part.height, (top + high).div_ceil(by));
            let [left, top, width, height] = [x, y, part.width, part.height].map(|n| n as u32);
            let cut = PixelRegion { left, top, width, height };
            assert!(pixels == crop(&all, whole.width, whole.channels, cut), "{recipe:?} {scale:?} {region:?}");
            assert!(pixels == decode(&mut portable, &file, Some(region), scale).1, "{recipe:?} {scale:?} {region:?}");
        }
    }
}

#[test]
fn regions_are_those_of_the_whole_image() {
    let mut draws = Draws::new(1, 2, 3);
    for sampling in kinds() {
        for restart in [None, Some(1), Some(3), Some(7), Some(40)] {
            let recipe = Recipe { restart, ..Recipe::new(203, 141, sampling) };
            check_regions(recipe, &mut draws, 12);
            check_regions(Recipe { quality: 100, noise: 255.0, ..recipe }, &mut draws, 4);
        }
    }
}

#[test]
fn images_of_all_small_sizes_are_decoded() {
    let mut draws = Draws::new(4, 5, 6);
    for sampling in kinds() {
        for size in 1..=67 {
            check_regions(Recipe::new(size, 68 - size, sampling), &mut draws, 2);
            check_regions(Recipe::new(size, size, sampling), &mut draws, 2);
        }
    }
}

#[test]
fn tables_of_a_files_own_are_used_and_those_of_the_last_file_forgotten() {
    let plain = Recipe::new(120, 90, None);
    let files = [(false, 20.0), (true, 250.0), (true, 0.0), (false, 20.0), (true, 250.0)]
        .map(|(optimised, noise)| Recipe { optimised, noise, ..plain }.file());
    let mut decoder = RegionDecoder::new(LIMIT);
    for file in &files {
        let (_, pixels) = decode(&mut decoder, file, None, Scale::Full);
        assert!(difference(&pixels, &zune(file, 1)).0 <= 1);
        assert!(pixels == decode(&mut RegionDecoder::new(LIMIT), file, None, Scale::Full).1);
    }
}

#[test]
fn reduced_pixels_are_means_of_pixels() {
    for sampling in kinds() {
        let recipe = Recipe { waves: 0.03, noise: 0.0, quality: 95, ..Recipe::new(192, 160, sampling) };
        let file = recipe.file();
        let mut decoder = RegionDecoder::new(LIMIT);
        let (whole, pixels) = decode(&mut decoder, &file, None, Scale::Full);
        for scale in &SCALES[1..] {
            let by = scale.divisor();
            let (reduced, found) = decode(&mut decoder, &file, None, *scale);
            let mut means = vec![];
            for i in 0..found.len() {
                let (c, x) = (i % whole.channels, i / whole.channels % reduced.width * by);
                let y = i / whole.channels / reduced.width * by;
                let at = |j: usize| f64::from(pixels[((y + j / by) * whole.width + x + j % by) * whole.channels + c]);
                means.push(((0..by * by).map(at).sum::<f64>() / (by * by) as f64).round() as u8);
            }
            let (most, mean) = difference(&found, &means);
            // Where chroma is interpolated after reducing, as in libjpeg, its means are shifted a little.
            let exact = matches!(sampling, None | Some(SamplingFactor::F_1_1));
            let limits = if exact { (2, 0.6) } else { (10, 4.0) };
            assert!(most <= limits.0 && mean < limits.1, "{sampling:?} {scale:?}: {most}, mean {mean}");
        }
    }
}

#[test]
fn truncated_files_are_errors() {
    let mut decoder = RegionDecoder::new(LIMIT);
    let mut out = vec![];
    for (sampling, restart) in kinds().flat_map(|s| [(s, None), (s, Some(2))]) {
        let file = Recipe { restart, ..Recipe::new(45, 38, sampling) }.file();
        for length in 0..file.len() - 2 {
            let result = decoder.decode(&file[..length], None, Scale::Full, &mut out);
            assert!(matches!(result, Err(JpegError::Invalid(_) | JpegError::Unsupported(_))), "{sampling:?} {length}");
        }
        // The marker of the end is not needed, and what follows it does no harm.
        let whole = decode(&mut decoder, &file, None, Scale::Full);
        assert!(whole == decode(&mut decoder, &file[..file.len() - 2], None, Scale::Full));
        let long = [&file[..], &[0xff, 0xd8, 0, 1, 2]].concat();
        assert!(whole == decode(&mut decoder, &long, None, Scale::Full));
    }
}

#[test]
fn changed_files_never_panic() {
    let mut draws = Draws::new(11, 0, 0);
    let mut decoders = [RegionDecoder::new(LIMIT), RegionDecoder::portable(LIMIT)];
    let kinds = kinds().flat_map(|s| [(s, None), (s, Some(2))]);
    let files: Vec<_> = kinds.map(|(s, restart)| Recipe { restart, ..Recipe::new(41, 35, s) }.file()).collect();
    let (mut good, mut out, mut other) = (0, vec![], vec![]);
    let rounds = if cfg!(debug_assertions) { 5_000 } else { 100_000 };
    for round in 0..rounds {
        let mut file = files[round % files.len()].clone();
        for _ in 0..1 + draws.below(4) {
            let at = draws.below(file.len() as u64) as usize;
            match draws.below(4) {
                0 => file[at] ^= 1 << draws.below(8),
                1 => file[at] = 0xff,
                2 => drop(file.remove(at)),
                _ => file[at] = draws.below(256) as u8,
            }
        }
        let region = draws.coin().then(|| random_region(&mut draws, 41, 35));
        let scale = SCALES[round / 7 % 4];
        let result = decoders[0].decode(&file, region, scale, &mut out);
        // The same bytes come from both codes, for good data and bad.
        assert_eq!(result, decoders[1].decode(&file, region, scale, &mut other));
        assert!(result.is_err() || out == other, "round {round}");
        good += usize::from(result.is_ok());
    }
    assert!(good > rounds / 10, "{good}");
}

/// Offset of the payload of the first segment with a marker.
fn segment(file: &[u8], marker: u8) -> usize {
    file.windows(2).position(|w| w == [0xff, marker]).unwrap() + 4
}

#[test]
fn a_small_file_that_claims_to_be_huge_is_refused() {
    let mut file = Recipe::new(16, 16, Some(SamplingFactor::F_2_2)).file();
    let at = segment(&file, 0xc0);
    file[at + 1..at + 5].fill(0xff);
    let mut out = vec![];
    let result = RegionDecoder::new(LIMIT).decode(&file, None, Scale::Full, &mut out);
    assert_eq!(result, Err(JpegError::TooLarge { width: 65535, height: 65535, limit: LIMIT }));
    assert!(out.is_empty());
    // A region of it is small, but the data ends long before.
    let region = Some(PixelRegion { left: 65000, top: 65000, width: 100, height: 100 });
    let result = RegionDecoder::new(u64::MAX).decode(&file, region, Scale::Full, &mut out);
    assert!(matches!(result, Err(JpegError::Invalid(_))), "{result:?}");
}

#[test]
fn other_kinds_of_files_are_unsupported() {
    let refused = |file: &[u8]| {
        let result = RegionDecoder::new(LIMIT).decode(file, None, Scale::Full, &mut vec![]);
        assert!(matches!(result, Err(JpegError::Unsupported(_))), "{result:?}");
    };
    let recipe = Recipe::new(32, 32, Some(SamplingFactor::F_1_1));
    let pixels = vec![100; 32 * 32 * 4];
    for progressive in [false, true] {
        let mut bytes = vec![];
        let mut encoder = recipe.encoder(&mut bytes);
        // Tables made for the data come with a scan for every component.
        encoder.set_optimized_huffman_tables(true);
        encoder.set_progressive(progressive);
        encoder.encode(&pixels[..32 * 32 * 3], 32, 32, ColorType::Rgb).unwrap();
        refused(&bytes);
    }
    let mut bytes = vec![];
    recipe.encoder(&mut bytes).encode(&pixels, 32, 32, ColorType::Cmyk).unwrap();
    refused(&bytes);
    for sampling in [SamplingFactor::F_4_1, SamplingFactor::F_4_2, SamplingFactor::F_1_4, SamplingFactor::F_2_4] {
        refused(&Recipe::new(32, 32, Some(sampling)).file());
    }
    let file = recipe.file();
    let frame = segment(&file, 0xc0);
    // Arithmetic coding, lossless, 12 bits, a height that follows.
    for (at, bytes) in [(frame - 3, &[0xc9][..]), (frame - 3, &[0xc3]), (frame, &[12]), (frame + 1, &[0, 0])] {
        let mut file = file.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        refused(&file);
    }
}

#[test]
fn regions_outside_of_the_image_are_errors() {
    let file = Recipe::new(40, 30, None).file();
    for (left, top, width, height) in [(0, 0, 41, 30), (40, 0, 1, 1), (0, 0, 0, 5), (3, 3, 3, 0), (1, 1, u32::MAX, 2)] {
        let region = Some(PixelRegion { left, top, width, height });
        let result = RegionDecoder::new(LIMIT).decode(&file, region, Scale::Full, &mut vec![]);
        assert!(matches!(result, Err(JpegError::Invalid(_))), "{result:?}");
    }
}
