//! A data directory and its server, with blocking calls.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use super::{PgVersion, binaries};
use crate::account::Account;
use crate::port;
use crate::scratch::Scratch;

const STARTS_MAX: usize = 10;
const END_DEADLINE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);
const NO_PORT_YET: u16 = 0;

pub(super) struct Cluster {
    scratch: Scratch,
    account: Account,
    version: PgVersion,
    port: AtomicU16,
}

impl Cluster {
    /// Creates a data directory without starting the server.
    pub(super) fn create(version: PgVersion, settings: &[(String, String)]) -> Self {
        let cluster = Self::empty(version);
        let mut initdb = cluster.command("initdb");
        initdb.args(["-A", "trust", "-U", "postgres", "--no-sync", "--locale=C", "--encoding=UTF8", "-D"]);
        run(initdb.arg(cluster.data()));
        let own = [
            ("listen_addresses", "127.0.0.1"),
            ("unix_socket_directories", ""),
            // Inside the data directory, so that it is deleted with it even after a kill.
            ("dynamic_shared_memory_type", "mmap"),
        ];
        let own = own.map(|(name, value)| (name.to_owned(), value.to_owned()));
        cluster.configure(own.iter().chain(settings));
        cluster
    }

    /// Copies the files of a stopped server without starting the copy.
    pub(super) fn copy_of(stopped: &Self) -> Self {
        assert!(stopped.postmaster().is_none(), "only the files of a stopped server are consistent");
        let copy = Self::empty(stopped.version);
        run(copy.account.command("cp").arg("-a").arg(stopped.data()).arg(copy.data()));
        copy
    }

    /// Takes a base backup of a running server without starting it. `extra` holds arguments for `pg_basebackup`.
    pub(super) fn backup_of(running: &Self, extra: &[&str]) -> Self {
        let backup = Self::empty(running.version);
        let mut command = backup.command("pg_basebackup");
        command.args(["-h", "127.0.0.1", "-U", "postgres", "-X", "stream", "-c", "fast", "--no-sync", "-p"]);
        run(command.arg(running.port().to_string()).args(extra).arg("-D").arg(backup.data()));
        backup
    }

    fn empty(version: PgVersion) -> Self {
        let account = Account::for_servers();
        let scratch = Scratch::new(account, "data/postmaster.pid", "QUIT");
        Self { scratch, account, version, port: AtomicU16::new(NO_PORT_YET) }
    }

    pub(super) fn data(&self) -> PathBuf {
        self.scratch.path().join("data")
    }

    pub(super) fn version(&self) -> PgVersion {
        self.version
    }

    pub(super) fn port(&self) -> u16 {
        let port = self.port.load(Ordering::SeqCst);
        assert_ne!(port, NO_PORT_YET, "the server was never started");
        port
    }

    pub(super) fn log(&self) -> String {
        std::fs::read_to_string(self.scratch.path().join("log")).unwrap_or_default()
    }

    fn configure<'a>(&self, settings: impl Iterator<Item = &'a (String, String)>) {
        let path = self.data().join("postgresql.conf");
        let mut file = std::fs::OpenOptions::new().append(true).open(path).expect("initdb wrote `postgresql.conf`");
        for (name, value) in settings {
            let value = value.replace('\'', "''");
            writeln!(file, "{name} = '{value}'").expect("`postgresql.conf` can be written");
        }
    }

    /// Starts the server. The first start takes a free port; later starts reuse it, so that clients can reconnect.
    pub(super) fn start(&self) {
        let known = self.port.load(Ordering::SeqCst);
        let (start, mut starts) = (Instant::now(), 0);
        // On the first start another process may take the port. On later starts, remains of a killed server may hold
        // its shared memory, which can take long on a busy machine.
        while starts < STARTS_MAX || (known != NO_PORT_YET && start.elapsed() < END_DEADLINE) {
            let port = if known == NO_PORT_YET { self.scratch.reserve_port() } else { known };
            if self.start_on(port) {
                self.port.store(port, Ordering::SeqCst);
                return;
            }
            starts += 1;
            std::thread::sleep(Duration::from_millis(200));
        }
        panic!("PostgreSQL {} does not start:\n{}", self.version.major(), self.log());
    }

    fn start_on(&self, port: u16) -> bool {
        let mut command = self.command("pg_ctl");
        command.args(["-w", "-t", "60", "-l"]).arg(self.scratch.path().join("log"));
        command.args(["-o", &format!("-p {port}"), "-D"]).arg(self.data()).arg("start");
        // The server inherits these streams: a pipe would never close.
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.expect("`pg_ctl` runs").success()
    }

    /// Shuts the server down cleanly, with a checkpoint.
    pub(super) fn stop(&self) {
        run(self.command("pg_ctl").args(["-w", "-m", "fast", "-D"]).arg(self.data()).arg("stop"));
    }

    pub(super) fn promote(&self) {
        run(self.command("pg_ctl").args(["-w", "-D"]).arg(self.data()).arg("promote"));
    }

    /// Kills all processes of the server, like a crash of the machine.
    pub(super) fn kill9(&self) {
        let postmaster = self.postmaster().expect("the server is running");
        // A suspended postmaster cannot start a child that the listing would miss and that would outlive it.
        send("STOP", &[postmaster]);
        let mut all = children_of(postmaster);
        all.push(postmaster);
        send("KILL", &all);
        let deadline = Instant::now() + END_DEADLINE;
        while all.iter().any(|pid| is_running(*pid)) || !port::is_free(self.port()) {
            assert!(Instant::now() < deadline, "the killed server still runs");
            std::thread::sleep(POLL);
        }
    }

    fn postmaster(&self) -> Option<u32> {
        let text = std::fs::read_to_string(self.data().join("postmaster.pid")).ok()?;
        let pid = text.lines().next()?.trim().parse().ok()?;
        let command_line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        // The file remains after a crash, and another process may have its pid by now.
        let ours = String::from_utf8_lossy(&command_line).contains(self.data().to_str()?);
        ours.then_some(pid)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = self.account.command(binaries::program(self.version, program));
        // The account may have no access to the caller's directory.
        command.current_dir(self.scratch.path());
        command
    }
}

fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().expect("the program runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed: {errors}");
}

fn send(signal: &str, pids: &[u32]) {
    let mut kill = Command::new("sh");
    kill.args(["-c", "kill -s \"$@\"", "kill", signal]).args(pids.iter().map(u32::to_string));
    // A child may have ended since it was listed. Callers that need the processes to end wait for it.
    kill.stderr(Stdio::null()).status().expect("`sh` runs");
}

fn children_of(parent: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").expect("/proc is mounted");
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| state_and_parent(*pid).is_some_and(|(_, of)| of == parent)).collect()
}

fn is_running(pid: u32) -> bool {
    // The process that adopted a zombie may never collect it.
    state_and_parent(pid).is_some_and(|(state, _)| state != "Z")
}

fn state_and_parent(pid: u32) -> Option<(String, u32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain any characters, even parentheses.
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.to_owned();
    Some((state, fields.next()?.parse().ok()?))
}
