//! Mean images: files of one array as MXNet saves them, and the mean of a source's images.
//!
//! A file is a list of arrays: u64 0x112, u64 0, u64 count, the arrays, then the names. An array is u32 0xF993FAC9, i32
//! storage (0 is dense), i32 rank, i64 extents, i32 device, i32 device number, i32 type (0 is f32), and the elements.

use std::path::Path;

use rayon::prelude::*;

use super::records::ImageRecords;
use crate::dataset::Dataset;
use crate::error::{Cause, DataError, ExamplePlace};

const LIST: u64 = 0x112;
const DENSE: u32 = 0xF993_FAC9;
const F32: u32 = 0;
/// Device and its number.
const CPU: [u32; 2] = [1, 0];

/// A mean for every value of an image: channels, height and width, and the values in that order.
pub type MeanImage = ([usize; 3], Vec<f32>);

/// Reads a file of exactly one dense f32 array of rank 3.
///
/// # Errors
/// The file cannot be read or holds something else.
pub fn read(path: &Path) -> Result<MeanImage, DataError> {
    let bytes = std::fs::read(path).map_err(|e| DataError::io(path, e))?;
    parse(&bytes).ok_or_else(|| {
        let cause = Cause::Format("not a list of one array f32[channels, height, width]".into());
        DataError::at(ExamplePlace::file(path), cause)
    })
}

fn parse(bytes: &[u8]) -> Option<MeanImage> {
    let mut rest = bytes;
    let mut word = || -> Option<u32> {
        let (word, behind) = rest.split_first_chunk::<4>()?;
        rest = behind;
        Some(u32::from_le_bytes(*word))
    };
    let mut long = || Some(u64::from(word()?) | u64::from(word()?) << 32);
    let head = [long()?, long()?, long()?];
    let kind = [word()?, word()?, word()?];
    let mut long = || Some(u64::from(word()?) | u64::from(word()?) << 32);
    let shape = [long()?, long()?, long()?];
    let [_, _, dtype] = [word()?, word()?, word()?];
    if head != [LIST, 0, 1] || kind != [DENSE, 0, 3] || dtype != F32 {
        return None;
    }
    let shape = shape.map(|extent| usize::try_from(extent).ok());
    let shape = [shape[0]?, shape[1]?, shape[2]?];
    let count = shape.iter().try_fold(1usize, |n, extent| n.checked_mul(*extent))?;
    let values = rest.get(..count.checked_mul(4)?)?;
    Some((shape, values.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()))
}

/// Writes a file that [`read`] reads.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path, (shape, values): &MeanImage) -> Result<(), DataError> {
    let mut bytes: Vec<u8> = [LIST, 0, 1].into_iter().flat_map(u64::to_le_bytes).collect();
    bytes.extend([DENSE, 0, 3].into_iter().flat_map(u32::to_le_bytes));
    bytes.extend(shape.iter().flat_map(|extent| (*extent as u64).to_le_bytes()));
    bytes.extend(CPU.into_iter().chain([F32]).flat_map(u32::to_le_bytes));
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    let name = b"mean_img";
    bytes.extend([1, name.len() as u64].into_iter().flat_map(u64::to_le_bytes));
    bytes.extend(name);
    // Whoever reads meanwhile sees the whole file or none.
    let unfinished = std::path::PathBuf::from(format!("{}.part", path.display()));
    let written = std::fs::write(&unfinished, bytes).and_then(|()| std::fs::rename(&unfinished, path));
    written.map_err(|e| DataError::io(path, e))
}

/// The mean of all images of a source after augmentation. Sums are whole numbers, so that the order does not matter.
///
/// # Errors
/// An image cannot be read.
pub fn compute(images: &ImageRecords) -> Result<MeanImage, DataError> {
    let shape = images.shape();
    let [channels, height, width] = shape;
    let count = channels * height * width;
    let add = |mut sums: Vec<u64>, index: usize| -> Result<Vec<u64>, DataError> {
        images.with_pixels(index, |pixels| {
            sums.iter_mut().zip(pixels).for_each(|(sum, pixel)| *sum += u64::from(*pixel));
            sums
        })
    };
    let zeros = || vec![0u64; count];
    let join = |mut a: Vec<u64>, b: Vec<u64>| {
        a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
        Ok(a)
    };
    let sums = (0..images.len()).into_par_iter().try_fold(zeros, add).try_reduce(zeros, join)?;
    let mean = |at: usize| (sums[at] as f64 / images.len().max(1) as f64) as f32;
    let value = |i: usize| mean(i % (height * width) * channels + i / (height * width));
    Ok((shape, (0..count).map(value).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_as_written_and_others_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mean.bin");
        let mean = ([1, 2, 3], vec![1.5, 2.0, -3.0, 4.0, 5.0, 6.0]);
        write(&path, &mean).unwrap();
        assert_eq!(read(&path).unwrap(), mean);
        let bytes = std::fs::read(&path).unwrap();
        for length in 0..72 + 24 {
            assert_eq!(parse(&bytes[..length]), None, "{length} bytes");
        }
        assert!(read(&folder.path().join("none")).unwrap_err().to_string().contains("none"));
    }
}
