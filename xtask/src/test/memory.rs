//! Where the files of a test run are: in memory, if there is enough of it. A run creates more than a thousand databases.

use std::path::{Path, PathBuf};

/// Memory that the files of a run may need, with a reserve.
const SPACE_MIN: u64 = 6 << 30;
/// Memory that must be left for programs and servers.
const AVAILABLE_MIN: u64 = 12 << 30;

/// The directory for temporary files of the tests and their servers. `None`: the usual one, also if the user chose it.
pub(super) fn directory() -> Option<PathBuf> {
    let path = Path::new("/dev/shm");
    let chosen = std::env::var_os("TMPDIR").is_some();
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let enough = available(&meminfo) >= AVAILABLE_MIN && free_space(path) >= SPACE_MIN;
    (!chosen && enough).then(|| path.to_owned())
}

fn free_space(path: &Path) -> u64 {
    rustix::fs::statvfs(path).map_or(0, |space| space.f_bavail.saturating_mul(space.f_frsize))
}

/// The bytes of `MemAvailable` in `/proc/meminfo`.
fn available(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kibibytes: Option<u64> = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
    kibibytes.unwrap_or(0).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read() {
        assert_eq!(available("MemTotal:  4 kB\nMemAvailable:   16777216 kB\nBuffers: 1 kB\n"), 16 << 30);
        assert_eq!(available("MemTotal:  4 kB\n"), 0, "an unknown amount is not enough");
    }

    #[test]
    fn a_directory_that_does_not_exist_has_no_space() {
        assert_eq!(free_space(Path::new("/does/not/exist")), 0);
    }
}
