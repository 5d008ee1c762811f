//! The options of image sources, by MXNet's names, and what they open.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tensorc_abi::DType;

use super::files::{IMAGE_ENDINGS, ImageFiles, folder_entries};
use super::mean;
use super::pipeline::{ArrayNames, ImagePipeline};
use super::records::ImageRecords;
use crate::dataset::Dataset;
use crate::error::DataError;
use crate::image::{AugmentOptions, AxisOrder, NormaliseOptions};
use crate::iter::schedule::LastBatch;
use crate::iter::{DEFAULT_PREFETCH, Loader, LoaderBuilder, OnError, Shuffle};
use crate::list::ImageList;
use crate::options::{Setting, options, unknown};
use crate::record::{IndexFiles, RecordSet, RecordSetOptions};

options! {
    "ImageRecordIter",
    /// What all image sources have in common.
    #[derive(Clone, Debug, PartialEq)]
    pub struct ImageOptions {
        /// Examples of a batch.
        pub batch_size: usize = 1,
        /// Labels of an image: the label array is f32\[batch\] for 1, f32\[batch, label_width\] for more.
        pub label_width: usize = 1,
        /// Another order in every epoch. The order of MXNet's first epoch is that of the file in some versions; here it is
        /// random, too.
        pub shuffle: bool = false,
        /// Decides on the order, and on random augmentation unless `seed_aug` is given.
        pub seed: u64 = 0,
        /// The seed of random augmentation, `None`: that of the order.
        pub seed_aug: Option<u64> = None,
        /// Left-over images are filled up to a batch with the first ones of the next epoch, which begins behind them;
        /// otherwise with images of the previous batch. Either way they do not count.
        pub round_batch: bool = true,
        /// Parts that the images are divided into, such as one for each worker, and the part that is read, from 0.
        pub num_parts: usize = 1,
        /// The part that is read, from 0.
        pub part_index: usize = 0,
        /// As many batches in every part. Left-over images are filled up with the first ones of the part.
        pub equal_parts: bool = false,
        /// Batches that are read ahead.
        pub prefetch_buffer: usize = DEFAULT_PREFETCH,
        /// Threads that decode; all cores if not given, where MXNet takes at most half of them.
        pub preprocess_threads: Option<usize> = None,
        /// `float32`, `uint8` or `int8`.
        pub dtype: String = "float32".into(),
        /// `NCHW` or `NHWC`.
        pub layout: String = "NCHW".into(),
        /// The name of the data.
        pub data_name: String = "data".into(),
        /// The name of the labels.
        pub label_name: String = "softmax_label".into(),
        /// What happens when an image cannot be read.
        pub on_error: OnError = OnError::Fail,
        and
        /// How images are augmented.
        pub augment: AugmentOptions,
        /// How pixels become values.
        pub normalise: NormaliseOptions,
    }
}

impl ImageOptions {
    /// Images of this shape: channels, height, width.
    pub fn new(data_shape: [u32; 3], batch_size: usize) -> ImageOptions {
        let augment = AugmentOptions { data_shape, ..AugmentOptions::default() };
        ImageOptions { batch_size, augment, ..ImageOptions::default() }
    }

    pub(super) fn pipeline(&self) -> Result<ImagePipeline, DataError> {
        let dtype = match self.dtype.as_str() {
            "float32" => DType::F32,
            "uint8" => DType::U8,
            "int8" => DType::I8,
            other => return Err(DataError::options("dtype", format!("`{other}` is not float32, uint8 or int8"))),
        };
        let layout = match self.layout.as_str() {
            "NCHW" => AxisOrder::Chw,
            "NHWC" => AxisOrder::Hwc,
            other => return Err(DataError::options("layout", format!("`{other}` is not NCHW or NHWC"))),
        };
        let names = ArrayNames { data: &self.data_name, label: &self.label_name, label_width: self.label_width };
        let seed = self.seed_aug.unwrap_or(self.seed);
        ImagePipeline::new(names, self.augment.clone(), self.normalise.clone(), (dtype, layout), seed)
    }

