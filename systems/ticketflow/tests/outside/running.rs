//! The binary with everything embedded, in a directory of the test's own.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What the READMEs call `cargo run --release -p ticketflow`.
const TICKETFLOW: &str = env!("CARGO_BIN_EXE_ticketflow");
/// Longer than the claim of a worker that was killed with an e-mail in its hand: twice the mail server's deadline and its margin.
const DEADLINE: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(20);

/// A directory that goes with its value.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ticketflow-{name}-{}", std::process::id()));
        std::fs::remove_dir_all(&path).ok();
        std::fs::create_dir(&path).expect("the directory for temporary files can be written");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// A service that runs; it is killed when the value is dropped.
pub(crate) struct Running {
    process: Child,
    /// Host and port.
    pub(crate) address: String,
}

impl Running {
    /// Starts it in this directory, on a free port, and waits until it says that it listens.
    pub(crate) fn start(directory: &Path) -> Self {
        Self::start_with(directory, &[])
    }

    /// The same with these arguments.
    pub(crate) fn start_with(directory: &Path, arguments: &[&str]) -> Self {
        let mut command = ticketflow(directory);
        command.args(arguments);
        let log = std::fs::File::options().create(true).append(true).open(directory.join("log"));
        command.args(["--listen", "127.0.0.1:0"]).stdout(Stdio::piped()).stderr(log.expect("it can be written"));
        let mut process = command.spawn().expect("`ticketflow` runs");
        let mut said = String::new();
        let mut lines = BufReader::new(process.stdout.take().expect("it was piped"));
        lines.read_line(&mut said).expect("what it says is text");
        let address = said.trim().strip_prefix("TicketFlow listens on http://").map(str::to_owned);
        // Later output is ignored, but must be read.
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        let log = || std::fs::read_to_string(directory.join("log")).unwrap_or_default();
        Self { process, address: address.unwrap_or_else(|| panic!("it does not start: `{said}`\n{}", log())) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Ends it at once, in the midst of whatever it does.
    pub(crate) fn kill(mut self) {
        self.process.kill().expect("it runs");
        self.process.wait().expect("it is ours");
    }

    /// What `curl` says to these words of a shell, in which `http://127.0.0.1:8080` stands for this service.
    pub(crate) fn curl(&self, words: &str) -> String {
        shell(&words.replace("127.0.0.1:8080", &self.address), Path::new("/"))
    }

    /// Does what a `POST` asks for, and returns the answer.
    pub(crate) fn post(&self, token: &str, path: &str, body: &str) -> String {
        self.curl(&format!(
            "curl -sSf http://127.0.0.1:8080{path} -H 'Authorization: Bearer {token}' -H 'Content-Type: application/json' -d '{body}'"
        ))
    }

    /// Reads by `GET` until the answer has this in it.
    pub(crate) fn wait_for(&self, token: &str, path: &str, text: &str) -> String {
        let words = format!("curl -sS -H 'Authorization: Bearer {token}' 'http://127.0.0.1:8080{path}'");
        eventually(|| {
            let answer = self.curl(&words);
            if answer.contains(text) { Ok(answer) } else { Err(format!("no `{text}` in {answer}")) }
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have been killed before.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// The binary in this directory, without settings of the caller's environment.
pub(crate) fn ticketflow(directory: &Path) -> Command {
    let mut command = Command::new(TICKETFLOW);
    command.current_dir(directory).stdin(Stdio::null());
    command
}

/// Why it does not start with these arguments; one that does start is ended, and the test fails.
pub(crate) fn refusal(directory: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("timeout");
    command.args(["30", TICKETFLOW]).args(arguments).current_dir(directory).stdin(Stdio::null());
    let output = command.output().expect("`timeout` runs");
    let text = String::from_utf8(output.stderr).expect("what it says is text");
    assert_eq!(output.status.code(), Some(1), "it is not refused: {text}");
    text
}

/// What a line of a shell writes.
pub(crate) fn shell(line: &str, directory: &Path) -> String {
    let output = Command::new("sh").args(["-euc", line]).current_dir(directory).output().expect("`sh` runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "`{line}` fails: {text}");
    String::from_utf8(output.stdout).expect("text")
}

/// Tries until it succeeds, and panics with the last reason when the time is over.
pub(crate) fn eventually<T>(mut attempt: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(reason) => assert!(Instant::now() < deadline, "{reason}"),
        }
        std::thread::sleep(POLL);
    }
}
