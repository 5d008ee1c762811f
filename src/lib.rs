//! The public face of tensorc.
pub use tensorc_abi as abi;
