//! The user account that runs the servers.

use std::os::unix::fs::{MetadataExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

/// PostgreSQL and PgBouncer refuse to run as root. Root therefore runs them as `postgres`, any other user as itself.
#[derive(Clone, Copy)]
pub(crate) struct Account {
    ids: Option<(u32, u32)>,
}

impl Account {
    pub(crate) fn for_servers() -> Self {
        let own = std::fs::metadata("/proc/self").expect("/proc is mounted").uid();
        let ids = (own == 0).then(|| (id("-u"), id("-g")));
        Self { ids }
    }

    /// A command that will run under this account.
    pub(crate) fn command(self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        if let Some((user, group)) = self.ids {
            command.uid(user).gid(group);
        }
        command
    }

    pub(crate) fn give(self, path: &Path) {
        if let Some((user, group)) = self.ids {
            chown(path, Some(user), Some(group)).expect("root may give a file away");
        }
    }
}

fn id(flag: &str) -> u32 {
    let output = Command::new("id").args([flag, "postgres"]).output().expect("`id` runs");
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().unwrap_or_else(|_| {
        panic!("root needs the user `postgres` to run servers: `cargo xtask services up` installs the package with it")
    })
}
