//! A temporary directory with a server in it. When the owner is dropped, the server is stopped and the directory deleted.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use crate::account::Account;
use crate::port::ReservedPort;

pub(crate) struct Scratch {
    path: PathBuf,
    watchdog: Child,
    ports: Mutex<Vec<ReservedPort>>,
}

impl Scratch {
    /// `pid_file` is relative to the directory. `signal` makes the server end at once.
    pub(crate) fn new(account: Account, pid_file: &str, signal: &str) -> Self {
        let scratch = Self::guarded(|path| vec![path.join(pid_file).into_os_string(), signal.into()]);
        account.give(&scratch.path);
        scratch
    }

    /// For servers that are identified by their [mark](crate::marked) and run as the current user.
    pub(crate) fn for_marked() -> Self {
        Self::guarded(|_| Vec::new())
    }

    fn guarded(arguments: impl FnOnce(&Path) -> Vec<OsString>) -> Self {
        let parent = std::env::temp_dir().canonicalize().expect("there is a directory for temporary files");
        let path = parent.join(format!("relevo-test-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir(&path).expect("the directory for temporary files can be written");
        let watchdog = Command::new("sh")
            .args(["-c", include_str!("watchdog.sh"), "watchdog"])
            .arg(&path)
            .args(arguments(&path))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // The watchdog gets its own process group: it must survive a signal that ends the test's group.
            .process_group(0)
            .spawn()
            .expect("`sh` runs");
        Self { path, watchdog, ports: Mutex::default() }
    }

    /// A port that is reserved for as long as this directory exists.
    pub(crate) fn reserve_port(&self) -> u16 {
        let port = ReservedPort::new();
        let number = port.number();
        self.ports.lock().expect("no holder panics").push(port);
        number
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(self.watchdog.stdin.take());
        // No caller can act on a failure here, and a panic in `drop` would hide the test's own.
        self.watchdog.wait().ok();
    }
}