    /// A loader of all images of a source in the order of these options.
    pub(super) fn loader(&self, source: impl Dataset + 'static) -> LoaderBuilder {
        let last = match (self.equal_parts, self.round_batch) {
            (true, _) => LastBatch::Pad,
            (false, true) => LastBatch::Round,
            (false, false) => LastBatch::Repeat,
        };
        let shuffle = if self.shuffle { Shuffle::EachEpoch(self.seed) } else { Shuffle::None };
        let builder = Loader::of(source, self.batch_size).last(last).shuffle(shuffle);
        let builder = builder.prefetch(self.prefetch_buffer).on_error(self.on_error);
        self.preprocess_threads.into_iter().fold(builder, LoaderBuilder::threads)
    }

    fn part(&self, builder: LoaderBuilder) -> LoaderBuilder {
        let builder = builder.part(self.part_index, self.num_parts);
        if self.equal_parts { builder.equal_parts() } else { builder }
    }

    /// The images of a list, whose paths are relative to `root`.
    ///
    /// # Errors
    /// The list cannot be read or has a line that is no entry, or an option is wrong.
    pub fn open_list(&self, list: impl AsRef<Path>, root: impl Into<PathBuf>) -> Result<Loader, DataError> {
        let entries = read_list(list.as_ref())?.entries;
        self.part(self.loader(ImageFiles::new(root, entries, self.pipeline()?))).build()
    }

    /// The images of a folder and of those in it: each folder is a class, numbered in the order of their paths.
    ///
    /// # Errors
    /// The folder cannot be read or has no images, or an option is wrong.
    pub fn open_folder(&self, root: impl Into<PathBuf>) -> Result<Loader, DataError> {
        let root = root.into();
        let entries = folder_entries(&root, true, &IMAGE_ENDINGS)?;
        self.part(self.loader(ImageFiles::new(root, entries, self.pipeline()?))).build()
    }
}

/// A list of which every line is an entry.
fn read_list(path: &Path) -> Result<ImageList, DataError> {
    let list = ImageList::read(path)?;
    match list.skipped.first() {
        None => Ok(list),
        Some(first) => {
            let place = crate::ExamplePlace::file(path).record(first.line);
            Err(DataError::at(place, crate::Cause::Format(first.why.into())))
        }
    }
}

/// Images in files of records, as MXNet's `ImageRecordIter`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ImageRecordOptions {
    /// Files of records, separated by `;`; folders and patterns with `*` and `?` stand for the files they hold.
    pub path_imgrec: String,
    /// Their index files. Without, those beside the files are taken if there are any, and else the files are scanned.
    pub path_imgidx: String,
    /// A list whose labels are taken in place of those in the records, by the images' numbers.
    pub path_imglist: String,
    /// A file with a mean for every value. It is computed and written if it is not there.
    pub mean_img: String,
    /// Shuffles within blocks of so many MiB, and the blocks; 0 shuffles all images.
    pub shuffle_chunk_size: u32,
    /// The options of images.
    pub images: ImageOptions,
}

const MIB: u64 = 1 << 20;

/// Options of files.
const FILES: [&str; 5] = ["path_imgrec", "path_imgidx", "path_imglist", "mean_img", "shuffle_chunk_size"];

