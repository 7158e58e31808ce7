//! Every query of the dashboards, rules and runbooks runs against a real Prometheus.

use std::collections::BTreeSet;

use relevo_testkit::prometheus::Prometheus;
use serde_json::Value;

use crate::fixture::Fixture;
use crate::panels::{Panel, panels, variables};
use crate::prometheus::{FastClock, json, start, wait_for};
use crate::rules::{FILES, listed, read};

/// The series that a query returns, each with its labels and its value, without those whose value is not a number.
fn series(prometheus: &Prometheus, query: &str) -> Vec<Value> {
    let reply = json(&prometheus.query(query));
    assert_eq!(reply["status"], "success", "`{query}`: {reply}");
    let mut series = reply["data"]["result"].as_array().cloned().unwrap_or_default();
    series.retain(|series| series["value"][1] != "NaN");
    series
}

/// Waits until a query returns at least one series.
fn expect_data(prometheus: &Prometheus, query: &str, place: &str, fixture: &Fixture) {
    let check = || (!series(prometheus, query).is_empty()).then_some(());
    let state = || format!("{}\n{}", prometheus.query(query), fixture.state());
    wait_for(&format!("data for `{query}` of {place}"), check, state);
}

/// The names of the metrics in a text, including recorded ones.
fn metric_names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_' || letter == ':'));
    let prefixes = ["outbox_", "inbox_", "mq_", "relevo_", "relevo:"];
    words.filter(|word| prefixes.iter().any(|kind| word.starts_with(kind))).collect()
}

/// The queries of a runbook: the lines of its `promql` blocks.
fn queries(page: &str) -> Vec<&str> {
    let blocks = page.split("```promql\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.flat_map(str::lines).map(str::trim).filter(|line| !line.is_empty()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_dashboard_query_returns_data_and_every_metric_of_rules_and_runbooks_exists() {
    let fixture = Fixture::start().await;
    let prometheus = start(&[fixture.daemon.admin(), fixture.consumer], FastClock(60), None);
    for Panel { place, queries, .. } in panels() {
        for query in queries {
            expect_data(&prometheus, &query, &place, &fixture);
        }
    }
    for (place, metric, label) in variables() {
        let query = format!("count by ({label}) ({metric})");
        expect_data(&prometheus, &query, &place, &fixture);
        assert!(
            series(&prometheus, &query).iter().all(|series| series["metric"][&label].is_string()),
            "{place}: {query}"
        );
    }
    every_rule_is_healthy(&prometheus);
    let rules = FILES.map(|file| read(format!("ops/prometheus/{file}")));
    let expressions: String =
        rules.iter().flat_map(|text| text.lines()).filter(|line| !line.contains("runbook")).collect();
    for metric in metric_names(&expressions) {
        expect_data(&prometheus, &format!("count({{__name__=\"{metric}\"}})"), "a rule", &fixture);
    }
    for path in listed("docs/runbooks", ".md") {
        let page = read(&path);
        let place = path.display().to_string();
        assert!(!queries(&page).is_empty(), "{place}");
        for query in queries(&page) {
            // It may return nothing in a healthy system, but it must be valid, and its metrics must exist.
            series(&prometheus, query);
            for metric in metric_names(query) {
                expect_data(&prometheus, &format!("count({{__name__=\"{metric}\"}})"), &place, &fixture);
            }
        }
    }
}

/// Every rule was evaluated without an error, and there are as many as in the files.
fn every_rule_is_healthy(prometheus: &Prometheus) {
    let shipped: usize = FILES
        .iter()
        .map(|file| {
            let text = read(format!("ops/prometheus/{file}"));
            text.matches("- alert: ").count() + text.matches("- record: ").count()
        })
        .sum();
    let check = || {
        let reply = json(&prometheus.rules());
        let groups = reply["data"]["groups"].as_array().cloned().unwrap_or_default();
        let rules: Vec<Value> =
            groups.iter().filter_map(|group| group["rules"].as_array()).flatten().cloned().collect();
        let bad = rules.iter().find(|rule| rule["health"] == "err");
        assert!(bad.is_none(), "{bad:?}");
        (rules.len() == shipped && rules.iter().all(|rule| rule["health"] == "ok")).then_some(())
    };
    wait_for("every rule is healthy", check, || prometheus.rules());
}
