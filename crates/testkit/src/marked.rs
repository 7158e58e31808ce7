//! The processes of a server, known by a mark in their environment that all of them inherit.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The variable that holds the server's directory; `watchdog.sh` knows it too.
pub(crate) const VARIABLE: &str = "RELEVO_SERVER_DIRECTORY";

const END_DEADLINE: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(10);

/// Every process with this mark. A zombie has no environment, and so is not among them.
pub(crate) fn processes(directory: &Path) -> Vec<u32> {
    let mark = format!("{VARIABLE}={}", directory.display());
    let entries = std::fs::read_dir("/proc").expect("/proc is mounted");
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        // Those of other users cannot be read, and are not ours.
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    })
    .collect()
}

/// Sends a signal to every process with this mark.
pub(crate) fn signal(directory: &Path, name: &str) {
    send(name, &processes(directory));
}

/// Stops every process with this mark; returns when no thread of them runs any more, which on a busy machine is later
/// than the signal.
pub(crate) fn pause(directory: &Path) {
    let pids = processes(directory);
    send("STOP", &pids);
    let deadline = Instant::now() + END_DEADLINE;
    while !pids.iter().all(|pid| is_stopped(*pid)) {
        assert!(Instant::now() < deadline, "the paused server still runs");
        std::thread::sleep(POLL);
    }
}

fn is_stopped(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    threads.filter_map(Result::ok).all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state stands behind the name, which is in parentheses and may hold anything. A thread that is gone runs not.
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['T', 'Z', 'X']))
    })
}

/// Ends every process with this mark at once; returns when they are gone.
pub(crate) fn kill9(directory: &Path) {
    wait_until_gone("the killed server", || {
        // Again and again: a process may have started another between the listing and its end.
        let pids = processes(directory);
        send("KILL", &pids);
        pids.is_empty()
    });
}

/// Waits for an end that was asked for.
pub(crate) fn wait_until_gone(what: &str, mut is_gone: impl FnMut() -> bool) {
    let deadline = Instant::now() + END_DEADLINE;
    while !is_gone() {
        assert!(Instant::now() < deadline, "{what} is still there");
        std::thread::sleep(POLL);
    }
}

pub(crate) fn send(name: &str, pids: &[u32]) {
    if pids.is_empty() {
        return;
    }
    let mut kill = Command::new("sh");
    kill.args(["-c", "kill -s \"$0\" \"$@\"", name]).args(pids.iter().map(u32::to_string));
    // One may have ended by itself since the listing.
    kill.stderr(Stdio::null()).status().expect("`sh` runs");
}
