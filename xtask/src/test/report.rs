//! Results and durations of the test programs.

use std::time::Duration;

use crate::tally::Tally;

/// The results of all programs of a run.
#[derive(Default)]
pub(crate) struct Report {
    pub(crate) tally: Tally,
    programs: Vec<(String, Duration)>,
    tests: Vec<(String, f64)>,
    failed_tests: Vec<String>,
    failed: bool,
}

/// The result of one program.
pub(crate) struct ProgramResult {
    pub(crate) name: String,
    pub(crate) elapsed: Duration,
    pub(crate) succeeded: bool,
    pub(crate) tally: Tally,
    tests: Vec<(String, f64)>,
    failed_tests: Vec<String>,
}

impl ProgramResult {
    pub(crate) fn new(name: String, elapsed: Duration, succeeded: bool, output: &[u8]) -> Self {
        let mut tally = Tally::default();
        let (mut tests, mut failed_tests) = (Vec::new(), Vec::new());
        for line in String::from_utf8_lossy(output).lines() {
            tally.read(line);
            if let Some((test, seconds)) = test_time(line) {
                tests.push((format!("{name} {test}"), seconds));
            }
            if let Some((test, _)) = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... FAILED")) {
                failed_tests.push(format!("{name} {test}"));
            }
        }
        Self { name, elapsed, succeeded, tally, tests, failed_tests }
    }

    pub(crate) fn outcome(&self) -> &'static str {
        if self.succeeded { "passed" } else { "FAILED" }
    }
}

impl Report {
    /// Adds the result of a program. A program that failed without a failed test counts as one failure.
    pub(crate) fn add(&mut self, result: ProgramResult) {
        self.tally.add(&result.tally);
        if !result.succeeded {
            self.failed = true;
            if result.tally.failed == 0 {
                eprintln!("error: {} ended without a result; counted as one failure", result.name);
                self.tally.failed += 1;
            }
        }
        self.programs.push((result.name, result.elapsed));
        self.tests.extend(result.tests);
        self.failed_tests.extend(result.failed_tests);
    }

    pub(crate) fn build_failed(&mut self) {
        eprintln!("error: the tests do not build; counted as one failure");
        self.failed = true;
        self.tally.failed += 1;
    }

    pub(crate) fn succeeded(&self) -> bool {
        if self.tally.passed + self.tally.failed == 0 {
            eprintln!("error: no test ran");
            return false;
        }
        !self.failed && self.tally.failed == 0
    }

    /// Prints the duration of each program and of the slowest tests, and the names of failed tests.
    pub(crate) fn print_times(&self, slowest: usize) {
        println!("\n==> slowest tests, in seconds");
        let mut tests: Vec<_> = self.tests.iter().collect();
        tests.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        for (name, seconds) in tests.into_iter().take(slowest) {
            println!("{seconds:8.1}  {name}");
        }
        println!("==> programs of more than a second");
        let mut programs: Vec<_> = self.programs.iter().filter(|(_, elapsed)| elapsed.as_secs() > 0).collect();
        programs.sort_by_key(|(_, elapsed)| std::cmp::Reverse(*elapsed));
        for (name, elapsed) in programs {
            println!("{:8.1}  {name}", elapsed.as_secs_f64());
        }
        for name in &self.failed_tests {
            println!("FAILED: {name}");
        }
    }
}

/// The test name and the seconds of a line such as `test leases::expire ... ok <0.120s>`.
fn test_time(line: &str) -> Option<(&str, f64)> {
    let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let seconds = rest.split_once('<')?.1.strip_suffix("s>")?.parse().ok()?;
    Some((name, seconds))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{ProgramResult, Report};

    #[test]
    fn times_and_failures_of_tests_are_read_from_the_output() {
        let output = b"test a::b ... ok <0.120s>\ntest c ... FAILED <2.000s>\n\
            test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 2.1s\n";
        let result = ProgramResult::new("one".to_owned(), Duration::from_secs(3), false, output);
        assert_eq!(result.tests, [("one a::b".to_owned(), 0.12), ("one c".to_owned(), 2.0)]);
        assert_eq!(result.failed_tests, ["one c"]);
        let mut report = Report::default();
        report.add(result);
        assert!(!report.succeeded());
        assert_eq!(report.tally.to_string(), "1 passed, 1 failed, 0 skipped");
    }

    #[test]
    fn a_program_that_ends_without_a_result_is_a_failure() {
        let mut report = Report::default();
        report.add(ProgramResult::new("crashed".to_owned(), Duration::ZERO, false, b""));
        assert_eq!(report.tally.to_string(), "0 passed, 1 failed, 0 skipped");
        assert!(!Report::default().succeeded(), "a run without tests is no success");
    }
}
