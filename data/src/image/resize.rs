//! Resampling: a part of an image to another size, in one pass.

use std::fmt;

use fast_image_resize as fir;
use fir::images::{TypedImage, TypedImageRef};
use fir::pixels::{U8, U8x3, U8x4};
use fir::{Filter, FilterType, PixelTrait, ResizeAlg, ResizeOptions};

use super::Image;
use super::area::Area;
use super::view::ImageView;
use crate::draws::Draws;
use crate::error::Cause;

/// How pixels between pixels are made, by the numbers of MXNet and OpenCV.
///
/// Coordinates refer to pixel centres. Methods 1, 2 and 4 have kernels of a fixed number of source pixels, so that a much
/// smaller image has aliases, as in OpenCV; their weights are rounded to 16 bits. At the border, weights of pixels
/// outside are spread over those inside, where OpenCV repeats the border: they differ for kernels wider than 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inter {
    /// 0: the source pixel in which the centre of the target pixel lies. OpenCV takes the one of its upper left corner.
    Nearest,
    /// 1: 2×2 pixels.
    Bilinear,
    /// 2: 4×4 pixels, the cubic kernel with a = -0.75.
    Cubic,
    /// 3: the mean over the area of a target pixel, pixels at its border weighted by the part that is covered; bilinear
    /// if an axis grows.
    Area,
    /// 4: 8×8 pixels, a sinc under a window.
    Lanczos,
}

impl Inter {
    /// The method that a number stands for: 9 is 2 to enlarge both axes, 3 to shrink both and else 1; 10 is a
    /// random one of 0 to 4. `None` for other numbers.
    pub fn pick(number: u8, from: (f64, f64), to: (u32, u32), draws: &mut Draws) -> Option<Inter> {
        let (wide, high) = (f64::from(to.0), f64::from(to.1));
        Some(match number {
            0 => Inter::Nearest,
            1 => Inter::Bilinear,
            2 => Inter::Cubic,
            3 => Inter::Area,
            4 => Inter::Lanczos,
            9 if wide > from.0 && high > from.1 => Inter::Cubic,
            9 if wide < from.0 && high < from.1 => Inter::Area,
            9 => Inter::Bilinear,
            10 => return Inter::pick(draws.below(5) as u8, from, to, draws),
            _ => return None,
        })
    }

    /// Source pixels to each side that a target pixel may need beyond the one its centre lies in.
    pub(super) fn reach(self, scale: f64) -> f64 {
        match self {
            Inter::Nearest => 1.0,
            Inter::Bilinear => 2.0,
            Inter::Cubic => 3.0,
            Inter::Area => scale.max(1.0) / 2.0 + 1.0,
            Inter::Lanczos => 5.0,
        }
    }

    /// The algorithm of the library, which serves areas only where they are of no use.
    fn algorithm(self) -> Result<ResizeAlg, Cause> {
        let custom = |name, kernel, support| {
            let filter = Filter::new(name, kernel, support).map_err(|error| Cause::Image(error.to_string()))?;
            Ok(ResizeAlg::Interpolation(FilterType::Custom(filter)))
        };
        match self {
            Inter::Nearest => Ok(ResizeAlg::Nearest),
            Inter::Bilinear | Inter::Area => Ok(ResizeAlg::Interpolation(FilterType::Bilinear)),
            Inter::Cubic => custom("cubic", cubic, 2.0),
            Inter::Lanczos => custom("lanczos", lanczos, 4.0),
        }
    }
}

/// The cubic kernel of Keys with a = -0.75.
pub(super) fn cubic(x: f64) -> f64 {
    const A: f64 = -0.75;
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A
    } else {
        0.0
    }
}

/// The kernel of Lanczos with four lobes.
pub(super) fn lanczos(x: f64) -> f64 {
    let sinc = |x: f64| if x == 0.0 { 1.0 } else { (std::f64::consts::PI * x).sin() / (std::f64::consts::PI * x) };
    if x.abs() < 4.0 { sinc(x) * sinc(x / 4.0) } else { 0.0 }
}

