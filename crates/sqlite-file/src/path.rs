//! The identity of a file.

use std::path::{Path, PathBuf};

/// The same path for all spellings of one file, which need not exist.
pub fn canonical_path(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        match (path.parent().and_then(|parent| parent.canonicalize().ok()), path.file_name()) {
            (Some(parent), Some(name)) => parent.join(name),
            _ => path,
        }
    })
}
