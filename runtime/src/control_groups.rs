//! Limits of the process's control groups: the least of its own group and of every group above it, in versions 1 and 2.
//!
//! Files read: `/proc/self/cgroup`, `/proc/self/mountinfo`, and those of the limits.

use std::path::{Path, PathBuf};

/// Contents of a file, or nothing where it cannot be read.
pub(crate) type ReadFile<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// Reads a file of this machine.
pub(crate) fn read_file(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// The least limit of a controller; `limit` reads that of a group's folder, in version 2 if the second argument says so.
pub(crate) fn least<T: Ord>(
    controller: &str,
    read: ReadFile<'_>,
    limit: &dyn Fn(&Path, bool) -> Option<T>,
) -> Option<T> {
    let groups = read(Path::new("/proc/self/cgroup"))?;
    let mounts = read(Path::new("/proc/self/mountinfo"))?;
    groups
        .lines()
        .filter_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (id, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
            let unified = id == "0" && controllers.is_empty();
            if !unified && !controllers.split(',').any(|c| c == controller) {
                return None;
            }
            let mount = find_mount(&mounts, (!unified).then_some(controller), group)?;
            mount.groups_upwards().filter_map(|dir| limit(&dir, unified)).min()
        })
        .min()
}

/// Bytes of memory that the process's control groups allow, if they bound it.
pub fn memory_limit() -> Option<u64> {
    memory(&read_file)
}

fn memory(read: ReadFile<'_>) -> Option<u64> {
    /// Version 1 writes no limit as the greatest multiple of a page.
    const NO_LIMIT: u64 = i64::MAX as u64 - (64 << 10);
    let bytes = |dir: &Path, unified: bool| {
        let file = if unified { "memory.max" } else { "memory.limit_in_bytes" };
        read(&dir.join(file))?.trim().parse::<u64>().ok().filter(|bytes| *bytes < NO_LIMIT)
    };
    least("memory", read, &bytes)
}

/// A mounted control-group hierarchy and the process's place in it.
struct Mount {
    point: PathBuf,
    /// The process's group below the mount point.
    below: PathBuf,
}

impl Mount {
    /// The process's group folder, then each one above it down to the mount point.
    fn groups_upwards(&self) -> impl Iterator<Item = PathBuf> + '_ {
        self.below.ancestors().map(|below| self.point.join(below))
    }
}

/// The mount through which `group` can be seen: of the hierarchy of a controller, or of the one of version 2.
///
/// A line of mountinfo reads `id parent dev root point options [tags…] - type source super-options`.
fn find_mount(mountinfo: &str, controller: Option<&str>, group: &str) -> Option<Mount> {
    mountinfo.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut after = after.split(' ');
        let (kind, super_options) = (after.next()?, after.nth(1)?);
        let matches = match controller {
            None => kind == "cgroup2",
            Some(name) => kind == "cgroup" && super_options.split(',').any(|option| option == name),
        };
        if !matches {
            return None;
        }
        let mut before = before.split(' ').skip(3);
        let (root, point) = (before.next()?, before.next()?);
        // Inside a container the mount may show only the container's own subtree.
        let below = Path::new(group).strip_prefix(root).unwrap_or(Path::new(""));
        Some(Mount { point: PathBuf::from(point), below: below.to_path_buf() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory_of(files: &[(&str, &str)]) -> Option<u64> {
        memory(&|path| files.iter().find(|(name, _)| Path::new(name) == path).map(|(_, text)| text.to_string()))
    }

    #[test]
    fn the_least_limit_of_memory_on_the_way_up_counts() {
        let mount = ("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        let group = ("/proc/self/cgroup", "0::/app/job\n");
        let inner = ("/sys/fs/cgroup/app/job/memory.max", "max\n");
        let outer = ("/sys/fs/cgroup/app/memory.max", "1048576\n");
        assert_eq!(memory_of(&[mount, group, inner]), None);
        assert_eq!(memory_of(&[mount, group, inner, outer]), Some(1 << 20));
    }

    #[test]
    fn version_1_has_a_number_for_no_limit() {
        let mount = ("/proc/self/mountinfo", "32 31 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
        let group = ("/proc/self/cgroup", "5:memory:/docker/abc\n4:cpu:/docker/abc\n");
        let limit = |text| [mount, group, ("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", text)];
        assert_eq!(memory_of(&limit("9223372036854771712\n")), None);
        assert_eq!(memory_of(&limit("4096\n")), Some(4096));
        assert_eq!(memory_of(&limit("nonsense\n")), None);
    }
}
