//! The shipped rules and runbooks.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use relevo_testkit::prometheus::promtool;

/// The rule files in `ops/prometheus`.
pub(crate) const FILES: [&str; 2] = ["relevo.rules.yml", "relevo.slo.yml"];

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("two folders up").to_owned()
}

pub(crate) fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("`{}`: {error}", path.display()))
}

/// The files in a folder of the workspace whose names have this ending.
pub(crate) fn listed(folder: &str, ending: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join(folder)).expect("the folder exists");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("it can be read").path()).collect();
    paths.retain(|path| path.to_string_lossy().ends_with(ending));
    paths.sort();
    paths
}

/// The names of all alerts.
fn alerts() -> BTreeSet<String> {
    let lines: Vec<String> = FILES.iter().map(|file| read(format!("ops/prometheus/{file}"))).collect();
    let names = lines.iter().flat_map(|text| text.lines()).filter_map(|line| line.trim().strip_prefix("- alert: "));
    names.map(str::to_owned).collect()
}

/// The names of the files of a folder, without their ending.
fn stems(folder: &str, ending: &str) -> BTreeSet<String> {
    let name = |path: &PathBuf| path.file_name().expect("a file").to_string_lossy().trim_end_matches(ending).to_owned();
    listed(folder, ending).iter().map(name).collect()
}

fn run(command: &mut Command) {
    let output = command.output().expect("`promtool` runs");
    let text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
}

#[test]
fn every_rule_is_valid() {
    let files = FILES.map(|file| root().join("ops/prometheus").join(file));
    run(Command::new(promtool()).args(["check", "rules", "--lint-fatal"]).args(files));
}

#[test]
fn every_alert_fires_and_stays_silent_when_it_should() {
    run(Command::new(promtool()).args(["test", "rules"]).args(listed("ops/prometheus/tests", ".test.yml")));
}

#[test]
fn every_alert_has_tests_of_both_kinds_and_a_runbook_and_no_file_is_left_over() {
    let alerts = alerts();
    assert!(alerts.len() > 20, "{alerts:?}");
    assert_eq!(stems("ops/prometheus/tests", ".test.yml"), alerts);
    assert_eq!(stems("docs/runbooks", ".md"), alerts);
    for alert in &alerts {
        let tests = read(format!("ops/prometheus/tests/{alert}.test.yml"));
        let checked = tests.matches(&format!("alertname: {alert}\n")).count();
        assert_eq!(checked, tests.matches("alertname: ").count(), "the tests of `{alert}` check another alert");
        assert!(tests.contains("exp_alerts:\n"), "no test in which `{alert}` fires");
        assert!(tests.contains("exp_alerts: []\n"), "no test in which `{alert}` is silent");
        let runbook = read(format!("docs/runbooks/{alert}.md"));
        for part in [&*format!("# {alert}\n"), "Severity: ", "\n## Check\n", "\n## Fix\n", "\n## Do not\n"] {
            assert!(runbook.contains(part), "the runbook of `{alert}` lacks `{part}`");
        }
        assert!(
            read("docs/how-to/alerts.md").contains(&format!("../runbooks/{alert}.md")),
            "the guide lacks `{alert}`"
        );
    }
}

#[test]
fn every_alert_has_a_severity_a_summary_a_description_and_a_runbook() {
    for file in FILES {
        let text = read(format!("ops/prometheus/{file}"));
        for rule in text.split("- alert: ").skip(1) {
            let (name, rest) = rule.split_once('\n').expect("a rule has lines");
            // The last rule of a group is followed by the next group.
            let rule = rest.split("- name: ").next().expect("a first part");
            let severity = rule.lines().find_map(|line| line.trim().strip_prefix("severity: "));
            assert!(matches!(severity, Some("page" | "ticket")), "{name}: {severity:?}");
            let runbook = read(format!("docs/runbooks/{name}.md"));
            assert!(runbook.contains(&format!("Severity: {}.", severity.unwrap_or_default())), "{name}");
            for part in ["summary: '", "description: '", &format!("runbook_url: docs/runbooks/{name}.md")] {
                assert_eq!(rule.matches(part).count(), 1, "`{name}`: {part}");
            }
        }
    }
}

#[test]
fn every_rule_groups_by_known_labels() {
    const LABELS: [&str; 13] = [
        "service",
        "outbox",
        "destination",
        "broker",
        "consumer",
        "lane",
        "queue",
        "class",
        "outcome",
        "instance",
        "le",
        "alertname",
        "severity",
    ];
    for file in FILES {
        for line in read(format!("ops/prometheus/{file}")).lines() {
            for grouped in line.split("by (").skip(1) {
                let (labels, _) = grouped.split_once(')').expect("a closing parenthesis");
                assert!(labels.split(", ").all(|label| LABELS.contains(&label)), "{file}: {line}");
            }
        }
    }
}
