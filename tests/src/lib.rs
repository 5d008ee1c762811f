//! What the integration tests in `tests/tests` stand on: an interpreter of PTX.

pub mod ptx;
