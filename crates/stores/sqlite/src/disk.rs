//! What lies under the file: which file system, how much space, and whether what was written is kept.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use relevo_core::store::StoreError;
use rustix::fs::{statfs, statvfs};

use crate::classify::Error;

/// File systems on which locks, or memory shared between processes, do not work as SQLite's write-ahead log needs.
/// `FUSE` and 9P may be local; nobody can tell from here.
const REFUSED: [(u32, &str); 12] = [
    (0x0000_6969, "NFS"),
    (0x0000_517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x0102_1997, "9P"),
    (0x6573_5546, "FUSE"),
    (0x5346_414f, "AFS"),
    (0x00c3_6400, "Ceph"),
    (0x7375_7245, "Coda"),
    (0x0bd0_0bd0, "Lustre"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
];

/// Fewer bytes than that, and the next write fails.
const FULL_BYTES: u64 = 64 << 10;

/// The name of a file system that is refused, by the number that `statfs` gives.
pub(crate) fn refused(magic: u32) -> Option<&'static str> {
    REFUSED.iter().find(|(number, _)| *number == magic).map(|(_, name)| *name)
}

/// The number of the file system that holds this file.
pub(crate) fn magic(file: &Path) -> Option<u32> {
    // The kernel's word is signed here and unsigned there, and wider than the number.
    let word = statfs(file).ok()?.f_type;
    u32::try_from(i128::from(word) & 0xffff_ffff).ok()
}

/// Refuses a file on a network file system, unless that is allowed.
pub(crate) fn check_local(file: &Path, network_allowed: bool) -> Result<(), StoreError> {
    match magic(file).and_then(refused) {
        Some(name) if !network_allowed => Err(StoreError::Refused {
            what: format!(
                "file `{}` is on {name}, where SQLite's locks cannot be trusted; hint: put it on a local disk, or allow it if \
                 you are sure that one machine uses it",
                file.display()
            ),
        }),
        _ => Ok(()),
    }
}

/// How many bytes this user may still write beside the file.
pub(crate) fn free_bytes(file: &Path) -> Option<u64> {
    let answer = statvfs(directory(file)).ok()?;
    Some(answer.f_bavail.saturating_mul(answer.f_frsize))
}

pub(crate) fn is_full(file: &Path) -> bool {
    free_bytes(file).is_some_and(|free| free < FULL_BYTES)
}

fn directory(file: &Path) -> &Path {
    file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The write-ahead log that belongs to the file.
pub(crate) fn log_of(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push("-wal");
    PathBuf::from(name)
}

/// Makes everything durable that is committed by now, whatever `synchronous` its writers had.
///
/// It is what a commit with `FULL` does at its end, without waiting for the write lock: an open transaction of an
/// application must not keep the relay from reading. SQLite keeps no locks on this file, so that closing it frees none;
/// on the database file itself it would.
pub(crate) async fn flush(file: &Path) -> Result<(), Error> {
    let log = log_of(file);
    let flushed = tokio::task::spawn_blocking(move || match std::fs::File::open(log) {
        Ok(log) => log.sync_data(),
        // Everything is in the database file, and was flushed before the log was removed.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    });
    match flushed.await {
        Ok(result) => result.map_err(Error::Flush),
        Err(error) => Err(Error::Flush(std::io::Error::other(error))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_refused_and_local_ones_are_not() {
        for (magic, name) in [(0x6969, "NFS"), (0xff53_4d42, "CIFS"), (0xfe53_4d42, "SMB2"), (0x0102_1997, "9P")] {
            assert_eq!(refused(magic), Some(name));
        }
        for (magic, name) in [(0xef53, "ext4"), (0x9123_683e, "btrfs"), (0x5846_5342, "xfs"), (0x0102_1994, "tmpfs")] {
            assert_eq!(refused(magic), None, "{name}");
        }
    }

    #[test]
    fn a_real_directory_has_a_file_system_and_space() {
        let here = std::env::temp_dir().join("file");
        assert!(magic(here.parent().unwrap()).is_some());
        assert!(free_bytes(&here).is_some());
    }

    #[test]
    fn the_log_lies_beside_the_file() {
        assert_eq!(log_of(Path::new("a/b.db")), Path::new("a/b.db-wal"));
        assert_eq!(directory(Path::new("b.db")), Path::new("."));
    }
}
