//! What several tests share.

pub mod cache;
pub mod compare;
pub mod npz;
