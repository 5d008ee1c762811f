//! From the file of an image to its tensors: augmentation, normalisation and labels.

use std::sync::{Mutex, PoisonError};

use tensorc_abi::DType;
use tensorc_runtime::TensorMut;

use crate::dataset::DataDesc;
use crate::draws::Draws;
use crate::error::{Cause, DataError};
use crate::image::{AugmentOptions, Augmenter, AxisOrder, NormaliseOptions, Normaliser, Workspace};

/// What is done to every image of a source.
#[derive(Debug)]
pub struct ImagePipeline {
    augmenter: Augmenter,
    normaliser: Normaliser,
    seed: u64,
    label_width: usize,
    data: [DataDesc; 1],
    labels: [DataDesc; 1],
    /// One for each thread that reads.
    scratch: Mutex<Vec<ImageScratch>>,
}

/// Memory that reading an image needs.
#[derive(Debug, Default)]
pub(super) struct ImageScratch {
    pub file: Vec<u8>,
    pub work: Workspace,
}

/// The names of the arrays, and how many labels an image has.
#[derive(Clone, Debug)]
pub(super) struct ArrayNames<'a> {
    pub data: &'a str,
    pub label: &'a str,
    pub label_width: usize,
}

impl ImagePipeline {
    /// # Errors
    /// An option is out of its range or contradicts another one.
    pub(super) fn new(
        names: ArrayNames<'_>,
        augment: AugmentOptions,
        normalise: NormaliseOptions,
        (dtype, layout): (DType, AxisOrder),
        seed: u64,
    ) -> Result<ImagePipeline, DataError> {
        if names.label_width == 0 {
            return Err(DataError::options("label_width", "an image has at least one label"));
        }
        let augmenter = Augmenter::new(augment)?;
        let [channels, height, width] = augmenter.options().data_shape.map(u64::from);
        let dims = match layout {
            AxisOrder::Chw => [channels, height, width],
            AxisOrder::Hwc => [height, width, channels],
        };
        let label_dims = if names.label_width == 1 { vec![] } else { vec![names.label_width as u64] };
        Ok(ImagePipeline {
            augmenter,
            normaliser: Normaliser::new(normalise, dtype, layout)?,
            seed,
            label_width: names.label_width,
            data: [DataDesc::new(names.data, dtype, &dims)],
            labels: [DataDesc::new(names.label, DType::F32, &label_dims)],
            scratch: Mutex::default(),
        })
    }

    /// The same with a mean for every value, of shape channels × height × width.
    ///
    /// # Errors
    /// The mean has another shape than the images.
    pub(super) fn with_mean_image(self, shape: [usize; 3], values: &[f32]) -> Result<ImagePipeline, DataError> {
        let expected = self.augmenter.options().data_shape;
        if shape != expected.map(|n| n as usize) {
            return Err(DataError::options("mean_img", format!("it is {shape:?}, images are {expected:?}")));
        }
        Ok(ImagePipeline { normaliser: self.normaliser.with_mean_image(shape, values)?, ..self })
    }

    /// The arrays of data.
    pub fn data(&self) -> &[DataDesc] {
        &self.data
    }

    /// The arrays of labels.
    pub fn labels(&self) -> &[DataDesc] {
        &self.labels
    }

    /// Channels, height and width of the images that come out.
    pub(super) fn shape(&self) -> [u32; 3] {
        self.augmenter.options().data_shape
    }

    /// Lends a thread's memory to `f`.
    pub(super) fn with_scratch<R>(&self, f: impl FnOnce(&mut ImageScratch) -> R) -> R {
        let known = self.scratch.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut scratch = known.unwrap_or_default();
        let result = f(&mut scratch);
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
        result
    }

    /// What is random about a sample in an epoch.
    pub(super) fn draws(&self, epoch: u64, sample: u64) -> Draws {
        Draws::new(self.seed, epoch, sample)
    }

    /// Writes an image.
    ///
    /// # Errors
    /// The image cannot be decoded, or has another number of channels.
    pub(super) fn write(
        &self,
        file: &[u8],
        mut draws: Draws,
        work: &mut Workspace,
        out: &mut TensorMut<'_>,
    ) -> Result<(), Cause> {
        let image = self.augmenter.augment(file, &mut draws, work)?;
        self.normaliser.run(image, &mut draws, out)
    }

    /// The pixels of an image before normalisation, row-major with channels last.
    ///
    /// # Errors
    /// As [`ImagePipeline::write`].
    pub(super) fn pixels<'w>(&self, file: &[u8], mut draws: Draws, work: &'w mut Workspace) -> Result<&'w [u8], Cause> {
        Ok(self.augmenter.augment(file, &mut draws, work)?.pixels())
    }

    /// Writes labels, of which there are `found`.
    ///
    /// # Errors
    /// There are more or fewer of them than each image has.
    pub(super) fn write_labels(
        &self,
        found: usize,
        labels: impl Iterator<Item = f32>,
        out: &mut TensorMut<'_>,
    ) -> Result<(), Cause> {
        if found != self.label_width {
            let expected = format!("{} labels (label_width)", self.label_width);
            return Err(Cause::Shape { expected, found: found.to_string() });
        }
        out.write(labels);
        Ok(())
    }
}
