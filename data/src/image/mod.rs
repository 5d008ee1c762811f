//! Images: decoding of their file formats.

pub mod jpeg;
