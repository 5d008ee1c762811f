//! Asking for memory before it is used.
//!
//! A push writes where a worker on another core has read not long ago, and releases a lock
//! afterwards, which waits until the cache lines have come. The worker in turn reads what was just
//! written. Asked for some pushes ahead, the lines are there.

const LINE: usize = 64;

/// Asks for the cache lines of a value at `address`, which will be written soon.
#[inline(always)]
pub fn for_writing<T>(address: *const T) {
    (0..size_of::<T>()).step_by(LINE).for_each(|offset| line::<true>(address.cast::<u8>().wrapping_add(offset)));
}

/// Asks for the cache lines of a value at `address`, which will be read soon.
#[inline(always)]
pub fn for_reading<T>(address: *const T) {
    (0..size_of::<T>()).step_by(LINE).for_each(|offset| line::<false>(address.cast::<u8>().wrapping_add(offset)));
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
fn line<const WRITE: bool>(address: *const u8) {
    // SAFETY: the instructions change nothing but caches, for any address; processors that do not
    // have the first one ignore it.
    unsafe {
        if WRITE {
            std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags));
        } else {
            std::arch::asm!("prefetcht0 [{}]", in(reg) address, options(nostack, preserves_flags));
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline(always)]
fn line<const WRITE: bool>(_address: *const u8) {}
