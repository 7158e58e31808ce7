//! The demo, started as a user starts it.

use std::io::{BufRead as _, BufReader, Lines, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const RELEVO: &str = env!("CARGO_BIN_EXE_relevo");
/// The end of a summary if every guarantee held.
const SOUND: &str = ": nothing lost, nothing applied twice, every order in sequence";

/// The data directory of one test.
struct Data(PathBuf);

impl Data {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("relevo-dev-{}-{name}", std::process::id()));
        std::fs::remove_dir_all(&path).ok();
        Self(path)
    }

    /// The demo in this directory, on a free port.
    fn demo(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(RELEVO);
        command.args(["dev", "--port", "0", "--data"]).arg(&self.0).args(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// A running demo and its output.
struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().expect("`relevo` runs");
        let lines = BufReader::new(child.stdout.take().expect("it was piped")).lines();
        Self { child, lines }
    }

    /// Reads up to the first line that contains this text.
    fn wait_for(&mut self, text: &str) -> String {
        let mut seen = Vec::new();
        for line in self.lines.by_ref().map(|line| line.expect("output is text")) {
            if line.contains(text) {
                return line;
            }
            seen.push(line);
        }
        let mut stderr = String::new();
        self.child.stderr.take().expect("it was piped").read_to_string(&mut stderr).expect("stderr is text");
        panic!("it ended before it printed `{text}`: {seen:#?}\n{stderr}");
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.child.id().to_string()]).status().expect("`kill` runs");
        assert!(status.success());
    }
}

#[test]
fn the_demo_ends_by_itself_and_keeps_its_promises() {
    let data = Data::new("ends");
    let output = data.demo(&["--seconds", "12"]).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stdout}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    for said in [
        "rejected, parked",
        "dead-lettered",
        "the operator redrives",
        "continues in order",
        " p50 ",
        "repeats recognised",
    ] {
        assert!(stdout.contains(said), "{said}: {stdout}");
    }
    assert!(stdout.trim_end().ends_with(SOUND), "{stdout}");
    assert!(!stdout.contains('\x1b'), "a pipe is no terminal: {stdout}");
}

#[test]
fn ctrl_c_stops_the_demo_cleanly_and_prints_the_summary() {
    let data = Data::new("interrupted");
    let mut running = Running::start(data.demo(&[]));
    // A key is parked when the demo is stopped.
    running.wait_for("rejected, parked");
    let told = Instant::now();
    running.signal("-INT");
    let rest: Vec<String> = running.lines.by_ref().map(Result::unwrap).collect();
    assert_eq!(running.child.wait().unwrap().code(), Some(0), "{rest:#?}");
    assert!(told.elapsed() < Duration::from_secs(15), "it took {:?}", told.elapsed());
    assert!(rest.iter().any(|line| line.contains("interrupted: ")), "{rest:#?}");
    assert!(rest.last().unwrap().ends_with(SOUND), "{rest:#?}");
}

#[test]
fn a_killed_and_restarted_demo_loses_nothing_and_applies_nothing_twice() {
    let data = Data::new("killed");
    for round in 0..3 {
        let mut running = Running::start(data.demo(&["--rate", "400"]));
        running.wait_for("/s  effects ");
        if round > 0 {
            running.wait_for("/s  effects ");
        }
        running.signal("-KILL");
        running.child.wait().unwrap();
    }
    let output = data.demo(&["--seconds", "1"]).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stdout}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(stdout.contains("\nbefore   "), "{stdout}");
    assert!(stdout.trim_end().ends_with(SOUND), "{stdout}");
}

#[test]
fn two_demos_can_share_a_directory() {
    let data = Data::new("shared");
    let mut first = Running::start(data.demo(&[]));
    first.wait_for("/s  effects ");
    let second = data.demo(&["--seconds", "2"]).output().unwrap();
    let said = String::from_utf8(second.stdout).unwrap();
    assert_eq!(second.status.code(), Some(0), "{said}\n{}", String::from_utf8_lossy(&second.stderr));
    assert!(said.contains("nothing applied twice, every order in sequence"), "{said}");
    first.signal("-INT");
    let rest: Vec<String> = first.lines.by_ref().map(Result::unwrap).collect();
    assert_eq!(first.child.wait().unwrap().code(), Some(0), "{rest:#?}");
    assert!(rest.last().unwrap().ends_with(SOUND), "{rest:#?}");
}