/// The size of an image whose shorter edge is `edge`: the longer one keeps the ratio, rounded down, one pixel at least.
pub fn shorter_edge(width: u32, height: u32, edge: u32) -> (u32, u32) {
    let longer = |long: u32, short: u32| {
        let length = u64::from(edge) * u64::from(long) / u64::from(short.max(1));
        u32::try_from(length).unwrap_or(u32::MAX).max(1)
    };
    if height > width { (edge, longer(height, width)) } else { (longer(width, height), edge) }
}

/// A view that lies inside of an image, but for rounding.
fn checked(view: ImageView, image: &Image) -> Result<ImageView, Cause> {
    let (width, height) = (image.width(), image.height());
    let within = view.within(width, height);
    let near = |a: f64, b: f64| (a - b).abs() < 1e-6;
    let same = near(within.left, view.left)
        && near(within.top, view.top)
        && near(within.width, view.width)
        && near(within.height, view.height);
    if same && within.width > 0.0 && within.height > 0.0 {
        return Ok(within);
    }
    Err(Cause::Shape { expected: format!("a part of {width}×{height} pixels"), found: format!("{view:?}") })
}

/// Resizes images, with memory that is used again.
#[derive(Clone, Default)]
pub struct Resizer {
    inner: fir::Resizer,
    area: Area,
}

impl fmt::Debug for Resizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resizer").finish_non_exhaustive()
    }
}

impl Resizer {
    /// A resizer without buffers.
    pub fn new() -> Resizer {
        Resizer::default()
    }

    /// Resizes a part of an image. Pixels next to it count at its edges, as if the whole were resized and then cropped.
    /// The alpha channel is resized as the others.
    ///
    /// # Errors
    /// The part does not lie inside of the image, a size is 0, or the memory cannot be had.
    pub fn resize(
        &mut self,
        from: &Image,
        view: ImageView,
        (width, height): (u32, u32),
        inter: Inter,
        to: &mut Image,
    ) -> Result<(), Cause> {
        if let Some(region) = view.region()
            && (region.width, region.height) == (width, height)
        {
            return to.copy_region(from, region);
        }
        let view = checked(view, from)?;
        if width == 0 || height == 0 {
            return Err(Cause::Image(format!("resizing to {width}×{height} pixels")));
        }
        to.reshape(width, height, from.channels())?;
        if inter == Inter::Area && view.width >= width.into() && view.height >= height.into() {
            self.area.run(from, &view, to);
            return Ok(());
        }
        let options = ResizeOptions::new().resize_alg(inter.algorithm()?).use_alpha(false).crop(
            view.left,
            view.top,
            view.width,
            view.height,
        );
        // The library's own choice by pixel type would bring its code for types that no image here has.
        match from.channels() {
            1 => convolve::<U8>(&mut self.inner, from, to, &options),
            3 => convolve::<U8x3>(&mut self.inner, from, to, &options),
            _ => convolve::<U8x4>(&mut self.inner, from, to, &options),
        }
    }
}

/// Resizes images whose pixels are of type `P`.
fn convolve<P: PixelTrait>(
    resizer: &mut fir::Resizer,
    from: &Image,
    to: &mut Image,
    options: &ResizeOptions,
) -> Result<(), Cause> {
    let cause = |error: &dyn fmt::Display| Cause::Image(format!("resizing: {error}"));
    let (width, height) = (to.width(), to.height());
    let source = TypedImageRef::<P>::from_buffer(from.width(), from.height(), from.pixels()).map_err(|e| cause(&e))?;
    let mut target = TypedImage::<P>::from_buffer(width, height, to.pixels_mut()).map_err(|e| cause(&e))?;
    resizer.resize_typed(&source, &mut target, options).map_err(|e| cause(&e))
}
