//! A directory of a test's own.

use std::path::{Path, PathBuf};

/// Gone when it is dropped.
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
        // Nobody can act on a failure here, and a panic in drop would hide the test's own.
        std::fs::remove_dir_all(&self.0).ok();
    }
}
