//! A mail server of one test's own: aiosmtpd, which speaks real SMTP and keeps what it takes.
//!
//! The recipient's address says what happens to a message; `smtp.py` has the list.

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

/// A mail server; it ends, and its files go, when the value is dropped, and also when the test panics or is killed.
pub struct Smtp {
    scratch: Scratch,
    port: u16,
    process: Child,
    asks: Asks,
}

/// What a mail server asks of its clients.
#[derive(Clone, Debug, Default)]
pub struct Asks {
    /// TLS with this certificate, after STARTTLS.
    pub tls: Option<Pair>,
    /// TLS from the first byte on.
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
    /// Starts one that takes letters of anybody.
    pub fn start() -> Self {
        Self::start_that(&Asks::default())
    }

    /// Starts one that asks something of its clients.
    pub fn start_that(asks: &Asks) -> Self {
        // Debian's own Python has Debian's aiosmtpd.
        let python = program("RELEVO_TEST_PYTHON", "/usr/bin/python3");
        for _ in 0..STARTS_MAX {
            let scratch = Scratch::for_marked();
            let port = scratch.reserve_port();
            let process = spawn(&python, &scratch, port, asks);
            let mut server = Self { scratch, port, process, asks: asks.clone() };
            if server.becomes_ready() {
                return server;
            }
            // Somebody else may have been quicker to the port.
            let log = server.errors();
            assert!(
                log.contains("address already in use"),
                "the mail server does not start (`cargo xtask services up`?):\n{log}"
            );
        }
        panic!("it finds no free port");
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// As clients are told it.
    pub fn url(&self) -> String {
        format!("smtp://{}", self.address())
    }

    /// What it kept, in order: the bytes of each message.
    pub fn mails(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.scratch.path().join("mail")).expect("the server has made it");
        let mut files: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
        files.sort();
        files.into_iter().map(|file| std::fs::read_to_string(file).expect("mails of tests are text")).collect()
    }

    /// What happened there so far, a line an event: `asked RECIPIENT TIMES MS`, by a clock that only goes
    /// forward, `kept RECIPIENT NAME`, `unwelcome SENDER`, `spurned RECIPIENT`, `login right` or `wrong`.
    pub fn events(&self) -> Vec<String> {
        let log = std::fs::read_to_string(self.scratch.path().join("events")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    /// From now on, the answer to a message that was kept waits for [`release`](Self::release).
    pub fn hold(&self) {
        std::fs::write(self.scratch.path().join("hold"), "").expect("the directory can be written");
    }

    /// Answers what waits.
    pub fn release(&self) {
        std::fs::remove_file(self.scratch.path().join("hold")).expect("it was held");
    }

    /// From now on, no sender has an answer, until [`hear`](Self::hear).
    pub fn deafen(&self) {
        std::fs::write(self.scratch.path().join("deaf"), "").expect("the directory can be written");
    }

    /// Senders are answered again.
    pub fn hear(&self) {
        std::fs::remove_file(self.scratch.path().join("deaf")).expect("it was deaf");
    }

    /// From now on, every sender has this answer, such as `553 5.7.1 not yours`, until [`welcome`](Self::welcome).
    pub fn unwelcome(&self, answer: &str) {
        self.put("unwelcome", answer);
    }

    /// Senders are taken again.
    pub fn welcome(&self) {
        std::fs::remove_file(self.scratch.path().join("unwelcome")).expect("senders were refused");
    }

    /// From now on, every message has this answer when it has come, such as `451 4.7.1 service unavailable`, until
    /// [`unspurn`](Self::unspurn).
    pub fn spurn(&self, answer: &str) {
        self.put("spurned", answer);
    }

    /// Messages are taken again.
    pub fn unspurn(&self) {
        std::fs::remove_file(self.scratch.path().join("spurned")).expect("messages were spurned");
    }

    /// From now on, every recipient but those of one domain has this answer, such as `554 5.7.1 relay access denied`, until
    /// [`unbar`](Self::unbar).
    pub fn bar_but(&self, domain: &str, answer: &str) {
        self.put("barred", &format!("{answer}\n{domain}"));
    }

    /// Recipients are taken again.
    pub fn unbar(&self) {
        std::fs::remove_file(self.scratch.path().join("barred")).expect("recipients were barred");
    }

    /// Ends it at once; what it kept stays.
    pub fn kill9(&mut self) {
        marked::kill9(self.scratch.path());
        // Before it has its mark it is in no listing, and would be waited for without an end.
        self.process.kill().ok();
        self.process.wait().ok();
    }

    /// Starts it again on the same port, after [`kill9`](Self::kill9). What it knew of recipients is forgotten.
    pub fn start_again(&mut self) {
        let python = program("RELEVO_TEST_PYTHON", "/usr/bin/python3");
        self.process = spawn(&python, &self.scratch, self.port, &self.asks);
        assert!(self.becomes_ready(), "the mail server does not start again:\n{}", self.errors());
    }

    /// Moved into place, so that the server never reads half of it.
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
    // A group of its own: what interrupts the test must not end the server before the test has seen it.
    command.process_group(0).spawn().expect("Python runs")
}

impl Drop for Smtp {
    fn drop(&mut self) {
        marked::signal(self.scratch.path(), "KILL");
        self.process.kill().ok();
        // Nobody can act on a failure here, and a panic in drop would hide the test's own.
        self.process.wait().ok();
    }
}
