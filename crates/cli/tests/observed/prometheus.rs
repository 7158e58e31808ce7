//! A Prometheus with the shipped rules whose durations are shortened.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use relevo_testkit::prometheus::Prometheus;
use serde_json::Value;

use crate::rules::{FILES, read};

/// A few scrapes suffice; a busy machine takes longer.
pub(crate) const TIMEOUT: Duration = Duration::from_mins(2);
const POLL: Duration = Duration::from_millis(100);

/// The factor by which the durations of the shipped rules are divided.
#[derive(Clone, Copy)]
pub(crate) struct FastClock(pub(crate) u64);

impl FastClock {
    /// Divides every duration of the rules: of `for`, `keep_firing_for`, in brackets and after `offset`. Nothing else
    /// changes, so the test runs the shipped expressions.
    pub(crate) fn rules(self, text: &str) -> String {
        text.split_inclusive('\n').map(|line| self.line(line)).collect()
    }

    fn line(self, line: &str) -> String {
        for key in ["for: ", "keep_firing_for: "] {
            if let Some(duration) = line.trim_start().strip_prefix(key) {
                return line.replace(duration.trim_end(), &self.divided(duration.trim_end()));
            }
        }
        let mut rest = line;
        let mut result = String::new();
        while let Some(at) = ["[", "offset "].iter().filter_map(|mark| Some(rest.find(mark)? + mark.len())).min() {
            let length = rest[at..].find(|letter: char| !letter.is_ascii_alphanumeric()).unwrap_or(rest.len() - at);
            result.push_str(&rest[..at]);
            result.push_str(&self.divided(&rest[at..at + length]));
            rest = &rest[at + length..];
        }
        result + rest
    }

    fn divided(self, duration: &str) -> String {
        let unit = duration.trim_start_matches(|letter: char| letter.is_ascii_digit());
        let number: u64 = duration.trim_end_matches(unit).parse().expect("a number and a unit");
        let seconds = match unit {
            "s" => 1,
            "m" => 60,
            "h" => 60 * 60,
            "d" => 24 * 60 * 60,
            other => panic!("unknown unit `{other}`"),
        };
        format!("{}ms", number * seconds * 1000 / self.0)
    }
}

/// Starts a Prometheus that scrapes these processes four times a second, and sends alerts to the Alertmanager, if given.
pub(crate) fn start(targets: &[SocketAddr], clock: FastClock, alertmanager: Option<&str>) -> Prometheus {
    let targets: Vec<String> = targets.iter().map(|address| format!("'{address}'")).collect();
    let alerting = alertmanager.map(|address| {
        format!("alerting: {{ alertmanagers: [{{ static_configs: [{{ targets: ['{address}'] }}] }}] }}\n")
    });
    let config = format!(
        "global: {{ scrape_interval: 250ms, scrape_timeout: 250ms, evaluation_interval: 250ms }}\n\
         rule_files: ['{}', '{}']\n\
         scrape_configs: [{{ job_name: relevo, static_configs: [{{ targets: [{}] }}] }}]\n{}",
        FILES[0],
        FILES[1],
        targets.join(", "),
        alerting.unwrap_or_default()
    );
    let rules = FILES.map(|file| clock.rules(&read(format!("ops/prometheus/{file}"))));
    Prometheus::start(&config, &[(FILES[0], &rules[0]), (FILES[1], &rules[1])])
}

pub(crate) fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Polls `check` until it returns a value; after the timeout it panics with `state`.
pub(crate) fn wait_for<T>(what: &str, mut check: impl FnMut() -> Option<T>, state: impl Fn() -> String) -> T {
    let end = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(Instant::now() < end, "timeout: {what}\n{}", state());
        std::thread::sleep(POLL);
    }
}

#[test]
fn a_fast_clock_divides_durations_and_changes_nothing_else() {
    let shipped =
        "  for: 5m\n  keep_firing_for: 90s\n  expr: max(rate(a{le=\"0.5\"}[1h])) > 300 and b[5m] offset 10m\n";
    let result = "  for: 5000ms\n  keep_firing_for: 1500ms\n  expr: max(rate(a{le=\"0.5\"}[60000ms])) > 300 and b[5000ms] offset 10000ms\n";
    assert_eq!(FastClock(60).rules(shipped), result);
    for file in FILES {
        let text = read(format!("ops/prometheus/{file}"));
        assert_eq!(FastClock(60).rules(&text).lines().count(), text.lines().count());
    }
}
