//! The processes of a server, identified by an environment variable that all of them inherit.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The variable that holds the server's directory. `watchdog.sh` uses the same name.
pub(crate) const VARIABLE: &str = "RELEVO_SERVER_DIRECTORY";

const END_DEADLINE: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(10);

/// All processes with this mark. A zombie has no environment, so it is not included.
pub(crate) fn processes(directory: &Path) -> Vec<u32> {
    let mark = format!("{VARIABLE}={}", directory.display());
    let entries = std::fs::read_dir("/proc").expect("/proc is mounted");
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        // The environment of other users' processes cannot be read. They do not belong to this server.
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    })
    .collect()
}

/// Sends a signal to all processes with this mark.
pub(crate) fn signal(directory: &Path, name: &str) {
    send(name, &processes(directory));
}

/// Stops all processes with this mark. Returns when none of their threads runs any more; on a busy machine this takes
/// longer than sending the signal.
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
        // The state follows the name, which is in parentheses and may contain any characters. A thread that has ended
        // does not run either.
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['T', 'Z', 'X']))
    })
}

/// Kills all processes with this mark. Returns when they have ended.
pub(crate) fn kill9(directory: &Path) {
    wait_until_ended("the killed server", || {
        // Repeated, because a process may have started another one after the listing.
        let pids = processes(directory);
        send("KILL", &pids);
        pids.is_empty()
    });
}

/// Waits until a stopped or killed process has ended.
pub(crate) fn wait_until_ended(name: &str, mut has_ended: impl FnMut() -> bool) {
    let deadline = Instant::now() + END_DEADLINE;
    while !has_ended() {
        assert!(Instant::now() < deadline, "{name} still runs");
        std::thread::sleep(POLL);
    }
}

pub(crate) fn send(name: &str, pids: &[u32]) {
    if pids.is_empty() {
        return;
    }
    let mut kill = Command::new("sh");
    kill.args(["-c", "kill -s \"$0\" \"$@\"", name]).args(pids.iter().map(u32::to_string));
    // A process may have ended since it was listed.
    kill.stderr(Stdio::null()).status().expect("`sh` runs");
}
