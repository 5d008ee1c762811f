//! Images in files of records.

use tensorc_runtime::TensorMut;

use super::pipeline::{ImagePipeline, ImageScratch};
use crate::dataset::{DataDesc, Dataset, Sample};
use crate::error::{Cause, DataError};
use crate::list::ImageList;
use crate::record::{ImageRecord, RecordSet};

/// The images of a set of records.
pub struct ImageRecords {
    name: String,
    records: RecordSet,
    pipeline: ImagePipeline,
    /// Labels by the numbers of images, ascending, in place of those of the records.
    labels: Option<Vec<(u64, Vec<f32>)>>,
}

impl ImageRecords {
    /// A dataset of the records of one or more files.
    pub fn new(name: impl Into<String>, records: RecordSet, pipeline: ImagePipeline) -> ImageRecords {
        ImageRecords { name: name.into(), records, pipeline, labels: None }
    }

    /// Takes the labels of a list, by the images' numbers, in place of those in the records.
    #[must_use]
    pub(crate) fn with_labels(self, list: ImageList) -> ImageRecords {
        let mut labels: Vec<(u64, Vec<f32>)> = list.entries.into_iter().map(|e| (e.index, e.labels)).collect();
        labels.sort_by_key(|(index, _)| *index);
        ImageRecords { labels: Some(labels), ..self }
    }

    /// The records.
    pub fn records(&self) -> &RecordSet {
        &self.records
    }

    /// The pixels of an image as they come out of augmentation in the first epoch.
    pub(super) fn with_pixels<R>(&self, index: usize, f: impl FnOnce(&[u8]) -> R) -> Result<R, DataError> {
        self.pipeline.with_scratch(|ImageScratch { file, work }| {
            self.records.read(index, file)?;
            let draws = self.pipeline.draws(0, self.records.key(index));
            let pixels = ImageRecord::unpack(file).and_then(|record| self.pipeline.pixels(record.image, draws, work));
            pixels.map(f).map_err(|cause| DataError::at(self.records.place(index), cause))
        })
    }

    pub(super) fn map_pipeline(
        self,
        f: impl FnOnce(ImagePipeline) -> Result<ImagePipeline, DataError>,
    ) -> Result<ImageRecords, DataError> {
        Ok(ImageRecords { pipeline: f(self.pipeline)?, ..self })
    }

    /// Channels, height and width of the images that come out.
    pub(super) fn shape(&self) -> [usize; 3] {
        self.pipeline.shape().map(|n| n as usize)
    }

    fn write(
        &self,
        record: &ImageRecord<'_>,
        sample: Sample,
        work: &mut crate::image::Workspace,
        (data, labels): (&mut TensorMut<'_>, &mut TensorMut<'_>),
    ) -> Result<(), Cause> {
        match &self.labels {
            None => self.pipeline.write_labels(record.labels.len(), record.labels.iter(), labels)?,
            Some(known) => {
                let at = known.binary_search_by_key(&record.id, |(index, _)| *index);
                let missing = |_| Cause::Index(format!("the list has no image {}", record.id));
                let found = &known[at.map_err(missing)?].1;
                self.pipeline.write_labels(found.len(), found.iter().copied(), labels)?;
            }
        }
        let draws = self.pipeline.draws(sample.epoch, self.records.key(sample.index));
        self.pipeline.write(record.image, draws, work, data)
    }
}

impl Dataset for ImageRecords {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn len(&self) -> usize {
        self.records.len()
    }

    fn data(&self) -> &[DataDesc] {
        self.pipeline.data()
    }

    fn labels(&self) -> &[DataDesc] {
        self.pipeline.labels()
    }

    fn read(&self, sample: Sample, data: &mut [TensorMut<'_>], labels: &mut [TensorMut<'_>]) -> Result<(), DataError> {
        self.pipeline.with_scratch(|ImageScratch { file, work }| {
            self.records.read(sample.index, file)?;
            let record = ImageRecord::unpack(file);
            let written = record.and_then(|r| self.write(&r, sample, work, (&mut data[0], &mut labels[0])));
            written.map_err(|cause| DataError::at(self.records.place(sample.index), cause))
        })
    }
}
