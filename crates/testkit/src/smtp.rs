//! A mail server for a single test: aiosmtpd, which speaks real SMTP and stores accepted messages.
//!
//! The recipient's address selects the treatment of a message; `smtp.py` has the list.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::certs::Pair;
use crate::installed::program;
use crate::marked;
use crate::scratch::Scratch;

const STARTS_MAX: usize = 10;
const READY_DEADLINE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);

/// A mail server. It stops, and its files are deleted, when the value is dropped or the test panics or is killed.
pub struct Smtp {
    scratch: Scratch,
    port: u16,
    process: Child,
    asks: Asks,
}

/// The requirements of a mail server for its clients.
#[derive(Clone, Debug, Default)]
pub struct Asks {
    /// TLS with this certificate, through STARTTLS.
    pub tls: Option<Pair>,
    /// TLS from the first byte.
    pub wrapped: bool,
    /// User and password.
    pub login: Option<(String, String)>,
}

impl Asks {
    fn arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        if let Some(pair) = &self.tls {
            arguments.extend([format!("cert={}", pair.cert.display()), format!("key={}", pair.key.display())]);
        }
        if self.wrapped {
            arguments.push("wrapped=yes".to_owned());
        }
        arguments.extend(self.login.iter().map(|(user, password)| format!("login={user}:{password}")));
        arguments
    }
}

impl Smtp {
    /// Starts a server that accepts mail from any client.
    pub fn start() -> Self {
        Self::start_that(&Asks::default())
    }

    /// Starts a server with requirements for its clients.
    pub fn start_that(asks: &Asks) -> Self {
        // Debian's own Python includes Debian's aiosmtpd.
        let python = program("RELEVO_TEST_PYTHON", "/usr/bin/python3");
        for _ in 0..STARTS_MAX {
            let scratch = Scratch::for_marked();
            let port = scratch.reserve_port();
            let process = spawn(&python, &scratch, port, asks);
            let mut server = Self { scratch, port, process, asks: asks.clone() };
            if server.becomes_ready() {
                return server;
            }
            // Another process may have taken the port first.
            let log = server.errors();
            assert!(
                log.contains("address already in use"),
                "the mail server does not start (`cargo xtask services up`?):\n{log}"
            );
        }
        panic!("it finds no free port");
    }

    /// The address on which it listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// The URL for clients.
    pub fn url(&self) -> String {
        format!("smtp://{}", self.address())
    }

    /// The stored messages in order, each as received.
    pub fn mails(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.scratch.path().join("mail")).expect("the server created it");
        let mut files: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
        files.sort();
        files.into_iter().map(|file| std::fs::read_to_string(file).expect("mails of tests are text")).collect()
    }

    /// All events so far, one per line: `asked RECIPIENT TIMES MS` (milliseconds of a monotonic clock),
    /// `kept RECIPIENT NAME`, `unwelcome SENDER`, `spurned RECIPIENT`, `login right` or `wrong`.
    pub fn events(&self) -> Vec<String> {
        let log = std::fs::read_to_string(self.scratch.path().join("events")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    /// From now on, stores messages but delays the response until [`release`](Self::release).
    pub fn hold(&self) {
        std::fs::write(self.scratch.path().join("hold"), "").expect("the directory can be written");
    }

    /// Sends the delayed responses.
    pub fn release(&self) {
        std::fs::remove_file(self.scratch.path().join("hold")).expect("it was held");
    }

    /// From now on, does not respond to `MAIL FROM`, until [`hear`](Self::hear).
    pub fn deafen(&self) {
        std::fs::write(self.scratch.path().join("deaf"), "").expect("the directory can be written");
    }

    /// Responds to senders again.
    pub fn hear(&self) {
        std::fs::remove_file(self.scratch.path().join("deaf")).expect("it was deaf");
    }

    /// From now on, rejects every sender with this response, such as `553 5.7.1 not yours`, until
    /// [`welcome`](Self::welcome).
    pub fn unwelcome(&self, answer: &str) {
        self.put("unwelcome", answer);
    }

    /// Accepts senders again.
    pub fn welcome(&self) {
        std::fs::remove_file(self.scratch.path().join("unwelcome")).expect("senders were refused");
    }

    /// From now on, rejects every received message with this response, such as `451 4.7.1 service unavailable`, until
    /// [`unspurn`](Self::unspurn).
    pub fn spurn(&self, answer: &str) {
        self.put("spurned", answer);
    }

    /// Accepts messages again.
    pub fn unspurn(&self) {
        std::fs::remove_file(self.scratch.path().join("spurned")).expect("messages were spurned");
    }

    /// From now on, rejects every recipient outside one domain with this response, such as
    /// `554 5.7.1 relay access denied`, until [`unbar`](Self::unbar).
    pub fn bar_but(&self, domain: &str, answer: &str) {
        self.put("barred", &format!("{answer}\n{domain}"));
    }

    /// Accepts all recipients again.
    pub fn unbar(&self) {
        std::fs::remove_file(self.scratch.path().join("barred")).expect("recipients were barred");
    }

    /// Kills the server. The stored messages remain.
    pub fn kill9(&mut self) {
        marked::kill9(self.scratch.path());
        // A process that does not have its mark yet is in no listing. Without this kill, `wait` would never return.
        self.process.kill().ok();
        self.process.wait().ok();
    }

    /// Starts the server again on the same port, after [`kill9`](Self::kill9). It loses its state about recipients.
    pub fn start_again(&mut self) {
        let python = program("RELEVO_TEST_PYTHON", "/usr/bin/python3");
        self.process = spawn(&python, &self.scratch, self.port, &self.asks);
        assert!(self.becomes_ready(), "the mail server does not start again:\n{}", self.errors());
    }

    /// Writes the file under another name and renames it, so that the server never reads a partial file.
    fn put(&self, name: &str, text: &str) {
        let (unfinished, file) = (self.scratch.path().join("unfinished"), self.scratch.path().join(name));
        std::fs::write(&unfinished, text).expect("the directory can be written");
        std::fs::rename(unfinished, file).expect("the directory can be written");
    }

    fn becomes_ready(&mut self) -> bool {
        let deadline = Instant::now() + READY_DEADLINE;
        while Instant::now() < deadline && self.process.try_wait().expect("the process is ours").is_none() {
            if self.events().iter().any(|event| event == "ready") {
                return true;
            }
            std::thread::sleep(POLL);
        }
        false
    }

    fn errors(&self) -> String {
        std::fs::read_to_string(self.scratch.path().join("errors")).unwrap_or_default()
    }
}

fn spawn(python: &PathBuf, scratch: &Scratch, port: u16, asks: &Asks) -> Child {
    let file = |name: &str| std::fs::File::create(scratch.path().join(name)).expect("the directory can be written");
    let mut command = Command::new(python);
    command.args(["-c", include_str!("smtp.py"), &port.to_string()]).arg(scratch.path()).args(asks.arguments());
    command.env(marked::VARIABLE, scratch.path());
    command.stdin(Stdio::null()).stdout(file("events")).stderr(file("errors"));
    // The server gets its own process group: an interrupt of the test must not end the server first.
    command.process_group(0).spawn().expect("Python runs")
}

impl Drop for Smtp {
    fn drop(&mut self) {
        marked::signal(self.scratch.path(), "KILL");
        self.process.kill().ok();
        // No caller can act on a failure here, and a panic in `drop` would hide the test's own.
        self.process.wait().ok();
    }
}
