//! What several tests share.

pub mod backend;
pub mod cache;
pub mod compare;
pub mod npz;
