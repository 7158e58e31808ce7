//! The alerts, on `promtool` and on a real Prometheus that scrapes the real binary.

use std::path::{Path, PathBuf};
use std::process::Command;

use relevo_testkit::prometheus::{Prometheus, promtool};

use crate::running::{Directory, Running, eventually};

const RULES: &str = include_str!("../../ops/alerts.yml");
const TESTS: &str = include_str!("../../ops/alerts.test.yml");

fn ops() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("ops")
}

fn names() -> Vec<&'static str> {
    RULES.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect()
}

fn run(arguments: &[&str], file: &str) {
    let output = Command::new(promtool()).args(arguments).arg(ops().join(file)).output().expect("`promtool` runs");
    let text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
}

#[test]
fn every_alert_fires_and_stays_silent_when_it_should() {
    run(&["check", "rules", "--lint-fatal"], "alerts.yml");
    run(&["test", "rules"], "alerts.test.yml");
    let expected =
        ["TicketFlowEventsPending", "TicketFlowEventsDead", "TicketFlowDispatchSlow", "TicketFlowBreakerOpen"];
    assert_eq!(names(), expected);
    for name in names() {
        let fires = format!("alertname: {name}\n        exp_alerts:\n");
        let silent = format!("alertname: {name}\n        exp_alerts: []\n");
        assert!(TESTS.contains(&fires) && TESTS.contains(&silent), "{name} lacks a test of one kind");
    }
}

#[test]
fn every_alert_names_an_existing_runbook() {
    let top = ops().ancestors().nth(3).expect("the top of the repository").to_owned();
    let runbooks: Vec<_> = RULES.lines().filter_map(|line| line.trim().strip_prefix("runbook_url: ")).collect();
    assert_eq!(runbooks.len(), names().len());
    for runbook in runbooks {
        assert!(top.join(runbook).exists(), "{runbook}");
    }
}

#[test]
fn prometheus_has_the_series_of_the_alerts() {
    let directory = Directory::new("alerts");
    let service = Running::start(directory.path());
    service.post("demo-ana", "/api/tickets", r#"{"title": "a", "description": "b"}"#);
    let config = format!(
        "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [alerts.yml]\n\
         scrape_configs: [{{ job_name: ticketflow, static_configs: [{{ targets: ['{}'] }}] }}]\n",
        service.address
    );
    let prometheus = Prometheus::start(&config, &[("alerts.yml", RULES)]);
    let spoken_of = ["outbox_pending_total", "mq_dlq_total", "outbox_dispatch_latency_ms_bucket", "inbox_breaker_open"];
    for series in spoken_of {
        // Only for existing series: an alert about a missing series would never fire.
        let wanted = format!("count({series}{{service=\"ticketflow\"}}) > 0");
        eventually(|| {
            let answer = prometheus.query(&wanted);
            if answer.contains("\"value\"") {
                Ok(())
            } else {
                Err(format!("{series}: {answer}\n{}", prometheus.targets()))
            }
        });
    }
    let rules = prometheus.rules();
    assert_eq!(rules.matches("\"state\":\"inactive\"").count(), names().len(), "{rules}");
    assert_eq!(rules.matches("\"lastError\"").count(), 0, "{rules}");
}
