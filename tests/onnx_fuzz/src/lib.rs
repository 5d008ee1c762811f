//! Random and damaged ONNX models, for tests.
//!
//! [`generate()`] draws valid models; what the interpreter, compiled code ([`compiled`]) and another implementation
//! ([`exchange`]) make of them is compared ([`compare`]). [`mutate()`] damages models as messages, [`trial`] takes a model file
//! through the public interface, [`workers`] does that in processes of their own, which may die.

pub mod compare;
pub mod compiled;
pub mod draw;
pub mod evaluate;
pub mod exchange;
pub mod generate;
pub mod known;
pub mod model;
pub mod mutate;
pub mod operators;
pub mod trial;
pub mod workers;

pub use generate::generate;
pub use mutate::mutate;
