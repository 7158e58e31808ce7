//! A killed test process leaves no processes and files behind.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The processes that have the directory in their environment or on their command line.
fn processes_of(directory: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").expect("/proc is mounted");
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let read = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let text = [read("environ"), read("cmdline")].concat();
        text.windows(directory.len()).any(|window| window == directory.as_bytes())
    })
    .map(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned())
    .collect()
}

#[test]
fn a_killed_process_leaves_no_server_behind() {
    let mut holder = Command::new(env!("CARGO_BIN_EXE_hold-servers")).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    let directories: Vec<_> = lines.take(2).map(Result::unwrap).collect();
    let [nats, rabbitmq] = directories.as_slice() else { panic!("two servers: {directories:?}") };
    assert!(processes_of(nats).iter().any(|name| name == "nats-server"));
    for name in ["beam.smp", "epmd"] {
        assert!(processes_of(rabbitmq).iter().any(|process| process == name), "{:?}", processes_of(rabbitmq));
    }

    holder.kill().unwrap();
    holder.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    for directory in [nats, rabbitmq] {
        while Path::new(directory).exists() || !processes_of(directory).is_empty() {
            assert!(Instant::now() < deadline, "still running: {:?}", processes_of(directory));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
