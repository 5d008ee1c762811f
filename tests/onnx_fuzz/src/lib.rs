//! Random and damaged ONNX models, for tests.
//!
//! [`mutate`] damages models as messages, [`trial`] takes a model file through the public interface, [`workers`] does that
//! in processes of their own, which may die.

pub mod mutate;
pub mod trial;
pub mod workers;
