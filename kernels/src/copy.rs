//! Copies of long arrays by non-temporal stores.

/// Shorter copies stay in a processor's own cache, where whoever reads them next may find them.
pub const NON_TEMPORAL_COPY: usize = 1 << 20;

/// Copies bytes. On x86-64, copies of [`NON_TEMPORAL_COPY`] bytes or more use non-temporal stores: they do not read the lines they
/// write, which saves a third of the memory traffic, and do not evict others from the caches.
///
/// # Panics
/// If the lengths differ.
pub fn copy_non_temporal(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len(), "a copy has the length of its source");
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if to.len() >= NON_TEMPORAL_COPY {
        return stream(to, from);
    }
    to.copy_from_slice(from);
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn stream(to: &mut [u8], from: &[u8]) {
    use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const LINE: usize = 64;
    const VECTOR: usize = size_of::<__m128i>();
    let head = to.as_ptr().align_offset(LINE).min(to.len());
    let lines = (to.len() - head) / LINE;
    let tail = head + lines * LINE;
    to[..head].copy_from_slice(&from[..head]);
    to[tail..].copy_from_slice(&from[tail..]);
    let (target, source) = (to[head..tail].as_mut_ptr(), from[head..tail].as_ptr());
    for at in (0..lines * LINE).step_by(VECTOR) {
        // SAFETY: both ranges have `lines` whole lines, of which the target's are aligned; SSE2 is part of x86-64.
        unsafe {
            let vector = _mm_loadu_si128(source.add(at).cast());
            _mm_stream_si128(target.add(at).cast(), vector);
        }
    }
    // SAFETY: SSE2 is part of x86-64. SFENCE orders the non-temporal stores before later stores.
    unsafe { _mm_sfence() };
}
