//! A temporary directory for one test.

use std::path::{Path, PathBuf};

/// Deleted on drop.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new() -> Self {
        let path = std::env::temp_dir().join(format!("relevo-embedded-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir(&path).expect("the directory for temporary files can be written");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Ignore a failure: a panic in `drop` would hide the failure of the test.
        std::fs::remove_dir_all(&self.0).ok();
    }
}
