//! The demo, started as a user starts it.

use std::io::{BufRead as _, BufReader, Lines, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use relevo_testkit::browser::Browser;
use serde_json::Value;

const RELEVO: &str = env!("CARGO_BIN_EXE_relevo");
/// The end of a summary if every guarantee held.
const SOUND: &str = ": 0 lost, 0 doubled, 0 out of order";
/// How long a test waits for an effect on the page.
const EFFECT_TIMEOUT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The data directory of one test.
struct DataDir(PathBuf);

impl DataDir {
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

impl Drop for DataDir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// A running demo and its output.
struct Demo {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Demo {
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

    /// Starts the demo, and waits until it has applied messages. Returns the host of its page, too.
    fn with_page(command: Command) -> (Self, String) {
        let mut demo = Self::start(command);
        let address = demo.wait_for("http://127.0.0.1:");
        demo.wait_for("/s  applied ");
        let host = address.trim().trim_start_matches("http://").trim_end_matches('/').to_owned();
        (demo, host)
    }

    /// Stops the demo. It must end with the summary that every guarantee held.
    fn stop(mut self) {
        self.signal("-INT");
        let rest: Vec<String> = self.lines.by_ref().map(Result::unwrap).collect();
        assert_eq!(self.child.wait().expect("it is waited for once").code(), Some(0), "{rest:#?}");
        assert!(rest.last().expect("a summary").ends_with(SOUND), "{rest:#?}");
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.child.id().to_string()]).status().expect("`kill` runs");
        assert!(status.success());
    }
}

#[test]
fn the_demo_ends_by_itself_and_keeps_its_promises() {
    let data = DataDir::new("ends");
    let output = data.demo(&["--seconds", "12"]).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stdout}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    for text in [
        "rejected, parked",
        "dead-lettered",
        "the operator redrives",
        "continues in order",
        " p50 ",
        "repeats recognised",
    ] {
        assert!(stdout.contains(text), "{text}: {stdout}");
    }
    assert!(stdout.trim_end().ends_with(SOUND), "{stdout}");
    assert!(!stdout.contains('\x1b'), "a pipe is no terminal: {stdout}");
}

#[test]
fn ctrl_c_stops_the_demo_cleanly_and_prints_the_summary() {
    let data = DataDir::new("interrupted");
    let mut running = Demo::start(data.demo(&[]));
    // A key is parked when the demo is stopped.
    running.wait_for("rejected, parked");
    let interrupted = Instant::now();
    running.signal("-INT");
    let rest: Vec<String> = running.lines.by_ref().map(Result::unwrap).collect();
    assert_eq!(running.child.wait().unwrap().code(), Some(0), "{rest:#?}");
    assert!(interrupted.elapsed() < Duration::from_secs(15), "it took {:?}", interrupted.elapsed());
    assert!(rest.iter().any(|line| line.contains("interrupted: ")), "{rest:#?}");
    assert!(rest.last().unwrap().ends_with(SOUND), "{rest:#?}");
}

