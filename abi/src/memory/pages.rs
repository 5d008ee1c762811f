//! Pages of mapped memory: brought in before they are touched, and given back.
//!
//! Elsewhere than on Linux they come with the first access, and go with the mapping.

use std::ptr::NonNull;

/// A huge page of most processors, in bytes.
pub(super) const HUGE_PAGE: usize = 2 << 20;

/// Has the pages of a part of mapped memory there at once, which takes less time than a fault for each: huge ones as long as
/// the system has them at hand. Hosts of virtual machines take back what lies free in large blocks, and are slow to give it
/// again.
pub fn populate(part: &mut [u8]) {
    #[cfg(all(target_os = "linux", not(miri)))]
    linux::populate(NonNull::from(&mut *part).cast(), part.len());
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let _ = part;
}

/// Gives the pages that lie in a range back. What they held is lost.
pub(super) fn release(start: NonNull<u8>, len: usize) {
    #[cfg(all(target_os = "linux", not(miri)))]
    linux::release(start, len);
    _ = (start, len);
}

#[cfg(all(target_os = "linux", not(miri)))]
mod linux {
    use std::ptr::NonNull;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicI64, Ordering};
    use std::time::Instant;

    use super::HUGE_PAGE;

    /// Nanoseconds that huge pages may still take: those that come quickly add to it.
    static CREDIT: AtomicI64 = AtomicI64::new(2_000_000);

    /// What small pages take, about, in nanoseconds for a KiB.
    const SMALL_PAGES: i64 = 300;

    const PAGE: usize = 4096;

    /// Bytes of small pages that are asked for at once. Other threads that change mappings wait meanwhile.
    const SMALL_STEP: usize = 256 << 10;

    pub(super) fn populate(start: NonNull<u8>, len: usize) {
        let end = start.addr().get() + len;
        let mut at = start.addr().get().next_multiple_of(PAGE);
        let mut huge = CREDIT.load(Ordering::Relaxed) > 0;
        match huge {
            true => advise(start, at, end, libc::MADV_HUGEPAGE),
            false => refuse(start, at, end),
        }
        while at < end {
            let step = if huge { HUGE_PAGE } else { SMALL_STEP };
            let next = end.min((at + 1).next_multiple_of(step));
            let begun = Instant::now();
            advise(start, at, next, libc::MADV_POPULATE_WRITE);
            if huge {
                let taken = i64::try_from(begun.elapsed().as_nanos()).unwrap_or(i64::MAX);
                let gained = (next - at) as i64 * SMALL_PAGES / 1024 - taken;
                huge = CREDIT.fetch_add(gained, Ordering::Relaxed) + gained > 0;
                if !huge {
                    advise(start, next, end, libc::MADV_NOHUGEPAGE);
                }
            }
            at = next;
        }
    }

    pub(super) fn release(start: NonNull<u8>, len: usize) {
        let first = start.addr().get();
        let end = (first + len) / PAGE * PAGE;
        advise(start, first.next_multiple_of(PAGE), end, libc::MADV_DONTNEED);
    }

    /// Advice against huge pages where they come without being asked for. Other threads that populate memory wait for it.
    fn refuse(start: NonNull<u8>, from: usize, to: usize) {
        static ALWAYS: OnceLock<bool> = OnceLock::new();
        let setting = || std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        if *ALWAYS.get_or_init(|| setting().is_ok_and(|modes| modes.contains("[always]"))) {
            advise(start, from, to, libc::MADV_NOHUGEPAGE);
        }
    }

    /// Advice on the pages that begin in a range of the addresses behind `start`.
    fn advise(start: NonNull<u8>, from: usize, to: usize, advice: libc::c_int) {
        let Some(len) = to.checked_sub(from).filter(|len| *len > 0) else { return };
        // SAFETY: the range begins in mapped memory and ends in its last page. Only `MADV_DONTNEED` changes what pages hold, and
        // `release` gives it pages that nobody uses any more.
        unsafe { libc::madvise(start.as_ptr().with_addr(from).cast(), len, advice) };
    }
}
