//! MNIST and data sets like it: grey images and their labels in two idx files.

use std::path::{Path, PathBuf};

use tensorc_abi::DType;
use tensorc_runtime::TensorMut;

use super::read_idx;
use crate::HostTensor;
use crate::dataset::{DataDesc, Dataset, Sample};
use crate::error::{Cause, DataError, ExamplePlace};
use crate::iter::DEFAULT_PREFETCH;
use crate::iter::{LastBatch, Loader, Shuffle};
use crate::options::options;

options! {
    "MNISTIter",
    /// Options of MNIST, with the names and defaults of MXNet's `MNISTIter`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct MnistOptions {
        /// The idx file of images, compressed by gzip or not.
        pub image: PathBuf = "./train-images-idx3-ubyte".into(),
        /// The idx file of labels, compressed by gzip or not.
        pub label: PathBuf = "./train-labels-idx1-ubyte".into(),
        /// Examples of a batch.
        pub batch_size: usize = 128,
        /// Whether the images come in a random order, which is the same in all epochs.
        pub shuffle: bool = true,
        /// Whether an image is a vector and not of shape (1, height, width).
        pub flat: bool = false,
        /// Of the order.
        pub seed: u64 = 0,
        /// Has no effect: nothing is printed.
        pub silent: bool = false,
        /// Number of parts that the examples are divided into.
        pub num_parts: usize = 1,
        /// The part that is read, from 0.
        pub part_index: usize = 0,
        /// Batches that are read ahead.
        pub prefetch_buffer: usize = DEFAULT_PREFETCH,
        /// The name of the data.
        pub data_name: String = "data".into(),
        /// The name of the labels.
        pub label_name: String = "softmax_label".into(),
    }
}

impl MnistOptions {
    /// The batches of the images. Those that do not fill a batch are left out.
    ///
    /// # Errors
    /// As [`MnistDataset::open`]; there are too few images for a batch, or there is no such part.
    pub fn open(&self) -> Result<Loader, DataError> {
        let shuffle = if self.shuffle { Shuffle::Once(self.seed) } else { Shuffle::None };
        let builder = Loader::of(MnistDataset::open(self)?, self.batch_size).last(LastBatch::Discard).shuffle(shuffle);
        builder.part(self.part_index, self.num_parts).prefetch(self.prefetch_buffer).build()
    }
}

/// Images and labels in memory, as bytes; examples are f32, pixels between 0 and 255 / 256.
#[derive(Debug)]
pub struct MnistDataset {
    name: String,
    images: HostTensor,
    classes: HostTensor,
    data: DataDesc,
    label: DataDesc,
}

/// What a pixel is multiplied by.
const SCALE: f32 = 1.0 / 256.0;

/// An idx file of bytes with so many axes.
fn bytes(path: &Path, what: &str, rank: usize) -> Result<HostTensor, DataError> {
    let tensor = read_idx(path)?;
    match (tensor.dtype(), tensor.dims().len()) {
        (DType::U8, found) if found == rank => Ok(tensor),
        (dtype, _) => {
            let expected = format!("{what}: u8 with {rank} axes");
            let cause = Cause::Shape { expected, found: format!("{dtype} {:?}", tensor.dims()) };
            Err(DataError::at(ExamplePlace::file(path), cause))
        }
    }
}

impl MnistDataset {
    /// Reads the files that options name.
    ///
    /// # Errors
    /// A file cannot be read, is no idx file of images or labels, or their numbers differ.
    pub fn open(options: &MnistOptions) -> Result<MnistDataset, DataError> {
        let images = bytes(&options.image, "images", 3)?;
        let classes = bytes(&options.label, "labels", 1)?;
        let (count, labels) = (images.dims()[0], classes.dims()[0]);
        if count != labels {
            let cause = Cause::Shape { expected: format!("{count} labels"), found: labels.to_string() };
            return Err(DataError::at(ExamplePlace::file(&options.label), cause));
        }
        let (height, width) = (images.dims()[1], images.dims()[2]);
        let dims = if options.flat { vec![height * width] } else { vec![1, height, width] };
        let data = DataDesc::new(&options.data_name, DType::F32, &dims);
        let label = DataDesc::new(&options.label_name, DType::F32, &[]);
        Ok(MnistDataset { name: options.image.display().to_string(), images, classes, data, label })
    }
}

impl Dataset for MnistDataset {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn len(&self) -> usize {
        self.classes.bytes().len()
    }

    fn data(&self) -> &[DataDesc] {
        std::slice::from_ref(&self.data)
    }

    fn labels(&self) -> &[DataDesc] {
        std::slice::from_ref(&self.label)
    }

    fn read(&self, sample: Sample, data: &mut [TensorMut<'_>], labels: &mut [TensorMut<'_>]) -> Result<(), DataError> {
        let size = self.images.bytes().len() / self.len();
        let pixels = &self.images.bytes()[sample.index * size..(sample.index + 1) * size];
        data.iter_mut().for_each(|data| data.write(pixels.iter().map(|pixel| f32::from(*pixel) * SCALE)));
        labels.iter_mut().for_each(|label| label.write([f32::from(self.classes.bytes()[sample.index])]));
        Ok(())
    }
}
