//! A temporary directory with a server in it. Both are removed when the owner is dropped.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context as _, Result};

use crate::account::Account;
use crate::port::free_port;

/// Where the directories are, if not where temporary files usually are.
static PARENT: OnceLock<PathBuf> = OnceLock::new();

/// Chooses where all later directories are.
pub(crate) fn set_parent(path: PathBuf) {
    PARENT.set(path).ok();
}

pub(crate) struct Scratch {
    path: PathBuf,
    watchdog: Child,
}

impl Scratch {
    /// For a PostgreSQL server.
    pub(crate) fn new(account: Account) -> Result<Self> {
        let scratch = Self::guarded(|path| vec![path.join("data/postmaster.pid").into_os_string(), "QUIT".into()])?;
        account.give(&scratch.path)?;
        Ok(scratch)
    }

    /// For a server that is identified by its [mark](crate::marked) and runs as the current user.
    pub(crate) fn for_marked() -> Result<Self> {
        Self::guarded(|_| Vec::new())
    }

    fn guarded(arguments: impl FnOnce(&Path) -> Vec<OsString>) -> Result<Self> {
        let parent = PARENT.get().cloned().unwrap_or_else(std::env::temp_dir);
        let parent = parent.canonicalize().context("no directory for temporary files")?;
        let path = parent.join(format!("relevo-xtask-{}-{}", std::process::id(), free_port()?));
        std::fs::create_dir(&path).with_context(|| format!("cannot create `{}`", path.display()))?;
        let watchdog = Command::new("sh")
            .args(["-c", include_str!("../../crates/testkit/src/watchdog.sh"), "watchdog"])
            .arg(&path)
            .args(arguments(&path))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("cannot run `sh`")?;
        Ok(Self { path, watchdog })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(self.watchdog.stdin.take());
        // No caller can act on a failure here.
        self.watchdog.wait().ok();
    }
}
