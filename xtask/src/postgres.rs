//! PostgreSQL servers, each in its own directory.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use crate::account::Account;
use crate::port::free_port;
use crate::scratch::Scratch;

const STARTS_MAX: usize = 10;

const TEST_SETTINGS: &str = "\
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 300
max_prepared_transactions = 20
shared_buffers = '128MB'
";

/// Whether commits survive a crash of the machine.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// Commits are durable, as in production. Benchmarks must measure this.
    Real,
    /// Commits are not durable. This is faster, and enough for tests that share a server.
    None,
}

/// A server that stops, and whose files are deleted, when the value is dropped or this program is killed.
pub(crate) struct Temporary {
    _scratch: Scratch,
    port: u16,
}

impl Temporary {
    pub(crate) fn start(bin: &Path, durability: Durability) -> Result<Self> {
        let account = Account::for_servers()?;
        let scratch = Scratch::new(account)?;
        let directory = Directory { bin: bin.to_owned(), path: scratch.path().to_owned(), account };
        directory.init(durability)?;
        let port = directory.start()?;
        Ok(Self { _scratch: scratch, port })
    }

    pub(crate) fn url(&self) -> String {
        url(self.port)
    }
}

pub(crate) fn url(port: u16) -> String {
    format!("postgres://postgres@127.0.0.1:{port}/postgres?sslmode=disable")
}

/// A directory that holds a server's files and its log.
pub(crate) struct Directory {
    pub(crate) bin: PathBuf,
    pub(crate) path: PathBuf,
    pub(crate) account: Account,
}

impl Directory {
    fn data(&self) -> PathBuf {
        self.path.join("data")
    }

    pub(crate) fn init(&self, durability: Durability) -> Result<()> {
        let mut initdb = self.command("initdb");
        // The embedded binaries only include the C locale. All versions use it, so that they sort alike.
        initdb.args(["-A", "trust", "-U", "postgres", "--no-sync", "--locale=C", "--encoding=UTF8", "-D"]);
        let output = initdb.arg(self.data()).output().context("cannot run `initdb`")?;
        ensure!(output.status.success(), "`initdb` failed: {}", String::from_utf8_lossy(&output.stderr));
        let mut file = std::fs::OpenOptions::new().append(true).open(self.data().join("postgresql.conf"))?;
        file.write_all(TEST_SETTINGS.as_bytes())?;
        if durability == Durability::None {
            file.write_all(b"fsync = off\n")?;
        }
        Ok(())
    }

    /// Starts the server on a free port and returns the port.
    pub(crate) fn start(&self) -> Result<u16> {
        for _ in 0..STARTS_MAX {
            let port = free_port()?;
            let mut pg_ctl = self.command("pg_ctl");
            pg_ctl.args(["-w", "-t", "60", "-l"]).arg(self.path.join("log"));
            pg_ctl.args(["-o", &format!("-p {port}"), "-D"]).arg(self.data()).arg("start");
            // The server inherits stdout and stderr: a pipe would never close.
            let status = pg_ctl.stdout(Stdio::null()).stderr(Stdio::null()).status().context("cannot run `pg_ctl`")?;
            if status.success() {
                return Ok(port);
            }
            // Another process may have taken the port first.
        }
        let log = std::fs::read_to_string(self.path.join("log")).unwrap_or_default();
        bail!("PostgreSQL in `{}` does not start:\n{log}", self.bin.display())
    }

    pub(crate) fn stop(&self) -> Result<()> {
        let mut pg_ctl = self.command("pg_ctl");
        pg_ctl.args(["-w", "-m", "fast", "-D"]).arg(self.data()).arg("stop");
        let output = pg_ctl.output().context("cannot run `pg_ctl`")?;
        ensure!(output.status.success(), "`pg_ctl stop` failed: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// The process and the port of the server that runs in this directory.
    pub(crate) fn running(&self) -> Option<(u32, u16)> {
        let text = std::fs::read_to_string(self.data().join("postmaster.pid")).ok()?;
        let lines: Vec<_> = text.lines().map(str::trim).collect();
        let (pid, port) = (lines.first()?.parse().ok()?, lines.get(3)?.parse().ok()?);
        // The file remains after a crash, and another process may have its pid by now.
        let command_line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let ours = String::from_utf8_lossy(&command_line).contains(self.data().to_str()?);
        ours.then_some((pid, port))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = self.account.command("sh".as_ref());
        // The server outlives the process that starts it. An inherited pipe or lock would stay open for that long.
        command.args(["-c", "exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; exec \"$@\"", "sh"]);
        command.arg(self.bin.join(program));
        // The account may have no access to the caller's directory.
        command.current_dir(&self.path).stdin(Stdio::null());
        command
    }
}