#[test]
fn a_killed_and_restarted_demo_loses_nothing_and_applies_nothing_twice() {
    let data = DataDir::new("killed");
    for round in 0..3 {
        let mut running = Demo::start(data.demo(&["--rate", "400"]));
        running.wait_for("/s  applied ");
        if round > 0 {
            running.wait_for("/s  applied ");
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
    let data = DataDir::new("shared");
    let mut first = Demo::start(data.demo(&[]));
    first.wait_for("/s  applied ");
    let second = data.demo(&["--seconds", "2"]).output().unwrap();
    let stdout = String::from_utf8(second.stdout).unwrap();
    assert_eq!(second.status.code(), Some(0), "{stdout}\n{}", String::from_utf8_lossy(&second.stderr));
    assert!(stdout.contains("0 doubled, 0 out of order"), "{stdout}");
    first.signal("-INT");
    let rest: Vec<String> = first.lines.by_ref().map(Result::unwrap).collect();
    assert_eq!(first.child.wait().unwrap().code(), Some(0), "{rest:#?}");
    assert!(rest.last().unwrap().ends_with(SOUND), "{rest:#?}");
}

#[test]
fn the_page_shows_the_flow() {
    let data = DataDir::new("page");
    let (demo, host) = Demo::with_page(data.demo(&[]));
    let page = request(&host, "GET", "/", "");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("<title>relevo dev</title>"), "{page}");
    assert!(page.contains("content-security-policy: default-src 'none'"), "{page}");
    let state = state(&host);
    assert!(state["counts"]["committed"].as_u64().unwrap() > 0, "{state}");
    assert_eq!(state["orders"].as_array().unwrap().len(), 40, "{state}");
    assert!(state["latency"]["p50_ms"].as_f64().unwrap() > 0.0, "{state}");
    demo.stop();
}

#[test]
fn the_printed_commands_work_beside_the_running_demo() {
    let data = DataDir::new("commands");
    let mut demo = Demo::start(data.demo(&[]));
    for _ in 0..2 {
        let line = demo.wait_for("  relevo ");
        let (_, command) = line.split_once("  relevo ").unwrap();
        let output = Command::new(RELEVO).args(command.split(' ')).output().unwrap();
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    }
    demo.stop();
}

#[test]
fn a_stopped_broker_makes_the_backlog_grow_and_loses_nothing() {
    let data = DataDir::new("stop-broker");
    let (demo, host) = Demo::with_page(data.demo(&[]));
    act(&host, "stop-broker");
    let stopped = wait_until(&host, "a backlog", |state| state["depths"]["pending"].as_i64() > Some(200));
    assert_eq!(stopped["broker_up"], false);
    let later = wait_until(&host, "a longer backlog", |state| state["depths"]["pending"].as_i64() > Some(400));
    assert_eq!(later["counts"]["published"], stopped["counts"]["published"], "a stopped broker confirms nothing");
    assert!(later["counts"]["committed"].as_u64() > stopped["counts"]["committed"].as_u64(), "the shop continues");
    act(&host, "start-broker");
    wait_until(&host, "the backlog is published", |state| state["depths"]["pending"].as_i64() < Some(100));
    assert_sound(&host);
    demo.stop();
}

#[test]
fn a_broker_that_is_stopped_when_the_demo_ends_is_started_again() {
    let data = DataDir::new("stopped-at-end");
    let (demo, host) = Demo::with_page(data.demo(&[]));
    act(&host, "stop-broker");
    wait_until(&host, "a backlog", |state| state["depths"]["pending"].as_i64() > Some(100));
    demo.stop();
}

#[test]
fn a_crashed_relay_is_replaced_when_its_leases_expire() {
    let data = DataDir::new("crash-relay");
    let (demo, host) = Demo::with_page(data.demo(&[]));
    let crashed = Instant::now();
    act(&host, "crash-relay");
    let waiting = state(&host);
    assert_eq!((&waiting["relay"]["name"], &waiting["relay"]["shards"]), (&"relay-2".into(), &0.into()));
    assert!(waiting["relay"]["lease_remaining_ms"].as_u64() > Some(1000), "nothing released the leases: {waiting}");
    let replaced = wait_until(&host, "relay-2 has the leases", |state| state["relay"]["shards"] == 8);
    assert!(crashed.elapsed() > Duration::from_secs(1), "the leases expire first");
    assert_eq!(replaced["relay"]["lease_remaining_ms"], Value::Null);
    let applied = replaced["counts"]["applied"].as_u64();
    wait_until(&host, "messages are applied", |state| {
        state["counts"]["applied"].as_u64() > applied.map(|count| count + 100)
    });
    assert_sound(&host);
    demo.stop();
}

#[test]
fn a_rejected_message_holds_its_order_alone_until_it_is_redriven() {
    let data = DataDir::new("reject");
    let (demo, host) = Demo::with_page(data.demo(&[]));
    // The first action ends the faults that the demo provokes by itself.
    act(&host, "redrive");
    wait_until(&host, "no order is held", |state| state["depths"]["dead"] == 0 && orders_in(state, "normal") == 40);
    act(&host, "reject-message");
    let rejected = wait_until(&host, "a dead letter", |state| {
        state["depths"]["dead"] == 1 && orders_in(state, "dead") == 1 && orders_in(state, "normal") == 39
    });
    let applied = rejected["counts"]["applied"].as_u64().map(|count| count + 400);
    let later = wait_until(&host, "other orders flow", |state| state["counts"]["applied"].as_u64() > applied);
    assert!(later["depths"]["parked"].as_i64() > Some(1), "later messages of the order wait: {later}");
    assert_eq!((orders_in(&later, "dead"), orders_in(&later, "parked")), (1, 0), "the demo provokes nothing by itself");
    act(&host, "redrive");
    wait_until(&host, "no order is held", |state| state["depths"]["dead"] == 0 && state["depths"]["parked"] == 0);
    assert_eq!(orders_in(&state(&host), "normal"), 40);
    assert_sound(&host);
    demo.stop();
}

#[test]
fn a_page_of_another_site_cannot_act() {
    let data = DataDir::new("cross-site");
    let (demo, host) = Demo::with_page(data.demo(&[]));
    for headers in ["origin: http://evil.example\r\n", "origin: null\r\n", "sec-fetch-site: cross-site\r\n"] {
        let reply = request(&host, "POST", "/actions/stop-broker", headers);
        assert!(reply.starts_with("HTTP/1.1 403"), "{headers}: {reply}");
    }
    assert!(request(&host, "GET", "/actions/stop-broker", "").starts_with("HTTP/1.1 405"));
    assert!(request(&host, "POST", "/actions/format-disk", "").starts_with("HTTP/1.1 400"));
    assert_eq!(state(&host)["broker_up"], true);
    demo.stop();
}

/// With `RELEVO_SCREENSHOTS` set to a directory, the test also writes the images of the documentation there.
#[test]
fn every_button_of_the_page_does_what_it_says() {
    let data = DataDir::new("browser");
    std::fs::create_dir_all(&data.0).unwrap();
    // As a newcomer starts it: without arguments, but for the port.
    let mut command = Command::new(RELEVO);
    command.args(["dev", "--port", "0"]).current_dir(&data.0).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (demo, host) = Demo::with_page(command);
    let browser = Browser::start("en");
    browser.emulate(1280, 860, "light");
    browser.open(&format!("http://{host}/"));

    browser.see("#broker .state", "running");
    browser.click("#toggle-broker");
    browser.see("#result", "the broker is stopped");
    browser.see("#broker .state", "stopped");
    browser.see("#shop .state", "backlog");
    browser.see("#published .rate", "0/s");
    browser.see("#toggle-broker", "Start the broker");
    browser.click("#toggle-broker");
    browser.see("#shop .state", "running");

    browser.click("#crash-relay");
    browser.see("#relay .state", "crashed");
    browser.see("#leases", "relay-2 takes over in ");
    browser.see("#leases", "relay-2 · ");

    browser.click("#reject-message");
    browser.see("#orders .dead", "dead");
    browser.see("#redrive", "Redrive (");
    if let Some(directory) = std::env::var_os("RELEVO_SCREENSHOTS") {
        wait_until(&host, "the chart has some history", |state| state["seconds"].as_f64() > Some(25.0));
        for (name, colours) in [("demo.png", "light"), ("demo-dark.png", "dark")] {
            browser.emulate(1280, 860, colours);
            std::fs::write(PathBuf::from(&directory).join(name), browser.screenshot()).unwrap();
        }
    }
    browser.click("#redrive");
    browser.see("#result", "redriven");
    browser.see("#events", "continues in order");
    wait_until(&host, "no order is held", |state| orders_in(state, "normal") == 40);

    for text in ["0 lost", "0 doubled", "0 out of order"] {
        browser.see(".proof", text);
    }
    browser.emulate(360, 740, "light");
    let width = browser.run("return document.documentElement.scrollWidth", &[]);
    assert_eq!(width, 360, "a phone does not scroll sideways");
    assert_eq!(browser.console(), Vec::<String>::new());
    demo.stop();
}

#[test]
fn a_foreign_message_is_rejected_and_breaks_nothing() {
    let data = DataDir::new("foreign");
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
        let data = DataDir::new(name);
        std::fs::create_dir_all(&data.0).unwrap();
        std::fs::write(data.0.join(name), "this is no database, and long enough to be read as one".repeat(50)).unwrap();
        let output = data.demo(&["--seconds", "1"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains(name) && stderr.contains("\nhint: "), "{stderr}");
    }
}

#[test]
fn a_port_in_use_is_reported_before_a_file_is_written() {
    let data = DataDir::new("port");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = Command::new(RELEVO).args(["dev", "--port", &port, "--data"]).arg(&data.0).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr, format!("error: port {port} is taken\nhint: `--port 0` chooses a free one\n"));
    assert!(!data.0.exists());
}

