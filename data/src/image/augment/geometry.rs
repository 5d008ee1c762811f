//! Which part of an image becomes the output: random choices, made from the sizes alone.

use super::affine::Affine;
use super::options::{AugmentOptions, pick};
use crate::draws::Draws;
use crate::error::Cause;
use crate::image::jpeg::Scale;
use crate::image::{ImageView, Inter, PixelRegion, Reduced, shorter_edge};

/// Attempts at a random resized crop before the middle is taken.
const ATTEMPTS: usize = 10;

/// What happens to the geometry of an image, as decided before it is decoded.
#[derive(Clone, Debug, PartialEq)]
pub struct AugmentPlan {
    pub(super) region: PixelRegion,
    pub(super) steps: Steps,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Steps {
    /// A part of the region is resized to the output.
    Direct { view: ImageView, inter: Inter },
    /// The whole image goes through each step.
    Staged {
        resize: Option<((u32, u32), Inter)>,
        affine: Option<Affine>,
        /// In the image with its padding.
        view: ImageView,
        inter: Inter,
    },
}

impl AugmentPlan {
    /// The part of the image that must be decoded.
    pub fn region(&self) -> PixelRegion {
        self.region
    }

    /// The part of the source that becomes the output, if it is a rectangle of it.
    pub fn source_view(&self) -> Option<ImageView> {
        match &self.steps {
            Steps::Direct { view, .. } => {
                let (left, top) = (f64::from(self.region.left), f64::from(self.region.top));
                Some(ImageView { left: view.left + left, top: view.top + top, ..*view })
            }
            Steps::Staged { .. } => None,
        }
    }
}

impl AugmentPlan {
    /// How much smaller an image may be decoded: the output has no more pixels than that leaves.
    pub(super) fn scale(&self, options: &AugmentOptions) -> Scale {
        let [_, height, width] = options.data_shape.map(f64::from);
        match &self.steps {
            // The nearest pixel is one of the file.
            Steps::Direct { view, inter } if *inter != Inter::Nearest => {
                Scale::of_at_most((view.width / width).min(view.height / height))
            }
            _ => Scale::Full,
        }
    }

