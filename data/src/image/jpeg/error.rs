//! Why a JPEG file is not decoded.

/// Why a file was not decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JpegError {
    /// A file of a kind that this decoder is not made for. It may be a good one.
    #[error("a kind of JPEG file that is not supported: {0}")]
    Unsupported(&'static str),
    /// Bytes that no decoder can use in full, or a region outside of the image.
    #[error("{0}")]
    Invalid(&'static str),
    /// More pixels than the caller allows.
    #[error("an image of {width}x{height} pixels, which is more than {limit}")]
    TooLarge {
        /// The width in pixels.
        width: usize,
        /// The height in pixels.
        height: usize,
        /// The largest number of pixels allowed.
        limit: u64,
    },
    /// Memory for the pixels cannot be had.
    #[error("no memory for {0} values")]
    Memory(usize),
}

/// Makes a buffer hold at least `length` values; it never shrinks.
pub(super) fn grow<T: Clone + Default>(buffer: &mut Vec<T>, length: usize) -> Result<(), JpegError> {
    if buffer.len() < length {
        buffer.try_reserve(length - buffer.len()).map_err(|_| JpegError::Memory(length))?;
        buffer.resize(length, T::default());
    }
    Ok(())
}
