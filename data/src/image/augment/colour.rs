//! Changes of colours: brightness, contrast, saturation, hue, lightness, and noise along principal components.

use super::options::AugmentOptions;
use crate::draws::Draws;
use crate::image::Image;
use crate::image::decode::luma;

/// Principal components of colours in ImageNet, as columns times the roots of their variances, rows for R, G and B.
const COMPONENTS: [[f64; 3]; 3] = [
    [55.46 * -0.5675, 4.794 * 0.7192, 1.148 * 0.4009],
    [55.46 * -0.5808, 4.794 * -0.0045, 1.148 * -0.8140],
    [55.46 * -0.5836, 4.794 * -0.6948, 1.148 * 0.4203],
];

/// All changes, in the order of the options.
pub(super) fn apply(options: &AugmentOptions, image: &mut Image, draws: &mut Draws) {
    if options.brightness > 0.0 || options.contrast > 0.0 || options.saturation > 0.0 {
        jitter(options, image, draws);
    }
    if options.random_h != 0 || options.random_s != 0 || options.random_l != 0 {
        let [h, s, l] = [options.random_h, options.random_s, options.random_l].map(|max| draw_shift(max, draws));
        shift_hls(image, h * 2.0, s / 255.0, l / 255.0);
    }
    if options.pca_noise > 0.0 {
        let weights: [f64; 3] = std::array::from_fn(|_| draws.normal() * options.pca_noise);
        add_components(image, weights);
    }
}

/// Brightness, contrast and saturation in a random order; each rounds to bytes.
fn jitter(options: &AugmentOptions, image: &mut Image, draws: &mut Draws) {
    let [brightness, contrast, saturation] =
        [options.brightness, options.contrast, options.saturation].map(|max| draws.between(1.0 - max, 1.0 + max));
    for step in draws.permutation(3) {
        match step {
            0 if options.brightness > 0.0 => map_colours(image, |value| value * brightness),
            1 if options.contrast > 0.0 => {
                let mean = mean_luma(image);
                map_colours(image, |value| mean + (value - mean) * contrast);
            }
            2 if options.saturation > 0.0 => saturate(image, saturation as f32),
            _ => {}
        }
    }
}

/// A whole number in `[-max, max]`, rounded towards 0; near a uniform one, a fifth of which is averaged away.
fn draw_shift(max: i32, draws: &mut Draws) -> f64 {
    let unit = (draws.unit() + 4.0 * draws.unit()) / 5.0;
    ((unit * 2.0 - 1.0) * f64::from(max)).trunc()
}

/// Each value of a colour becomes a function of it.
fn map_colours(image: &mut Image, function: impl Fn(f64) -> f64) {
    let table: [u8; 256] = std::array::from_fn(|value| (function(value as f64) + 0.5) as u8);
    if image.channels() == 4 {
        each_colour(image, |rgb| rgb.map(|value| table[usize::from(value)]));
    } else {
        image.pixels_mut().iter_mut().for_each(|value| *value = table[usize::from(*value)]);
    }
}

/// Each colour becomes a function of it; alpha stays. Nothing happens to grey images.
fn each_colour(image: &mut Image, mut function: impl FnMut([u8; 3]) -> [u8; 3]) {
    let channels = usize::from(image.channels());
    for pixel in image.pixels_mut().chunks_exact_mut(channels) {
        if let Some(rgb) = pixel.first_chunk_mut() {
            *rgb = function(*rgb);
        }
    }
}

fn mean_luma(image: &Image) -> f64 {
    let channels = usize::from(image.channels());
    let sum = |pixel: &[u8]| match pixel {
        [r, g, b, ..] => u64::from(luma(*r, *g, *b)),
        _ => pixel.iter().copied().map(u64::from).sum(),
    };
    let total: u64 = image.pixels().chunks_exact(channels).map(sum).sum();
    total as f64 / (image.pixels().len() / channels).max(1) as f64
}

fn saturate(image: &mut Image, factor: f32) {
    each_colour(image, |[r, g, b]| {
        let grey = f32::from(luma(r, g, b));
        [r, g, b].map(|value| (grey + (f32::from(value) - grey) * factor + 0.5) as u8)
    });
}

/// Adds to hue (in degrees, which wrap around), saturation and lightness (which are kept in `[0, 1]`). MXNet keeps hue
/// in a range, too, so that red changes in one direction only.
fn shift_hls(image: &mut Image, hue: f64, saturation: f64, lightness: f64) {
    let (hue, saturation, lightness) = (hue as f32, saturation as f32, lightness as f32);
    each_colour(image, |rgb| {
        let [h, l, s] = to_hls(rgb);
        from_hls([(h + hue).rem_euclid(360.0), (l + lightness).clamp(0.0, 1.0), (s + saturation).clamp(0.0, 1.0)])
    });
}

