//! PgBouncer in transaction mode, in front of a PostgreSQL server.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::str::FromStr as _;
use std::time::{Duration, Instant};

use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnectOptions;

use crate::account::Account;
use crate::scratch::Scratch;

const STARTS_MAX: usize = 10;
const READY_DEADLINE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

/// A PgBouncer for a single test. It stops when the value is dropped.
pub struct PgBouncer {
    process: Child,
    port: u16,
    scratch: Option<Scratch>,
}

impl PgBouncer {
    /// Starts one in front of the server with this URL: `in_front_of(server.url())`, `in_front_of(&private.url())`.
    ///
    /// It opens at most four server connections per database, so that clients really share them.
    pub async fn in_front_of(url: &str) -> Self {
        let program = program();
        let upstream = upstream(url);
        for _ in 0..STARTS_MAX {
            let mut bouncer = Self::launch(&program, &upstream);
            if bouncer.is_ready().await {
                return bouncer;
            }
        }
        panic!("PgBouncer does not start");
    }

    /// Options to connect through PgBouncer. Named prepared statements do not survive a transaction there.
    pub fn options_for(&self, database: &str) -> PgConnectOptions {
        PgConnectOptions::from_str(&self.url_for(database)).expect("the URL is made here")
    }

    /// The URL of a database through PgBouncer.
    pub fn url_for(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}?sslmode=disable", self.port)
    }

    fn launch(program: &Path, upstream: &str) -> Self {
        let account = Account::for_servers();
        let scratch = Scratch::new(account, "pid", "TERM");
        let directory = scratch.path().display();
        let port = scratch.reserve_port();
        let file = scratch.path().join("pgbouncer.ini");
        let settings = format!(
            "[databases]\n* = {upstream}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = any\nadmin_users = postgres\npool_mode = transaction\ndefault_pool_size = 4\nmax_client_conn = 500\n\
             ignore_startup_parameters = extra_float_digits,options\npidfile = {directory}/pid\nlogfile = {directory}/log\n"
        );
        std::fs::write(&file, settings).expect("the scratch directory can be written");
        account.give(&file);
        let mut command = account.command(program);
        command.arg("--quiet").arg(&file).current_dir(scratch.path()).process_group(0);
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Self { process: process.expect("`pgbouncer` runs"), port, scratch: Some(scratch) }
    }

    async fn is_ready(&mut self) -> bool {
        let deadline = Instant::now() + READY_DEADLINE;
        while Instant::now() < deadline {
            // PgBouncer exits if another process has the port.
            if self.process.try_wait().expect("the process is ours").is_some() {
                return false;
            }
            if tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await.is_ok() {
                return true;
            }
            tokio::time::sleep(POLL).await;
        }
        false
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        drop(self.scratch.take());
        // The watchdog of the directory kills it, unless its pid file was not yet written. `wait` collects the zombie.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

fn program() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian installs it in a directory that is only on root's `PATH`.
    let directories = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    let mut programs = directories.map(|directory| directory.join("pgbouncer"));
    programs.find(|program| program.exists()).unwrap_or_else(|| {
        panic!("no `pgbouncer` on the `PATH`: `cargo xtask test` and `cargo xtask services up` install it")
    })
}

/// Converts the URL to a connection string.
fn upstream(url: &str) -> String {
    let options = PgConnectOptions::from_str(url).expect("the URL of a PostgreSQL");
    let password = match options.to_url_lossy().password() {
        Some(password) => format!(" password={password}"),
        None => String::new(),
    };
    let (host, port, user) = (options.get_host(), options.get_port(), options.get_username());
    format!("host={host} port={port} user={user}{password}")
}
