//! A command beside the daemon, run as a user runs it.

use std::path::Path;
use std::process::{Command, Output};

/// Exit code, stdout and stderr of a command with this configuration.
pub(crate) fn relevo(config: &Path, args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_relevo"));
    command.args(args).arg("-c").arg(config).env_remove("RELEVO_LOG").stdin(std::process::Stdio::null());
    let Output { status, stdout, stderr } = command.output().expect("it runs");
    let text = |bytes| String::from_utf8(bytes).expect("it writes UTF-8");
    (status.code().expect("it ends by itself"), text(stdout), text(stderr))
}