#[test]
fn the_page_shows_the_flow() {
    let data = Data::new("page");
    let mut running = Running::start(data.demo(&[]));
    let watch = running.wait_for("http://127.0.0.1:");
    let host = watch.trim_start_matches("watch").trim().trim_start_matches("http://").trim_end_matches('/').to_owned();
    running.wait_for("/s  effects ");
    let page = get(&host, "/");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("<title>relevo dev</title>"), "{page}");
    assert!(page.contains("content-security-policy: default-src 'none'"), "{page}");
    let state = get(&host, "/state");
    assert!(state.contains("\"committed\":") && state.contains("\"orders\":[{"), "{state}");
    running.signal("-INT");
    drop(running.lines);
    running.child.wait().unwrap();
}

#[test]
fn a_foreign_message_is_rejected_and_breaks_nothing() {
    let data = Data::new("foreign");
    assert!(data.demo(&["--seconds", "1"]).output().unwrap().status.success());
    let url = format!("sqlite:{}", data.0.join("shop.db").display());
    let emit = Command::new(RELEVO).args(["emit", "orders", "order-1", "Nonsense", "{}", "--database", &url]).output();
    assert!(emit.unwrap().status.success());
    let output = data.demo(&["--seconds", "1"]).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stdout}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(stdout.contains("shipping rejects a message that is not an order: "), "{stdout}");
    assert!(stdout.trim_end().ends_with(SOUND), "{stdout}");
}

#[test]
fn a_file_that_is_not_a_database_is_named() {
    for name in ["shop.db", "broker.db", "shipping.db"] {
        let data = Data::new(name);
        std::fs::create_dir_all(&data.0).unwrap();
        std::fs::write(data.0.join(name), "this is no database, and long enough to look like one".repeat(50)).unwrap();
        let output = data.demo(&["--seconds", "1"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(told.contains(name) && told.contains("\nhint: "), "{told}");
    }
}

#[test]
fn a_port_in_use_is_reported_before_a_file_is_written() {
    let data = Data::new("port");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = Command::new(RELEVO).args(["dev", "--port", &port, "--data"]).arg(&data.0).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(told, format!("error: port {port} is taken\nhint: `--port 0` chooses a free one\n"));
    assert!(!data.0.exists());
}

#[test]
fn a_directory_that_cannot_be_written_is_reported_with_a_hint() {
    let output = Command::new(RELEVO).args(["dev", "--port", "0", "--data", "/dev/null/here"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.starts_with("error: directory `/dev/null/here` cannot be written"), "{told}");
    assert!(told.contains("hint: choose another directory with `--data`"), "{told}");
}

#[test]
fn a_full_disk_is_one_clear_error_and_nothing_is_lost() {
    let data = Data::new("full");
    std::fs::create_dir_all(&data.0).unwrap();
    // A small disk in a mount namespace of its own. The second demo uses the same files after the disk was enlarged.
    let script = "mount -t tmpfs -o size=3m none \"$1\" && \"$0\" dev --port 0 --data \"$1/small\" --rate 10000; code=$?; \
        mount -o remount,size=64m \"$1\" && \"$0\" dev --port 0 --data \"$1/small\" --seconds 1 >&2; echo \"code $code\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--map-root-user", "sh", "-c", script, RELEVO]).arg(&data.0);
    let output = command.output().expect("`unshare` runs");
    let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(stdout.contains("code 1\n"), "{stdout}\n{stderr}");
    let told: Vec<&str> = stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(told.len(), 1, "{stderr}");
    assert!(told[0].contains("full"), "{stderr}");
    assert!(stderr.contains("\nhint: free some space"), "{stderr}");
    assert!(stderr.trim_end().ends_with(SOUND), "{stderr}");
}

#[test]
fn a_closed_output_ends_the_demo_without_an_error() {
    let data = Data::new("reader");
    let mut child = data.demo(&[]).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut String::new()).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn get(host: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(host).expect("the page is served");
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").expect("it listens");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}
