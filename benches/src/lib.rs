//! What measurements and tests share: networks written as symbols.

pub mod nets;
