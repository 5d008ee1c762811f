//! Asking for memory before it is written.
//!
//! A push writes where a worker on another core has read not long ago, and releases a lock
//! afterwards, which waits until the cache lines have come. Asked for some pushes ahead, they are
//! there.

const LINE: usize = 64;

/// Asks for the cache lines of a value at `address`, which will be written soon.
#[inline(always)]
pub fn for_writing<T>(address: *const T) {
    (0..size_of::<T>()).step_by(LINE).for_each(|offset| line(address.cast::<u8>().wrapping_add(offset)));
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
fn line(address: *const u8) {
    // SAFETY: the instruction changes nothing but caches, for any address; processors that do not
    // have it ignore it.
    unsafe { std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags)) };
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline(always)]
fn line(_address: *const u8) {}