#[test]
fn a_directory_that_cannot_be_written_is_reported_with_a_hint() {
    let output = Command::new(RELEVO).args(["dev", "--port", "0", "--data", "/dev/null/here"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("error: directory `/dev/null/here` cannot be written"), "{stderr}");
    assert!(stderr.contains("hint: choose another directory with `--data`"), "{stderr}");
}

#[test]
fn a_full_disk_is_one_clear_error_and_nothing_is_lost() {
    let data = DataDir::new("full");
    std::fs::create_dir_all(&data.0).unwrap();
    // A small disk in a mount namespace of its own. The second demo uses the same files after the disk was enlarged.
    let script = "mount -t tmpfs -o size=3m none \"$1\" && \"$0\" dev --port 0 --data \"$1/small\" --rate 10000; code=$?; \
        mount -o remount,size=64m \"$1\" && \"$0\" dev --port 0 --data \"$1/small\" --seconds 1 >&2; echo \"code $code\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--map-root-user", "sh", "-c", script, RELEVO]).arg(&data.0);
    let output = command.output().expect("`unshare` runs");
    let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(stdout.contains("code 1\n"), "{stdout}\n{stderr}");
    let errors: Vec<&str> = stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{stderr}");
    assert!(errors[0].contains("full"), "{stderr}");
    assert!(stderr.contains("\nhint: free some space"), "{stderr}");
    assert!(stderr.trim_end().ends_with(SOUND), "{stderr}");
}

