//! The demo, run as a user runs it.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const RELEVO: &str = env!("CARGO_BIN_EXE_relevo");

#[test]
fn the_demo_ends_by_itself_and_keeps_its_promises() {
    let output = Command::new(RELEVO).args(["dev", "--seconds", "3"]).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stdout}");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(stdout.contains("in memory in this version"), "{stdout}");
    assert!(stdout.contains("parked until it is tried again"), "{stdout}");
    assert!(stdout.contains("a dead letter"), "{stdout}");
    assert!(stdout.contains(" p50 "), "{stdout}");
    assert!(stdout.ends_with("all promises held\n"), "{stdout}");
    assert!(!stdout.contains('\x1b'), "a pipe is no terminal: {stdout}");
}

#[test]
fn without_arguments_it_is_the_demo_and_ctrl_c_ends_it_cleanly() {
    let mut child = Command::new(RELEVO).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // It is at work, with a key parked, when it is told to stop.
    lines.by_ref().map(Result::unwrap).find(|line| line.contains("parked until")).expect("a key is parked");
    let told = Instant::now();
    interrupt(&child);
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{rest:#?}");
    assert!(told.elapsed() < Duration::from_secs(5), "it took {:?}", told.elapsed());
    assert!(rest.iter().any(|line| line.starts_with("interrupted: ")), "{rest:#?}");
    assert_eq!(rest.last().map(String::as_str), Some("all promises held"), "{rest:#?}");
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(stderr, "");
}

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    let mut child = Command::new(RELEVO).args(["dev"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut String::new()).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn interrupt(child: &Child) {
    let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("`kill` runs");
    assert!(status.success());
}