/// Hue in degrees, lightness and saturation in `[0, 1]`, of the bi-hexcone.
fn to_hls(rgb: [u8; 3]) -> [f32; 3] {
    let [r, g, b] = rgb.map(|value| f32::from(value) / 255.0);
    let (max, min) = (r.max(g).max(b), r.min(g).min(b));
    let (sum, range) = (max + min, max - min);
    if range == 0.0 {
        return [0.0, sum / 2.0, 0.0];
    }
    let saturation = range / if sum < 1.0 { sum } else { 2.0 - sum };
    let sextant = if max == r {
        (g - b) / range
    } else if max == g {
        2.0 + (b - r) / range
    } else {
        4.0 + (r - g) / range
    };
    [(60.0 * sextant).rem_euclid(360.0), sum / 2.0, saturation]
}

fn from_hls([hue, lightness, saturation]: [f32; 3]) -> [u8; 3] {
    let amplitude = saturation * lightness.min(1.0 - lightness);
    [0.0, 8.0, 4.0].map(|offset| {
        let k = (offset + hue / 30.0) % 12.0;
        let value = lightness - amplitude * (k - 3.0).min(9.0 - k).clamp(-1.0, 1.0);
        (value * 255.0 + 0.5) as u8
    })
}

fn add_components(image: &mut Image, weights: [f64; 3]) {
    let shift = COMPONENTS.map(|row| row.iter().zip(weights).map(|(c, w)| c * w).sum::<f64>());
    let shift = shift.map(|value| value.clamp(-255.0, 255.0).round() as i16);
    each_colour(image, |rgb| std::array::from_fn(|i| (i16::from(rgb[i]) + shift[i]).clamp(0, 255) as u8));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pixels(values: &[u8]) -> Image {
        Image::from_pixels(values.len() as u32 / 3, 1, 3, values.to_vec()).unwrap()
    }

    #[test]
    fn hls_goes_there_and_back() {
        for code in (0..1 << 24).step_by(37) {
            let rgb = [code as u8, (code >> 8) as u8, (code >> 16) as u8];
            assert_eq!(from_hls(to_hls(rgb)), rgb);
        }
    }

    #[test]
    fn hls_of_known_colours() {
        assert_eq!(to_hls([255, 0, 0]), [0.0, 0.5, 1.0]);
        assert_eq!(to_hls([0, 255, 255]), [180.0, 0.5, 1.0]);
        assert_eq!(to_hls([51, 51, 51]), [0.0, 0.2, 0.0]);
        let mut image = pixels(&[255, 0, 0, 10, 20, 30]);
        shift_hls(&mut image, -120.0, 0.0, 0.0);
        assert_eq!(image.pixels(), [0, 0, 255, 20, 30, 10]);
        let mut image = pixels(&[255, 0, 0]);
        shift_hls(&mut image, 0.0, -0.5, 0.25);
        // L = 0.75 and S = 0.5 give 0.75 ± 0.125.
        assert_eq!(image.pixels(), [223, 159, 159]);
    }

    #[test]
    fn steps_have_their_formulas() {
        let mut image = pixels(&[0, 100, 200, 250, 3, 7]);
        map_colours(&mut image, |value| value * 1.5);
        assert_eq!(image.pixels(), [0, 150, 255, 255, 5, 11]);

        let mut image = pixels(&[100, 100, 100, 200, 200, 200]);
        assert_eq!(mean_luma(&image), 150.0);
        map_colours(&mut image, |value| 150.0 + (value - 150.0) * 0.5);
        assert_eq!(image.pixels(), [125, 125, 125, 175, 175, 175]);

        // Luma of (200, 100, 50) is 0.299·200 + 0.587·100 + 0.114·50 = 124.2.
        let mut image = pixels(&[200, 100, 50]);
        saturate(&mut image, 0.0);
        assert_eq!(image.pixels(), [124, 124, 124]);

        // One deviation along the first component: 55.46 × (-0.5675, -0.5808, -0.5836).
        let mut image = pixels(&[100, 100, 100, 10, 10, 10]);
        add_components(&mut image, [1.0, 0.0, 0.0]);
        assert_eq!(image.pixels(), [69, 68, 68, 0, 0, 0]);
    }

    #[test]
    fn alpha_and_grey_stay() {
        let mut image = Image::from_pixels(1, 1, 4, vec![10, 20, 30, 40]).unwrap();
        map_colours(&mut image, |value| value * 2.0);
        saturate(&mut image, 1.0);
        assert_eq!(image.pixels(), [20, 40, 60, 40]);
        let mut grey = Image::from_pixels(2, 1, 1, vec![10, 30]).unwrap();
        assert_eq!(mean_luma(&grey), 20.0);
        each_colour(&mut grey, |_| [0; 3]);
        assert_eq!(grey.pixels(), [10, 30]);
    }

    #[test]
    fn shifts_stay_in_their_range() {
        let mut draws = Draws::new(1, 2, 3);
        let shifts: Vec<f64> = (0..10_000).map(|_| draw_shift(36, &mut draws)).collect();
        assert!(shifts.iter().all(|shift| shift.abs() <= 36.0 && shift.fract() == 0.0));
        assert!(shifts.iter().any(|shift| *shift > 30.0) && shifts.iter().any(|shift| *shift < -30.0));
    }
}
