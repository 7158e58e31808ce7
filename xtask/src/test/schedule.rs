//! Runs test programs in parallel.

use std::io::{BufReader, Write as _};
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::program::NamedCommand;
use super::report::{ProgramResult, Report};
use crate::runner::Runner;

/// A program without output for this long is stuck. It is killed, so that the run still reports the other programs.
const SILENCE_MAX: Duration = Duration::from_mins(10);

/// One program per processor. Each runs as many tests at once; with more, servers are slower than tests expect.
pub(super) fn jobs() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Runs all programs, `jobs` at a time, in the given order. Prints the output of each when it ends.
pub(super) fn run(runner: &Runner, jobs: usize, programs: Vec<NamedCommand>, report: &mut Report) -> Result<()> {
    let (queue, report) = (Mutex::new(programs.into_iter()), Mutex::new(report));
    std::thread::scope(|scope| {
        let worker = || -> Result<()> {
            loop {
                let next = queue.lock().expect("no holder panics").next();
                let Some(program) = next else { return Ok(()) };
                let (result, output) = run_one(runner, program, SILENCE_MAX)?;
                let mut report = report.lock().expect("no holder panics");
                print(&result, &output)?;
                report.add(result);
            }
        };
        let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
    })
}

fn run_one(runner: &Runner, program: NamedCommand, silence_max: Duration) -> Result<(ProgramResult, Vec<u8>)> {
    let NamedCommand { name, mut command } = program;
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let (started, mut output) = (Instant::now(), Vec::new());
    let succeeded = runner.with(&mut command, |child| follow(runner, child, silence_max, &mut output))?;
    Ok((ProgramResult::new(name, started.elapsed(), succeeded, &output), output))
}

/// Collects the output of a program until it ends. Kills the program if it prints nothing for too long.
fn follow(runner: &Runner, child: &mut Child, silence_max: Duration, output: &mut Vec<u8>) -> Result<()> {
    let (lines, received) = mpsc::sync_channel(64);
    let stdout = child.stdout.take().context("the output was piped")?;
    let stderr = child.stderr.take().context("the output was piped")?;
    let group = child.id();
    std::thread::scope(|scope| {
        let sender = lines.clone();
        scope.spawn(move || send_lines(BufReader::new(stdout), &sender));
        scope.spawn(move || send_lines(BufReader::new(stderr), &lines));
        loop {
            match received.recv_timeout(silence_max) {
                Ok(line) => output.extend_from_slice(&line),
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Err(RecvTimeoutError::Timeout) => {
                    output.extend_from_slice(format!("error: no output for {silence_max:?}, killed\n").as_bytes());
                    runner.kill(group);
                }
            }
        }
    })
}

fn send_lines(mut source: impl std::io::BufRead, lines: &mpsc::SyncSender<Vec<u8>>) {
    loop {
        let mut line = Vec::new();
        // `lines()` does not work here: a test may print bytes that are not UTF-8.
        match source.read_until(b'\n', &mut line) {
            Ok(1..) if lines.send(line).is_ok() => {}
            _ => return,
        }
    }
}

fn print(result: &ProgramResult, output: &[u8]) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "\n==> {}", result.name)?;
    stdout.write_all(output)?;
    writeln!(stdout, "==> {} {} in {:.1} s", result.name, result.outcome(), result.elapsed.as_secs_f64())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::run_one;
    use crate::runner::Runner;
    use crate::test::program::NamedCommand;

    #[test]
    fn a_stuck_program_is_killed_and_its_finished_tests_count() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo 'test result: ok. 3 passed; 0 failed; 0 ignored'; sleep 1000"]);
        let program = NamedCommand { name: "stuck".to_owned(), command };
        let (result, output) = run_one(&Runner::new().unwrap(), program, Duration::from_secs(1)).unwrap();
        assert!(!result.succeeded);
        assert_eq!(result.tally.passed, 3);
        assert!(String::from_utf8_lossy(&output).contains("no output for 1s"));
    }
}
