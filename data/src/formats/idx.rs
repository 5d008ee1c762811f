//! The idx files in which MNIST and data sets like it are distributed: a big-endian header and elements.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use tensorc_abi::DType;

use super::{inflated_limit, read_elements, read_header, tensor};
use crate::HostTensor;
use crate::error::{Cause, DataError, ExamplePlace};

/// With which files begin that gzip compressed.
const GZIP: [u8; 2] = [0x1F, 0x8B];

/// Reads an idx file, compressed by gzip or not: elements of its type, in the shape it names.
///
/// # Errors
/// The file cannot be read, is no idx file, or does not hold what its header says.
pub fn read_idx(path: impl AsRef<Path>) -> Result<HostTensor, DataError> {
    let path = path.as_ref();
    let open = || -> Result<HostTensor, Cause> {
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        let mut file = BufReader::new(file);
        match file.fill_buf()?.starts_with(&GZIP) {
            true => parse(MultiGzDecoder::new(file), inflated_limit(size)),
            false => parse(file, u64::MAX),
        }
    };
    open().map_err(|cause| DataError::at(ExamplePlace::file(path), cause))
}

fn parse(mut reader: impl Read, most: u64) -> Result<HostTensor, Cause> {
    let mut magic = [0; 4];
    read_header(&mut reader, &mut magic)?;
    let [0, 0, code, rank] = magic else {
        return Err(Cause::Format("not an idx file: it must begin with two zeros".into()));
    };
    let dtype = match code {
        0x08 => DType::U8,
        0x09 => DType::I8,
        0x0B => DType::I16,
        0x0C => DType::I32,
        0x0D => DType::F32,
        0x0E => DType::F64,
        _ => return Err(Cause::Format(format!("element type {code:#04x} is unknown"))),
    };
    let mut extents = vec![0; 4 * usize::from(rank)];
    read_header(&mut reader, &mut extents)?;
    let dims: Vec<u64> = extents.as_chunks::<4>().0.iter().map(|d| u64::from(u32::from_be_bytes(*d))).collect();
    let bytes = read_elements(reader, dtype, &dims, true, most)?;
    tensor(dtype, &dims, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_big_endian_and_headers_are_checked() {
        let file = [0, 0, 0x0B, 2, 0, 0, 0, 2, 0, 0, 0, 1, 1, 2, 255, 254];
        let tensor = parse(&file[..], u64::MAX).unwrap();
        assert_eq!((tensor.dtype(), tensor.dims()), (DType::I16, &[2, 1][..]));
        assert_eq!(tensor.to_vec::<i16>().unwrap(), [258, -2]);
        for (wrong, why) in [
            (&file[..15], "3 bytes of elements do not fill [2, 1] of i16"),
            (&[&file[..], &[0, 0]].concat(), "more than 4 bytes of elements do not fill [2, 1] of i16"),
            (&file[..10], "the file ends inside of its header"),
            (&file[..3], "the file ends inside of its header"),
            (&[0, 0, 7, 0][..], "element type 0x07 is unknown"),
            (&[1, 0, 8, 0][..], "not an idx file: it must begin with two zeros"),
            (&[&[0, 0, 8, 3][..], &[255; 12]].concat(), "[4294967295, 4294967295, 4294967295] of u8 is too large"),
        ] {
            assert_eq!(parse(wrong, u64::MAX).unwrap_err().to_string(), why);
        }
    }
}
