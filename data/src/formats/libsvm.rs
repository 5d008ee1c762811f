//! LibSVM: in each row labels and `index:value` pairs, for examples of which most values are 0.

use std::path::PathBuf;

use tensorc_abi::DType;
use tensorc_runtime::TensorMut;

use super::text::{TextNumber, TextRows, not_a_number, shown};
use super::{label_dims, last_batch};
use crate::dataset::{DataDesc, Dataset, Sample};
use crate::error::{Cause, DataError};
use crate::iter::DEFAULT_PREFETCH;
use crate::iter::Loader;
use crate::options::options;

options! {
    "LibSVMIter",
    /// Options of a LibSVM file, with the names and defaults of MXNet's `LibSVMIter`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct LibSvmOptions {
        /// The file of examples, in LibSVM format.
        pub data_libsvm: PathBuf = PathBuf::new(),
        /// One extent: the number of features. Required.
        pub data_shape: Vec<u64> = vec![],
        /// A file whose features are the labels, a row for each of the data; the labels of both files are not used then.
        pub label_libsvm: Option<PathBuf> = None,
        /// One extent: the number of labels with which a row begins, or of features of the file of labels. A single label
        /// has no axis: a batch of them is a vector.
        pub label_shape: Vec<u64> = vec![1],
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

impl LibSvmOptions {
    /// The batches of the file.
    ///
    /// # Errors
    /// As [`LibSvmDataset::open`]; there are too few rows for a batch, or there is no such part.
    pub fn open(&self) -> Result<Loader, DataError> {
        let builder = Loader::of(LibSvmDataset::open(self)?, self.batch_size).last(last_batch(self.round_batch));
        builder.part(self.part_index, self.num_parts).prefetch(self.prefetch_buffer).build()
    }
}

/// What begins a comment, which goes on to the end of the line.
const COMMENT: u8 = b'#';

/// The rows of a LibSVM file. Indices count from 0 and ascend. Examples are dense and f32: tensors cannot be sparse yet.
#[derive(Debug)]
pub struct LibSvmDataset {
    rows: TextRows,
    label_rows: Option<TextRows>,
    data: DataDesc,
    label: DataDesc,
}

impl LibSvmDataset {
    /// Opens the files that options name and finds their rows.
    ///
    /// # Errors
    /// A file cannot be read, has no rows, or there are fewer labels than rows; a shape has not one extent.
    pub fn open(options: &LibSvmOptions) -> Result<LibSvmDataset, DataError> {
        for (name, shape) in [("data_shape", &options.data_shape), ("label_shape", &options.label_shape)] {
            if shape.len() != 1 {
                return Err(DataError::options(name, format!("{shape:?} has not one extent")));
            }
        }
        let rows = TextRows::open(&options.data_libsvm, Some(COMMENT))?;
        let beside = |path: &PathBuf| rows.open_beside(path, Some(COMMENT));
        let label_rows = options.label_libsvm.as_ref().map(beside).transpose()?;
        let data = DataDesc::new(&options.data_name, DType::F32, &options.data_shape);
        let label = DataDesc::new(&options.label_name, DType::F32, &label_dims(&options.label_shape));
        Ok(LibSvmDataset { rows, label_rows, data, label })
    }
}

impl Dataset for LibSvmDataset {
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
        let ([data], [label]) = (data, labels) else { return Ok(()) };
        let mut own = |label| self.rows.read(sample.index, |row| parse_row(row, label, data.data));
        match &self.label_rows {
            None => own(Some(&mut *label.data)),
            Some(labels) => {
                own(None)?;
                labels.read(sample.index, |row| parse_row(row, None, label.data))
            }
        }
    }
}

const SIZE: usize = size_of::<f32>();

fn number(text: &[u8]) -> Result<f32, Cause> {
    f32::parse(text).ok_or_else(|| not_a_number(text, DType::F32))
}

/// Writes a row's features densely, and its labels if they are wanted, exactly as many as there is room for.
fn parse_row(row: &[u8], labels: Option<&mut [u8]>, features: &mut [u8]) -> Result<(), Cause> {
    let row = row.split(|byte| *byte == COMMENT).next().unwrap_or_default();
    let mut words = row.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).peekable();
    let (mut labels, mut found) = (labels, 0);
    while let Some(word) = words.next_if(|word| !word.contains(&b':')) {
        let value = number(word)?;
        let room = labels.as_deref_mut().and_then(|labels| labels.get_mut(found * SIZE..(found + 1) * SIZE));
        room.into_iter().for_each(|place| value.store(place));
        found += 1;
    }
    if let Some(room) = labels.map(|labels| labels.len() / SIZE).filter(|room| *room != found) {
        return Err(Cause::Shape { expected: format!("{room} labels"), found: found.to_string() });
    }
    features.fill(0);
    let extent = features.len() / SIZE;
    let mut least = 0;
    for word in words {
        let malformed = || Cause::Format(format!("{} is not index:value", shown(word)));
        let colon = word.iter().position(|byte| *byte == b':').ok_or_else(malformed)?;
        let index = u64::parse(&word[..colon]).ok_or_else(malformed)?;
        if index >= extent as u64 {
            return Err(Cause::Format(format!("index {index} of {} is not below {extent}", shown(word))));
        }
        let index = index as usize;
        if index < least {
            return Err(Cause::Format(format!("index {index} of {} is not above the one before it", shown(word))));
        }
        number(&word[colon + 1..])?.store(&mut features[index * SIZE..(index + 1) * SIZE]);
        least = index + 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_labels_and_pairs() {
        let parsed = |row: &str, labels: usize| {
            let (mut label, mut data) = (vec![7; labels * SIZE], vec![7; 4 * SIZE]);
            let values = |bytes: &[u8]| -> Vec<f32> {
                bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect()
            };
            let wanted = (labels > 0).then_some(&mut *label);
            parse_row(row.as_bytes(), wanted, &mut data).map_err(|cause| cause.to_string())?;
            Ok::<_, String>((values(&label), values(&data)))
        };
        assert_eq!(parsed("1.5 0:2\t3:-0.5 # 9:9", 1), Ok((vec![1.5], vec![2., 0., 0., -0.5])));
        assert_eq!(parsed("1 2 3", 3), Ok((vec![1., 2., 3.], vec![0.; 4])));
        assert_eq!(parsed("1 1:4", 0), Ok((vec![], vec![0., 4., 0., 0.])));
        assert_eq!(parsed("1:4", 0), Ok((vec![], vec![0., 4., 0., 0.])));
        for (row, why) in [
            ("0:1", "expected 1 labels, found 0"),
            ("1 2 0:1", "expected 1 labels, found 2"),
            ("x 0:1", "`x` is not a number"),
            ("1 0:x", "`x` is not a number"),
            ("1 0:1e99", "`1e99` does not fit f32"),
            ("1 0:", "`` is not a number"),
            ("1 :5", "`:5` is not index:value"),
            ("1 -1:5", "`-1:5` is not index:value"),
            ("1 0:5 3", "`3` is not index:value"),
            ("1 qid:5", "`qid:5` is not index:value"),
            ("1 4:5", "index 4 of `4:5` is not below 4"),
            ("1 99999999999999999999:5", "`99999999999999999999:5` is not index:value"),
            ("1 2:5 2:6", "index 2 of `2:6` is not above the one before it"),
            ("1 2:5 1:6", "index 1 of `1:6` is not above the one before it"),
        ] {
            assert_eq!(parsed(row, 1).unwrap_err(), why, "{row}");
        }
    }
}