impl ImageRecordOptions {
    /// Sets an option by the name that MXNet has for it, those of images, augmentation and normalisation included.
    ///
    /// # Errors
    /// There is no such option, or the text is no value of it.
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), DataError> {
        let ImageOptions { augment, normalise, .. } = &mut self.images;
        match name {
            "path_imgrec" => self.path_imgrec = text.into(),
            "path_imgidx" => self.path_imgidx = text.into(),
            "path_imglist" => self.path_imglist = text.into(),
            "mean_img" => self.mean_img = text.into(),
            "shuffle_chunk_size" => self.shuffle_chunk_size.assign(name, text)?,
            _ if AugmentOptions::NAMES.contains(&name) => augment.set(name, text)?,
            _ if NormaliseOptions::NAMES.contains(&name) => normalise.set(name, text)?,
            _ if ImageOptions::NAMES.contains(&name) => self.images.set(name, text)?,
            _ => {
                let known = [&FILES[..], ImageOptions::NAMES, AugmentOptions::NAMES, NormaliseOptions::NAMES].concat();
                return Err(unknown("ImageRecordIter", name, &known));
            }
        }
        Ok(())
    }

    /// # Errors
    /// A file cannot be read or an index does not fit it, records are damaged and that is to be an error, there are too
    /// few images, or an option is wrong.
    pub fn open(&self) -> Result<Loader, DataError> {
        let options = &self.images;
        let records = self.records()?;
        if let (OnError::Fail, Some(damage)) = (options.on_error, records.damage().next()) {
            return Err(damage.error);
        }
        if self.shuffle_chunk_size > 0 && !options.shuffle {
            return Err(DataError::options("shuffle_chunk_size", "nothing is shuffled"));
        }
        let total = records.total();
        let damage = records.damage().map(|damage| damage.error).collect();
        let blocks = (self.shuffle_chunk_size > 0).then(|| self.blocks(&records));
        let mut images = ImageRecords::new(&self.path_imgrec, records, options.pipeline()?);
        if !self.path_imglist.is_empty() {
            images = images.with_labels(read_list(Path::new(&self.path_imglist))?);
        }
        if !self.mean_img.is_empty() {
            let shape = images.shape();
            // Options that contradict a mean are found before all images are read.
            options.pipeline()?.with_mean_image(shape, &vec![0.0; shape.iter().product()])?;
            let (shape, values) = self.mean(&images)?;
            images = images.map_pipeline(|pipeline| pipeline.with_mean_image(shape, &values))?;
        }
        let mut builder = options.loader(images).damage(damage);
        if let Some(ends) = blocks {
            builder = builder.shuffle(Shuffle::Blocks { seed: options.seed, ends: ends.into() });
        }
        if options.equal_parts {
            builder = builder.equal_to(self.largest_part(total)?);
        }
        builder.build()
    }

    fn records(&self) -> Result<RecordSet, DataError> {
        let index = match self.path_imgidx.as_str() {
            "" => IndexFiles::Beside,
            list => IndexFiles::List(list.into()),
        };
        let ImageOptions { num_parts: parts, part_index: part, .. } = self.images;
        RecordSet::open(&self.path_imgrec, &RecordSetOptions { parts, part, index })
    }

    /// Images of the largest part.
    fn largest_part(&self, total: Option<u64>) -> Result<usize, DataError> {
        let parts = self.images.num_parts;
        if let Some(total) = total {
            return Ok(total.div_ceil(parts as u64) as usize);
        }
        let of = |part_index| {
            let images = ImageOptions { part_index, ..self.images.clone() };
            Ok(ImageRecordOptions { images, ..self.clone() }.records()?.len())
        };
        Ok((0..parts).map(of).collect::<Result<Vec<_>, DataError>>()?.into_iter().max().unwrap_or(0))
    }

    /// Numbers of images up to the ends of blocks.
    fn blocks(&self, records: &RecordSet) -> Vec<u32> {
        let limit = u64::from(self.shuffle_chunk_size) * MIB;
        let (mut ends, mut bytes) = (vec![], 0);
        for i in 0..records.len() {
            bytes += records.stored_len(i);
            if bytes >= limit || i + 1 == records.len() {
                ends.push(i as u32 + 1);
                bytes = 0;
            }
        }
        ends
    }

    fn mean(&self, images: &ImageRecords) -> Result<mean::MeanImage, DataError> {
        let path = Path::new(&self.mean_img);
        if path.exists() {
            return mean::read(path);
        }
        if self.images.num_parts > 1 {
            let why = "does not exist, and only all images give their mean: create it with `num_parts` 1";
            return Err(DataError::options("mean_img", why));
        }
        let computed = mean::compute(images)?;
        mean::write(path, &computed)?;
        Ok(computed)
    }
}
