//! Rotation, shear, scale and aspect ratio, in one resampling.

use super::options::{AugmentOptions, pick};
use crate::draws::Draws;
use crate::error::Cause;
use crate::image::resize::{cubic, lanczos};
use crate::image::{Image, Inter};

/// A map between positions of two images.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Affine {
    /// Width and height of what comes out.
    pub size: (u32, u32),
    /// Maps output coordinates to source coordinates: `x' = m[0][0] x + m[0][1] y + m[0][2]`, and `y'` by the second row.
    inverse: [[f64; 3]; 2],
    inter: Inter,
}

impl Affine {
    /// The matrix is MXNet's, `[[h cos - s w sin, h sin + s w cos], [-w sin, w cos]]` with `h = 2 scale / (1 + ratio)`,
    /// `w = ratio h` and the shear `s`; the middle of the image goes to the middle of the output. Coordinates
    /// refer to pixel centres, so that a rotation by 90 degrees is exact; MXNet's refer to pixel corners, which shifts the
    /// image by up to one pixel.
    pub fn draw(options: &AugmentOptions, size: (u32, u32), draws: &mut Draws) -> Affine {
        let shear = draws.between(-options.max_shear_ratio, options.max_shear_ratio);
        let (sin, cos) = draw_angle(options, draws).to_radians().sin_cos();
        let (scale, ratio) = if options.random_resized_crop {
            (1.0, 1.0)
        } else {
            let (low, high) = options.aspect();
            (draws.between(options.min_random_scale, options.max_random_scale), draws.between(low, high))
        };
        let h = 2.0 * scale / (1.0 + ratio);
        let w = ratio * h;
        let forward = [[h * cos - shear * w * sin, h * sin + shear * w * cos], [-w * sin, w * cos]];
        let (width, height) = (f64::from(size.0), f64::from(size.1));
        let extent = |x: f64| ((scale * x).min(options.max_img_size).max(options.min_img_size) as u32).max(1);
        let to = (extent(width), extent(height));
        let middle = (f64::from(to.0) / 2.0, f64::from(to.1) / 2.0);
        let inverse = invert(forward, (width / 2.0, height / 2.0), middle);
        Affine { size: to, inverse, inter: pick(options, (width, height), to, draws) }
    }

    /// Resamples an image; what lies outside of it has a value.
    pub fn apply(&self, from: &Image, fill: u8, to: &mut Image) -> Result<(), Cause> {
        to.reshape(self.size.0, self.size.1, from.channels())?;
        match from.channels() {
            1 => self.apply_channels::<1>(from, fill, to),
            3 => self.apply_channels::<3>(from, fill, to),
            _ => self.apply_channels::<4>(from, fill, to),
        }
        Ok(())
    }

    fn apply_channels<const C: usize>(&self, from: &Image, fill: u8, to: &mut Image) {
        match self.inter {
            Inter::Nearest => self.sample::<1, C>(from, fill, to, |_| [1.0]),
            Inter::Bilinear | Inter::Area => self.sample::<2, C>(from, fill, to, |x| [1.0 - x, x]),
            Inter::Cubic => self.sample::<4, C>(from, fill, to, table(cubic)),
            Inter::Lanczos => self.sample::<8, C>(from, fill, to, table(lanczos)),
        }
    }

    /// Resamples with kernels of `N` taps, whose weights are a function of how far a position lies behind a pixel.
    fn sample<const N: usize, const C: usize>(
        &self,
        from: &Image,
        fill: u8,
        to: &mut Image,
        weights: impl Fn(f32) -> [f32; N],
    ) {
        let row_bytes = self.size.0 as usize * C;
        // The first tap of an even kernel lies this far in front of the pixel before the position.
        let (half, lead) = if N == 1 { (0.0, 0) } else { (0.5, N as i64 / 2 - 1) };
        let source = BorderedImage::<C> { image: from, fill: f32::from(fill) };
        for (y, row) in to.pixels_mut().chunks_exact_mut(row_bytes).enumerate() {
            for (x, pixel) in row.as_chunks_mut::<C>().0.iter_mut().enumerate() {
                let (cx, cy) = (x as f64 + 0.5, y as f64 + 0.5);
                let [px, py] = self.inverse.map(|[a, b, c]| a * cx + b * cy + c - half);
                let (ix, iy) = (px.floor(), py.floor());
                let (wx, wy) = (weights((px - ix) as f32), weights((py - iy) as f32));
                *pixel = source.gather(ix as i64 - lead, iy as i64 - lead, &wx, &wy);
            }
        }
    }
}

/// Degrees.
fn draw_angle(options: &AugmentOptions, draws: &mut Draws) -> f64 {
    let max = i64::from(options.max_rotate_angle);
    let free = draws.below(2 * max.unsigned_abs() + 1) as i64 - max;
    if !options.rotate_list.is_empty() {
        let chosen = draws.below(options.rotate_list.len() as u64) as usize;
        return options.rotate_list[chosen].into();
    }
    if options.rotate > 0 { options.rotate.into() } else { free as f64 }
}

/// The inverse of a linear map that takes one point to another.
fn invert([[a, b], [c, d]]: [[f64; 2]; 2], from: (f64, f64), to: (f64, f64)) -> [[f64; 3]; 2] {
    let det = a * d - b * c;
    let rows = [[d / det, -b / det], [-c / det, a / det]];
    let shift = |[x, y]: [f64; 2], origin: f64| [x, y, origin - x * to.0 - y * to.1];
    [shift(rows[0], from.0), shift(rows[1], from.1)]
}

/// Weights of a kernel at positions in steps of 1/256, with the sum 1.
fn table<const N: usize>(kernel: impl Fn(f64) -> f64) -> impl Fn(f32) -> [f32; N] {
    let entries: Vec<[f32; N]> = (0..=256)
        .map(|step| {
            let behind = f64::from(step) / 256.0;
            let values: [f64; N] = std::array::from_fn(|tap| kernel(tap as f64 - (N / 2 - 1) as f64 - behind));
            let sum: f64 = values.iter().sum();
            values.map(|value| (value / sum) as f32)
        })
        .collect();
    move |behind| entries[(behind * 256.0).round().clamp(0.0, 256.0) as usize]
}

/// Pixels of an image, and what lies around it.
struct BorderedImage<'a, const C: usize> {
    image: &'a Image,
    fill: f32,
}

impl<const C: usize> BorderedImage<'_, C> {
    /// The weighted sum of `N`×`N` pixels from a place on.
    fn gather<const N: usize>(&self, left: i64, top: i64, wx: &[f32; N], wy: &[f32; N]) -> [u8; C] {
        let (width, height) = (i64::from(self.image.width()), i64::from(self.image.height()));
        let mut sums = [0.0f32; C];
        if left >= width || top >= height || left <= -(N as i64) || top <= -(N as i64) {
            return [self.fill as u8; C];
        }
        for (y, wy) in (top..).zip(wy) {
            for (x, wx) in (left..).zip(wx) {
                let weight = wx * wy;
                let inside = (0..width).contains(&x) && (0..height).contains(&y);
                if !inside {
                    sums.iter_mut().for_each(|sum| *sum += weight * self.fill);
                    continue;
                }
                let at = (y * width + x) as usize * C;
                let pixel = &self.image.pixels()[at..at + C];
                sums.iter_mut().zip(pixel).for_each(|(sum, value)| *sum += weight * f32::from(*value));
            }
        }
        sums.map(|sum| (sum + 0.5) as u8)
    }
}
