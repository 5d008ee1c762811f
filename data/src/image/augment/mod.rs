//! The default augmenter of MXNet: random changes of images in a fixed order, with an output of a fixed size.
//!
//! The order is: resize the shorter edge; rotate, shear and scale; pad; crop; brightness, contrast and saturation in a
//! random order; hue, saturation and lightness; noise along principal components.
//!
//! What differs from MXNet, beside the random numbers: resize and crop are one resampling with one method chosen from
//! the sizes of both, where MXNet resamples twice; rotation is about the centres of pixels; luma has the weights of R, G
//! and B, which MXNet takes for B, G and R; hue wraps around; noise is rounded, not cut.

mod affine;
mod colour;
mod geometry;
mod options;

pub use geometry::AugmentPlan;
use geometry::Steps;
pub use options::AugmentOptions;

use super::decode::{Channels, Decoder, dimensions};
use super::{Image, PixelRegion, Resizer};
use crate::draws::Draws;
use crate::error::{Cause, DataError};

/// Changes images as its options say.
#[derive(Clone, Debug)]
pub struct Augmenter {
    options: AugmentOptions,
}

/// Memory for images on their way, used again; each thread has its own.
#[derive(Debug, Default)]
pub struct Workspace {
    /// The decoder of images.
    pub decoder: Decoder,
    resizer: Resizer,
    source: Image,
    spare: Image,
    output: Image,
}

impl Workspace {
    /// A workspace without buffers.
    pub fn new() -> Workspace {
        Workspace::default()
    }
}

impl Augmenter {
    /// # Errors
    /// An option that is out of its range or contradicts another one.
    pub fn new(options: AugmentOptions) -> Result<Augmenter, DataError> {
        options.check()?;
        Ok(Augmenter { options })
    }

    /// The options.
    pub fn options(&self) -> &AugmentOptions {
        &self.options
    }

    /// Decides on the geometry for an image of a size, in pixels. It draws what [`Augmenter::augment`] draws first.
    ///
    /// # Errors
    /// The image has no pixels, or is smaller than `max_crop_size`.
    pub fn plan(&self, width: u32, height: u32, draws: &mut Draws) -> Result<AugmentPlan, Cause> {
        geometry::plan(&self.options, (width, height), draws)
    }

    /// Decodes as much as is needed of a file, and changes it. The result has the channels, height and width of
    /// `data_shape`.
    ///
    /// # Errors
    /// The file cannot be decoded, does not have the number of channels, or is too small for `max_crop_size`.
    pub fn augment<'w>(&self, bytes: &[u8], draws: &mut Draws, work: &'w mut Workspace) -> Result<&'w Image, Cause> {
        let info = dimensions(bytes)?;
        let plan = self.plan(info.width, info.height, draws)?;
        let channels = match self.options.data_shape[0] {
            1 => Channels::Grey,
            3 => Channels::Rgb,
            _ => Channels::Unchanged,
        };
        let scale = plan.scale(&self.options);
        let reduced = work.decoder.decode_reduced(bytes, channels, plan.region, scale, &mut work.source)?;
        let plan = plan.reduced(reduced, (work.source.width(), work.source.height()));
        self.finish(&plan, draws, work)
    }

    /// Changes an image that is decoded. The result is that of [`Augmenter::augment`] with a file of the same pixels, unless
    /// that reduces it by half or more.
    ///
    /// # Errors
    /// The image does not have the number of channels, or is too small for `max_crop_size`.
    pub fn augment_image<'w>(
        &self,
        image: &Image,
        draws: &mut Draws,
        work: &'w mut Workspace,
    ) -> Result<&'w Image, Cause> {
        let plan = self.plan(image.width(), image.height(), draws)?;
        work.source.copy_region(image, plan.region)?;
        self.finish(&plan, draws, work)
    }

    fn finish<'w>(&self, plan: &AugmentPlan, draws: &mut Draws, work: &'w mut Workspace) -> Result<&'w Image, Cause> {
        let [channels, height, width] = self.options.data_shape;
        if u32::from(work.source.channels()) != channels {
            let found = format!("{}", work.source.channels());
            return Err(Cause::Shape { expected: format!("an image of {channels} channels"), found });
        }
        let (view, inter) = match &plan.steps {
            Steps::Direct { view, inter } => (*view, *inter),
            Steps::Staged { view, inter, .. } => {
                self.run_stages(&plan.steps, work)?;
                (*view, *inter)
            }
        };
        work.resizer.resize(&work.source, view, (width, height), inter, &mut work.output)?;
        colour::apply(&self.options, &mut work.output, draws);
        Ok(&work.output)
    }

    /// Everything before the crop, from the workspace's source to its source.
    fn run_stages(&self, steps: &Steps, work: &mut Workspace) -> Result<(), Cause> {
        let Steps::Staged { resize, affine, .. } = steps else { return Ok(()) };
        let Workspace { decoder, resizer, source, spare, .. } = work;
        let limit = decoder.limit();
        if let Some((size, inter)) = resize {
            check_size(*size, source.channels(), limit)?;
            let view = PixelRegion::all(source.width(), source.height()).into();
            resizer.resize(source, view, *size, *inter, spare)?;
            std::mem::swap(source, spare);
        }
        if let Some(affine) = affine {
            check_size(affine.size, source.channels(), limit)?;
            affine.apply(source, self.options.fill_value, spare)?;
            std::mem::swap(source, spare);
        }
        if self.options.pad > 0 {
            let (pad, channels) = (self.options.pad, source.channels());
            let size = (source.width().saturating_add(2 * pad), source.height().saturating_add(2 * pad));
            check_size(size, channels, limit)?;
            pad_image(source, pad, self.options.fill_value, spare)?;
            std::mem::swap(source, spare);
        }
        Ok(())
    }
}

/// Refuses images between steps that are larger than decoded ones may be.
fn check_size((width, height): (u32, u32), channels: u8, limit: u64) -> Result<(), Cause> {
    let bytes = u128::from(width) * u128::from(height) * u128::from(channels);
    if bytes <= limit.into() {
        return Ok(());
    }
    Err(Cause::Image(format!("augmentation makes {width}×{height} pixels, more than the limit of {limit} bytes")))
}

/// Adds an edge of so many pixels on all sides.
fn pad_image(from: &Image, pad: u32, fill: u8, to: &mut Image) -> Result<(), Cause> {
    to.reshape(from.width() + 2 * pad, from.height() + 2 * pad, from.channels())?;
    let (stride, bytes) = (to.stride(), from.stride());
    let left = pad as usize * usize::from(from.channels());
    to.pixels_mut().fill(fill);
    let rows = to.pixels_mut().chunks_exact_mut(stride).skip(pad as usize);
    for (to, from) in rows.zip(from.pixels().chunks_exact(bytes)) {
        to[left..left + bytes].copy_from_slice(from);
    }
    Ok(())
}