#[test]
fn a_closed_output_ends_the_demo_without_an_error() {
    let data = DataDir::new("reader");
    let mut child = data.demo(&[]).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut String::new()).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn request(host: &str, method: &str, path: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(host).expect("the page is served");
    let end = "connection: close\r\ncontent-length: 0\r\n\r\n";
    write!(stream, "{method} {path} HTTP/1.1\r\nhost: {host}\r\n{headers}{end}").expect("it listens");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("it replies");
    reply
}

/// Presses a button of the page.
fn act(host: &str, action: &str) {
    let origin = format!("origin: http://{host}\r\nsec-fetch-site: same-origin\r\n");
    let reply = request(host, "POST", &format!("/actions/{action}"), &origin);
    assert!(reply.starts_with("HTTP/1.1 200"), "{action}: {reply}");
}

/// What the page shows.
fn state(host: &str) -> Value {
    let reply = request(host, "GET", "/state", "");
    let (_, body) = reply.split_once("\r\n\r\n").expect("a body");
    serde_json::from_str(body).expect("JSON")
}

/// Waits until the page shows this.
fn wait_until(host: &str, what: &str, is_shown: impl Fn(&Value) -> bool) -> Value {
    let end = Instant::now() + EFFECT_TIMEOUT;
    loop {
        let state = state(host);
        if is_shown(&state) {
            return state;
        }
        assert!(Instant::now() < end, "{what}: {state:#}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn orders_in(state: &Value, key_state: &str) -> usize {
    state["orders"].as_array().expect("a list of orders").iter().filter(|order| order["state"] == key_state).count()
}

fn assert_sound(host: &str) {
    let checked = &state(host)["checked"];
    for count in ["lost", "duplicated", "out_of_order"] {
        assert_eq!(checked[count], 0, "{checked}");
    }
}
