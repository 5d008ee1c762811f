//! CSV: an example in each row, its values between commas.

use std::path::PathBuf;

use tensorc_abi::DType;
use tensorc_runtime::TensorMut;

use super::text::{TextRows, parse_row};
use super::{label_dims, last_batch};
use crate::dataset::{DataDesc, Dataset, Sample};
use crate::error::DataError;
use crate::iter::DEFAULT_PREFETCH;
use crate::iter::Loader;
use crate::options::options;

options! {
    "CSVIter",
    /// Options of a CSV file, with the names and defaults of MXNet's `CSVIter`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct CsvOptions {
        /// The file of examples.
        pub data_csv: PathBuf = PathBuf::new(),
        /// Shape of an example; a row has as many values. Required.
        pub data_shape: Vec<u64> = vec![],
        /// Labels, a row for each of the data; rows behind those are not used. Without it, labels are 0.
        pub label_csv: Option<PathBuf> = None,
        /// Shape of an example's labels. A single one has no axis: a batch of them is a vector.
        pub label_shape: Vec<u64> = vec![1],
        /// Of data and labels.
        pub dtype: DType = DType::F32,
        /// Required.
        pub batch_size: usize = 0,
        /// Whether the last batch is filled up from the next epoch; else with examples of the batch before.
        pub round_batch: bool = true,
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

impl CsvOptions {
    /// The batches of the file.
    ///
    /// # Errors
    /// As [`CsvDataset::open`]; there are too few rows for a batch, or there is no such part.
    pub fn open(&self) -> Result<Loader, DataError> {
        let builder = Loader::of(CsvDataset::open(self)?, self.batch_size).last(last_batch(self.round_batch));
        builder.part(self.part_index, self.num_parts).prefetch(self.prefetch_buffer).build()
    }
}

/// The rows of a CSV file. There is no line of names, and values are not quoted.
#[derive(Debug)]
pub struct CsvDataset {
    rows: TextRows,
    label_rows: Option<TextRows>,
    data: DataDesc,
    label: DataDesc,
}

impl CsvDataset {
    /// Opens the files that options name and finds their rows.
    ///
    /// # Errors
    /// A file cannot be read, has no rows, or there are fewer labels than rows; the shape is missing.
    pub fn open(options: &CsvOptions) -> Result<CsvDataset, DataError> {
        if options.data_shape.is_empty() {
            return Err(DataError::options("data_shape", "the shape of an example is missing"));
        }
        let rows = TextRows::open(&options.data_csv, None)?;
        let label_rows = options.label_csv.as_ref().map(|path| rows.open_beside(path, None)).transpose()?;
        let data = DataDesc::new(&options.data_name, options.dtype, &options.data_shape);
        let label = DataDesc::new(&options.label_name, options.dtype, &label_dims(&options.label_shape));
        Ok(CsvDataset { rows, label_rows, data, label })
    }
}

impl Dataset for CsvDataset {
    fn name(&self) -> String {
        self.rows.path().display().to_string()
    }

    fn len(&self) -> usize {
        self.rows.len()
    }

    fn data(&self) -> &[DataDesc] {
        std::slice::from_ref(&self.data)
    }

    fn labels(&self) -> &[DataDesc] {
        std::slice::from_ref(&self.label)
    }

    fn read(&self, sample: Sample, data: &mut [TensorMut<'_>], labels: &mut [TensorMut<'_>]) -> Result<(), DataError> {
        let fill = |rows: &TextRows, tensor: &mut TensorMut<'_>| {
            rows.read(sample.index, |row| parse_row(tensor.dtype, row, tensor.data))
        };
        data.iter_mut().try_for_each(|tensor| fill(&self.rows, tensor))?;
        labels.iter_mut().try_for_each(|tensor| match &self.label_rows {
            Some(rows) => fill(rows, tensor),
            None => {
                tensor.data.fill(0);
                Ok(())
            }
        })
    }
}
