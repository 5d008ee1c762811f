//! Images: decoding, augmentation and normalisation, on files that the tests make.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod augment;
mod decode;
mod files;
mod mutate;
mod normalise;
