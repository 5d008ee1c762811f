//! Everything that reads files, each as a function that takes any bytes: whatever they are, it returns, and what it
//! accepts holds what its format promises. Fuzzers (`fuzz`) and a test with seeded damage call the same functions.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod artifact;
mod code;
mod data;
mod image;
mod mxnet;
mod text;

/// A reader of one format.
pub struct FileReader {
    /// The name of the fuzz target.
    pub name: &'static str,
    /// Small valid files.
    pub files: fn() -> Vec<Vec<u8>>,
    /// Makes checksums right, where the format has them.
    pub seal: Option<fn(&mut Vec<u8>)>,
    /// Reads bytes, whether they are a file of the format or not; says whether they were taken.
    pub read: fn(&[u8]) -> bool,
    /// Bytes of memory that reading takes at most, for each byte of the file, beside [`MEMORY`].
    pub memory: u64,
}

/// Bytes of memory that reading takes at most, whatever is read: buffers, and what shapes may demand by themselves.
pub const MEMORY: u64 = 8 << 20;

/// All of them.
pub const READERS: [FileReader; 16] = [
    artifact::ARTIFACT,
    artifact::IMAGE,
    artifact::MANIFEST,
    code::CODE,
    data::CSV,
    data::IDX,
    data::LIBSVM,
    data::LISTS,
    data::NPY,
    data::NPZ,
    data::RECORDIO,
    image::PICTURE,
    mxnet::PARAMS,
    mxnet::SYMBOL,
    text::MODULE,
    text::PLAN,
];

/// Calls the reader of a name.
///
/// # Panics
/// There is no such reader, or it breaks a promise.
pub fn read(name: &str, bytes: &[u8]) -> bool {
    let reader = READERS.iter().find(|reader| reader.name == name);
    (reader.unwrap_or_else(|| panic!("there is no reader {name}")).read)(bytes)
}
