//! How many threads this process may run at once: CPU affinity and control-group quota.
//!
//! No environment variable takes part. Quotas are rounded up, so that a quota of 1.5 CPUs is used
//! by two threads. Files read: `cpu.max` (control groups version 2) or `cpu.cfs_quota_us` and
//! `cpu.cfs_period_us` (version 1).

use std::path::Path;

use crate::control_groups::{ReadFile, least, read_file};

/// Threads that can run at the same time, at least 1.
pub fn available_threads() -> usize {
    let ThreadLimits { affinity, quota } = thread_limits();
    let cpus = affinity.or_else(|| std::thread::available_parallelism().ok().map(|n| n.get())).unwrap_or(1);
    cpus.min(quota.unwrap_or(cpus)).max(1)
}

/// What bounds the number of threads that run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadLimits {
    /// CPUs in the affinity mask of the calling thread, if the system tells.
    pub affinity: Option<usize>,
    /// The smallest quota of the control groups of the process, in whole CPUs, rounded up.
    pub quota: Option<usize>,
}

/// The bounds of this process.
pub fn thread_limits() -> ThreadLimits {
    ThreadLimits { affinity: affinity_count(), quota: quota(&read_file) }
}

/// The number of threads to use for a wish: [`available_threads`] without one, and never more.
pub fn resolve_threads(requested: Option<usize>) -> usize {
    let available = available_threads();
    requested.unwrap_or(available).clamp(1, available)
}

/// CPUs in this thread's affinity mask.
#[cfg(target_os = "linux")]
fn affinity_count() -> Option<usize> {
    // The kernel rejects a mask shorter than its own, so grow until it fits.
    let mut words = 1024 / 64;
    while words <= (1 << 20) / 64 {
        let mut mask = vec![0u64; words];
        // SAFETY: `mask` is writable for the given number of bytes and aligned for `cpu_set_t`,
        // which is an array of machine words; pid 0 is the calling thread.
        let status = unsafe { libc::sched_getaffinity(0, words * 8, mask.as_mut_ptr().cast()) };
        if status == 0 {
            let count: u32 = mask.iter().map(|word| word.count_ones()).sum();
            return (count > 0).then_some(count as usize);
        }
        words *= 2;
    }
    None
}

#[cfg(not(target_os = "linux"))]
fn affinity_count() -> Option<usize> {
    None
}

/// The smallest quota of the process's control groups in whole CPUs, rounded up.
fn quota(read: ReadFile<'_>) -> Option<usize> {
    least("cpu", read, &|dir, unified| if unified { limit_v2(dir, read) } else { limit_v1(dir, read) })
}

fn limit_v2(dir: &Path, read: ReadFile<'_>) -> Option<usize> {
    let text = read(&dir.join("cpu.max"))?;
    let (quota, period) = text.trim().split_once(' ')?;
    cpus(quota.parse().ok()?, period.parse().ok()?)
}

fn limit_v1(dir: &Path, read: ReadFile<'_>) -> Option<usize> {
    let number = |file: &str| read(&dir.join(file))?.trim().parse::<i64>().ok();
    cpus(number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?)
}

/// Quota over period, rounded up; a quota that is not positive means none.
fn cpus(quota: i64, period: i64) -> Option<usize> {
    (quota > 0 && period > 0).then(|| quota.unsigned_abs().div_ceil(period.unsigned_abs()) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota_of(files: &[(&str, &str)]) -> Option<usize> {
        quota(&|path| files.iter().find(|(name, _)| Path::new(name) == path).map(|(_, text)| text.to_string()))
    }

    const V2_MOUNT: (&str, &str) =
        ("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");

    #[test]
    fn version_2_takes_the_smallest_quota_on_the_way_up() {
        let group = ("/proc/self/cgroup", "0::/app/job\n");
        let inner = ("/sys/fs/cgroup/app/job/cpu.max", "max 100000\n");
        let outer = ("/sys/fs/cgroup/app/cpu.max", "150000 100000\n");
        assert_eq!(quota_of(&[V2_MOUNT, group, inner]), None);
        assert_eq!(quota_of(&[V2_MOUNT, group, inner, outer]), Some(2));
        let tight = ("/sys/fs/cgroup/app/job/cpu.max", "50000 100000\n");
        assert_eq!(quota_of(&[V2_MOUNT, group, tight, outer]), Some(1));
    }

    #[test]
    fn version_1_reads_the_cpu_hierarchy() {
        let group = ("/proc/self/cgroup", "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n0::/docker/abc\n");
        let mounts = (
            "/proc/self/mountinfo",
            "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
             32 31 0:29 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
             33 31 0:30 /docker/abc /sys/fs/cgroup/cpu rw master:3 - cgroup cgroup rw,cpu,cpuacct\n",
        );
        let period = ("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
        let limited = ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "250000\n");
        let free = ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
        assert_eq!(quota_of(&[group, mounts, period, limited]), Some(3));
        assert_eq!(quota_of(&[group, mounts, period, free]), None);
    }

    #[test]
    fn malformed_files_mean_no_quota() {
        let group = ("/proc/self/cgroup", "0::/\n");
        assert_eq!(quota_of(&[]), None);
        assert_eq!(quota_of(&[group, ("/proc/self/mountinfo", "nonsense\n- - -\n")]), None);
        for text in ["", "max", "100000", "0 100000", "-5 100000", "x y", "100000 0"] {
            assert_eq!(quota_of(&[V2_MOUNT, group, ("/sys/fs/cgroup/cpu.max", text)]), None, "{text}");
        }
    }

    #[test]
    fn a_wish_is_bounded_by_the_machine() {
        let available = available_threads();
        assert!(available >= 1);
        assert!(available <= std::thread::available_parallelism().unwrap().get() + 1);
        assert_eq!(resolve_threads(None), available);
        assert_eq!(resolve_threads(Some(0)), 1);
        assert_eq!(resolve_threads(Some(1)), 1);
        assert_eq!(resolve_threads(Some(usize::MAX)), available);
    }
}