    /// The plan for a reduced image of a size.
    pub(super) fn reduced(self, by: Reduced, (width, height): (u32, u32)) -> AugmentPlan {
        let Steps::Direct { view, inter } = self.steps else { return self };
        if by.divisor == 1 {
            return self;
        }
        let divisor = f64::from(by.divisor);
        let at = |region: u32, view: f64, begin: u32| (f64::from(region) + view - f64::from(begin)) / divisor;
        let view = ImageView {
            left: at(self.region.left, view.left, by.left),
            top: at(self.region.top, view.top, by.top),
            width: view.width / divisor,
            height: view.height / divisor,
        };
        AugmentPlan { region: self.region, steps: Steps::Direct { view: view.within(width, height), inter } }
    }
}

/// The plan for an image of a size.
pub(super) fn plan(options: &AugmentOptions, size: (u32, u32), draws: &mut Draws) -> Result<AugmentPlan, Cause> {
    let (width, height) = size;
    if width == 0 || height == 0 {
        return Err(Cause::Image("an image without pixels".into()));
    }
    let resized = u32::try_from(options.resize).map_or(size, |edge| shorter_edge(width, height, edge));
    let affine = options.is_affine().then(|| Affine::draw(options, resized, draws));
    let after = affine.as_ref().map_or(resized, |affine| affine.size);
    let padded = (after.0.saturating_add(2 * options.pad), after.1.saturating_add(2 * options.pad));
    let crop = crop(options, padded, draws)?;
    let target = (options.data_shape[2], options.data_shape[1]);
    if affine.is_none() && options.pad == 0 {
        let view = scale(crop, resized, size).within(width, height);
        let inter = pick(options, (view.width, view.height), target, draws);
        return Ok(direct(view, inter, size, target));
    }
    let resize = (resized != size).then(|| (resized, pick(options, (width.into(), height.into()), resized, draws)));
    let inter = pick(options, (crop.width, crop.height), target, draws);
    let view = crop.within(padded.0, padded.1);
    Ok(AugmentPlan { region: PixelRegion::all(width, height), steps: Steps::Staged { resize, affine, view, inter } })
}

/// A rectangle of an image of one size, in the same image at another size.
fn scale(view: ImageView, from: (u32, u32), to: (u32, u32)) -> ImageView {
    if from == to {
        return view;
    }
    let (x, y) = (f64::from(to.0) / f64::from(from.0), f64::from(to.1) / f64::from(from.1));
    ImageView { left: view.left * x, top: view.top * y, width: view.width * x, height: view.height * y }
}

/// Resizing of a view. One of whole pixels is decoded alone, so that it is resized as an image of its own; around
/// others, the pixels that count at its edges are decoded, too.
fn direct(view: ImageView, inter: Inter, (width, height): (u32, u32), target: (u32, u32)) -> AugmentPlan {
    let region = view.region().filter(|region| region.fits(width, height)).unwrap_or_else(|| {
        // Reduced pixels next to the view count, too.
        let ratios = (view.width / f64::from(target.0)).min(view.height / f64::from(target.1));
        let divisor = Scale::of_at_most(ratios).divisor() as f64;
        let axis = |start: f64, extent: f64, limit: u32, to: u32| {
            let ratio = extent / f64::from(to);
            let reach = inter.reach(ratio).max(divisor * inter.reach(ratio / divisor));
            let first = (start - reach).floor().max(0.0);
            let last = (start + extent + reach).ceil().min(limit.into());
            (first as u32, (last - first) as u32)
        };
        let (left, width) = axis(view.left, view.width, width, target.0);
        let (top, height) = axis(view.top, view.height, height, target.1);
        PixelRegion { left, top, width, height }
    });
    let view = ImageView { left: view.left - f64::from(region.left), top: view.top - f64::from(region.top), ..view };
    AugmentPlan { region, steps: Steps::Direct { view, inter } }
}

fn crop(options: &AugmentOptions, size: (u32, u32), draws: &mut Draws) -> Result<ImageView, Cause> {
    if options.random_resized_crop {
        if let Some(region) = resized_crop(options, size, draws) {
            return Ok(region.into());
        }
    } else if options.max_crop_size != -1 {
        return square_crop(options, size, draws);
    }
    Ok(plain_crop(options, size, draws))
}

/// A part of random area and aspect ratio at a random place, or `None` if none fitted, or none is asked for.
fn resized_crop(options: &AugmentOptions, (width, height): (u32, u32), draws: &mut Draws) -> Option<PixelRegion> {
    let (low, high) = options.aspect();
    let areas = (options.min_random_area, options.max_random_area);
    if (low, high) == (1.0, 1.0) && areas == (1.0, 1.0) {
        return None;
    }
    let area = f64::from(width) * f64::from(height);
    for _ in 0..ATTEMPTS {
        let area = area * draws.between(areas.0, areas.1);
        let ratio = draws.between(low, high);
        let extent = |area: f64| (area.sqrt().round() as u32).max(1);
        let (wide, tall) = (extent(area * ratio), extent(area / ratio));
        let (wide, tall) = if draws.coin() { (tall, wide) } else { (wide, tall) };
        if wide <= width && tall <= height {
            let (top, left) = (place(true, height - tall, draws), place(true, width - wide, draws));
            return Some(PixelRegion { left, top, width: wide, height: tall });
        }
    }
    None
}

/// A square with a random side.
fn square_crop(options: &AugmentOptions, (width, height): (u32, u32), draws: &mut Draws) -> Result<ImageView, Cause> {
    let max = options.max_crop_size.unsigned_abs();
    let min = options.min_crop_size.unsigned_abs();
    if width < max || height < max {
        let expected = format!("at least {max}×{max} pixels, as max_crop_size demands");
        return Err(Cause::Shape { expected, found: format!("{width}×{height}") });
    }
    let side = min + draws.below(u64::from(max - min) + 1) as u32;
    let top = place(options.rand_crop, height - side, draws);
    let left = place(options.rand_crop, width - side, draws);
    Ok(PixelRegion { left, top, width: side, height: side }.into())
}

/// A part of the output's size; the image is enlarged first where it is smaller along an axis.
fn plain_crop(options: &AugmentOptions, size: (u32, u32), draws: &mut Draws) -> ImageView {
    let [_, tall, wide] = options.data_shape;
    let (mut width, mut height) = size;
    let grow = |to: u32, from: u32, other: u32| (f64::from(to) / f64::from(from) * f64::from(other)) as u32;
    if height < tall {
        (width, height) = (grow(tall, height, width).max(1), tall);
    }
    if width < wide {
        (width, height) = (wide, grow(wide, width, height).max(tall));
    }
    let top = place(options.rand_crop, height - tall, draws);
    let left = place(options.rand_crop, width - wide, draws);
    scale(PixelRegion { left, top, width: wide, height: tall }.into(), (width, height), size)
}

/// Where a crop begins if it could be moved by so many pixels.
fn place(random: bool, room: u32, draws: &mut Draws) -> u32 {
    if random { draws.below(u64::from(room) + 1) as u32 } else { room / 2 }
}
