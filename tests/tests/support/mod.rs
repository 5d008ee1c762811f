//! What several tests share.

pub mod backend;
pub mod cache;
pub mod compare;
pub mod counted;
pub mod launches;
pub mod npz;

/// The folder of examples.
pub fn examples() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples")
}
