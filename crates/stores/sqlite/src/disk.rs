//! The disk of the file: its free space, and flushing so that commits survive a power failure.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rustix::fs::statvfs;

use crate::classify::Error;

/// With fewer free bytes the next write fails.
const FULL_BYTES: u64 = 64 << 10;

/// Returns how many bytes this user may still write on the file system of the file.
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

/// Returns the path of the write-ahead log of the file.
pub(crate) fn wal_path(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push("-wal");
    PathBuf::from(name)
}

/// Makes all commits so far durable, whatever `synchronous` setting their writers used.
///
/// A commit with `FULL` ends with the same flush. This one does not wait for the write lock, because an application's
/// open transaction must not stop the relay from reading. SQLite has no locks on the WAL file, so closing it here
/// releases none. Closing the database file would release its locks.
pub(crate) async fn flush(file: &Path) -> Result<(), Error> {
    let log = wal_path(file);
    let flushed = tokio::task::spawn_blocking(move || match std::fs::File::open(log) {
        Ok(log) => log.sync_data(),
        // All data is in the database file. SQLite flushed it before it removed the log.
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
    fn a_real_directory_has_space() {
        let here = std::env::temp_dir().join("file");
        assert!(free_bytes(&here).is_some());
    }

    #[test]
    fn the_wal_is_beside_the_file() {
        assert_eq!(wal_path(Path::new("a/b.db")), Path::new("a/b.db-wal"));
        assert_eq!(directory(Path::new("b.db")), Path::new("."));
    }
}
