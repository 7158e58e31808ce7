//! A temporary directory with a server in it; both go when the owner does.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};

use crate::account::Account;

pub(crate) struct Scratch {
    path: PathBuf,
    watchdog: Child,
}

impl Scratch {
    pub(crate) fn new(account: Account) -> Result<Self> {
        let parent = std::env::temp_dir().canonicalize().context("no directory for temporary files")?;
        let path = parent.join(format!("relevo-xtask-{}-{}", std::process::id(), crate::postgres::free_port()?));
        std::fs::create_dir(&path).with_context(|| format!("cannot make `{}`", path.display()))?;
        let watchdog = Command::new("sh")
            .args(["-c", include_str!("../../crates/testkit/src/watchdog.sh"), "watchdog"])
            .args([path.as_os_str(), path.join("data/postmaster.pid").as_os_str(), "QUIT".as_ref()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("cannot run `sh`")?;
        let scratch = Self { path, watchdog };
        account.give(&scratch.path)?;
        Ok(scratch)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(self.watchdog.stdin.take());
        // Nobody can act on a failure here.
        self.watchdog.wait().ok();
    }
}
