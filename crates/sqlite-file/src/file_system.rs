//! File systems that SQLite's write-ahead log cannot use safely.

use std::path::{Path, PathBuf};

use rustix::fs::statfs;

/// File systems whose locks, or whose memory shared between processes, do not work as a write-ahead log needs them.
/// FUSE and 9P may be local, but `statfs` cannot distinguish that.
const NETWORK_FILE_SYSTEMS: [(u32, &str); 12] = [
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

/// The file is on a network file system, and the configuration does not allow that.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "file `{}` is on {file_system}, where the locks of SQLite are not safe; hint: move it to a local disk, or set \
     `allow_network_file_system` if only one machine uses it",
    path.display()
)]
pub struct NetworkFileSystem {
    /// The file.
    pub path: PathBuf,
    /// The name of its file system.
    pub file_system: &'static str,
}

/// Rejects a file on a network file system, unless that is allowed. The file need not exist; a directory that does not
/// exist passes, because opening the file reports it better.
pub fn check_local(path: &Path, allow_network_file_system: bool) -> Result<(), NetworkFileSystem> {
    match file_system_type(path).and_then(network_file_system) {
        Some(file_system) if !allow_network_file_system => {
            Err(NetworkFileSystem { path: path.to_owned(), file_system })
        }
        _ => Ok(()),
    }
}

/// The type of the file system that has this file, or its directory if the file does not exist: the number that
/// `statfs` returns.
pub fn file_system_type(path: &Path) -> Option<u32> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let value = statfs(path).or_else(|_| statfs(directory)).ok()?.f_type;
    // The kernel's value is signed on some platforms, and wider than the number.
    u32::try_from(i128::from(value) & 0xffff_ffff).ok()
}

/// The name of a network file system, by its type; `None` for any other file system.
pub fn network_file_system(file_system_type: u32) -> Option<&'static str> {
    NETWORK_FILE_SYSTEMS.iter().find(|(number, _)| *number == file_system_type).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_known_and_local_ones_are_not() {
        let network = [(0x6969, "NFS"), (0xff53_4d42, "CIFS"), (0x6573_5546, "FUSE"), (0x0bd0_0bd0, "Lustre")];
        for (number, name) in network {
            assert_eq!(network_file_system(number), Some(name));
        }
        for (number, name) in [(0xef53, "ext4"), (0x9123_683e, "btrfs"), (0x5846_5342, "xfs"), (0x0102_1994, "tmpfs")] {
            assert_eq!(network_file_system(number), None, "{name}");
        }
    }

    #[test]
    fn a_file_that_does_not_exist_is_on_the_file_system_of_its_directory() {
        let directory = std::env::temp_dir();
        assert!(file_system_type(&directory).is_some());
        assert_eq!(file_system_type(&directory.join("no such file")), file_system_type(&directory));
        assert_eq!(check_local(Path::new("/no such directory/file"), false), Ok(()));
    }

    #[test]
    fn a_refusal_names_the_file_and_the_setting() {
        let refused = NetworkFileSystem { path: "/mnt/relevo.db".into(), file_system: "NFS" };
        assert_eq!(
            refused.to_string(),
            "file `/mnt/relevo.db` is on NFS, where the locks of SQLite are not safe; hint: move it to a local disk, or \
             set `allow_network_file_system` if only one machine uses it"
        );
    }
}
