//! What measurements and tests share: networks written as symbols, their training, and what is measured on GPUs.

#![warn(missing_docs)]

pub mod figures;
pub mod gpu;
pub mod nets;
pub mod summary;
pub mod training;
