//! What library kernels compute, found in clusters of primitives.

pub mod attention;
pub mod contract;
