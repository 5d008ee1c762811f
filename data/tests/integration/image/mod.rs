//! Images: decoding, augmentation and normalisation, on files that the tests make.

mod augment;
mod decode;
mod files;
mod mutate;
mod normalise;
