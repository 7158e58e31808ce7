//! The API and the worker as two processes on the same embedded files, and the heartbeats that the worker logs.

use serde_json::Value;

use crate::running::{Directory, Running, eventually, refusal, ticketflow};

const CONFIG: [&str; 2] = ["--config", "ticketflow.toml"];

/// A directory with this configuration, and the token of an agent there.
fn configured(name: &str, config: &str) -> (Directory, String) {
    let directory = Directory::new(name);
    std::fs::write(directory.path().join("ticketflow.toml"), config).expect("the directory can be written");
    let added = ["person", "add", "Zoe", "zoe@ticketflow.example", "agent"];
    let output = ticketflow(directory.path()).args(added).args(CONFIG).output().expect("`ticketflow` runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (directory, String::from_utf8(output.stdout).expect("a token is text").trim().to_owned())
}

const TICKET: &str = r#"{"title": "Two halves", "description": "One file."}"#;

#[test]
fn an_api_and_a_worker_share_the_embedded_files() {
    let (directory, token) = configured("roles", "");
    let api = Running::start_with(directory.path(), &[&CONFIG[..], &["--role", "api"]].concat());
    api.post(&token, "/api/tickets", TICKET);
    api.wait_for("", "/health", r#"}},"status":"degraded"}"#);
    let emails = || std::fs::read_dir(directory.path().join("ticketflow-data/mail")).map_or(0, Iterator::count);
    assert_eq!(emails(), 0, "no worker runs yet");
    let worker = Running::start_with(directory.path(), &[&CONFIG[..], &["--role", "worker"]].concat());
    eventually(|| if emails() == 1 { Ok(()) } else { Err(format!("{} e-mails", emails())) });
    api.wait_for(&token, "/api/emails", "Two halves");
    api.wait_for(&token, "/api/figures", r#""open":1"#);
    for process in [&api, &worker] {
        process.wait_for("", "/health", r#"}},"status":"ok"}"#);
    }
    assert!(worker.curl("curl -s http://127.0.0.1:8080/api/me").is_empty(), "a worker has no API");
}

/// Each process would have its own embedded broker, so the worker would never receive the events of the API.
#[test]
fn a_single_role_on_postgresql_is_rejected_without_a_broker() {
    let directory = Directory::new("apart");
    // No server listens at this address. The check comes before the first connection.
    let config = "[database]\nurl = 'postgres://127.0.0.1:1/tickets'\n";
    std::fs::write(directory.path().join("ticketflow.toml"), config).expect("the directory can be written");
    for role in ["api", "worker"] {
        let refused = refusal(directory.path(), &[&CONFIG[..], &["--role", role, "--listen", "127.0.0.1:0"]].concat());
        assert!(refused.contains("`broker`: is missing beside PostgreSQL") && refused.contains("hint: "), "{refused}");
    }
    assert!(!directory.path().join("ticketflow-data").exists(), "no file was created");
}

#[test]
fn a_worker_logs_heartbeats_with_the_time_of_its_last_message() {
    let (directory, token) = configured("heartbeat", "[worker]\nheartbeat_s = 1\n");
    let service = Running::start_with(directory.path(), &CONFIG);
    let beats = || -> Vec<Value> {
        let log = std::fs::read_to_string(directory.path().join("log")).expect("it writes one");
        let lines = log.lines().filter_map(|line| serde_json::from_str(line).ok());
        lines.filter(|line: &Value| line["message"] == "the worker lives").collect()
    };
    let more_than = |known: usize, handled: bool| {
        eventually(|| {
            let beats = beats();
            let last = beats.last().filter(|last| last["last_message"].is_string() == handled);
            if beats.len() > known && last.is_some() { Ok(beats) } else { Err(format!("{beats:?}")) }
        })
    };
    let before = more_than(2, false);
    let time = |beat: &Value| beat["timestamp"].as_str().and_then(|at| at.parse::<jiff::Timestamp>().ok());
    let [first, .., last] = &before[..] else { panic!("{before:?}") };
    let took = time(last).zip(time(first)).map(|(last, first)| last.duration_since(first)).expect("times");
    let periods = i32::try_from(before.len() - 1).expect("few");
    let apart = took.as_secs_f64() / f64::from(periods);
    assert!((0.5..2.0).contains(&apart), "{apart} s apart: {before:?}");
    service.post(&token, "/api/tickets", TICKET);
    let after = more_than(before.len(), true);
    let last = after.last().expect("at least one");
    assert!(last["last_message"].as_str().is_some_and(|at| at.parse::<jiff::Timestamp>().is_ok()), "{last}");
    assert!(last["handled"].as_u64().is_some_and(|handled| handled > 0), "{last}");
}
