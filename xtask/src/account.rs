//! The user account that runs the servers.

use std::os::unix::fs::{MetadataExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

/// PostgreSQL refuses to run as root. Root therefore runs it as `postgres`; any other user runs it as itself.
#[derive(Clone, Copy)]
pub(crate) struct Account {
    ids: Option<(u32, u32)>,
}

impl Account {
    pub(crate) fn for_servers() -> Result<Self> {
        let ids = if own_id()? == 0 { Some((id("-u")?, id("-g")?)) } else { None };
        Ok(Self { ids })
    }

    /// A command under this account, in its own process group: Ctrl-C in a terminal must not stop only some of a
    /// server's processes.
    pub(crate) fn command(self, program: &Path) -> Command {
        let mut command = Command::new(program);
        if let Some((user, group)) = self.ids {
            command.uid(user).gid(group);
        }
        command.process_group(0);
        command
    }

    pub(crate) fn give(self, path: &Path) -> Result<()> {
        if let Some((user, group)) = self.ids {
            chown(path, Some(user), Some(group))
                .with_context(|| format!("cannot change the owner of `{}`", path.display()))?;
        }
        Ok(())
    }
}

/// The id of the user that runs this program.
pub(crate) fn own_id() -> Result<u32> {
    Ok(std::fs::metadata("/proc/self").context("cannot read `/proc/self`")?.uid())
}

fn id(flag: &str) -> Result<u32> {
    let output = Command::new("id").args([flag, "postgres"]).output().context("cannot run `id`")?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().context("there is no user `postgres`; the package `postgresql-15` creates it")
}
