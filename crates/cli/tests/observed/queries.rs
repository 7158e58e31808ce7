//! Every question that dashboards, rules and runbooks ask is asked of a real Prometheus.

use std::collections::BTreeSet;

use relevo_testkit::prometheus::Prometheus;
use serde_json::Value;

use crate::panels::{Panel, panels, variables};
use crate::rules::{FILES, listed, read};
use crate::scene::Scene;
use crate::watch::{Haste, json, wait_for, watch};

/// The series that answer, each with its labels and its value; those without a number are left out.
fn answer(prometheus: &Prometheus, query: &str) -> Vec<Value> {
    let answer = json(&prometheus.query(query));
    assert_eq!(answer["status"], "success", "`{query}`: {answer}");
    let mut series = answer["data"]["result"].as_array().cloned().unwrap_or_default();
    series.retain(|series| series["value"][1] != "NaN");
    series
}

fn answers(prometheus: &Prometheus, query: &str, asked_by: &str, scene: &Scene) {
    let look = || (!answer(prometheus, query).is_empty()).then_some(());
    let seen = || format!("{}\n{}", prometheus.query(query), scene.told());
    wait_for(&format!("an answer to `{query}` of {asked_by}"), look, seen);
}

/// The names of metrics in a text, also those that rules record.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_' || letter == ':'));
    let kinds = ["outbox_", "inbox_", "broker_", "mq_", "relevo_", "relevo:"];
    words.filter(|word| kinds.iter().any(|kind| word.starts_with(kind))).collect()
}

/// The queries of a runbook: the lines of its blocks in Prometheus's language.
fn queries(page: &str) -> Vec<&str> {
    let blocks = page.split("```promql\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.flat_map(str::lines).map(str::trim).filter(|line| !line.is_empty()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_panel_has_data_and_every_rule_and_runbook_asks_what_is_there() {
    let scene = Scene::start().await;
    let prometheus = watch(&[scene.daemon.admin(), scene.consumer], Haste(60), None);
    for Panel { place, queries, .. } in panels() {
        for query in queries {
            answers(&prometheus, &query, &place, &scene);
        }
    }
    for (place, metric, label) in variables() {
        let asked = format!("count by ({label}) ({metric})");
        answers(&prometheus, &asked, &place, &scene);
        assert!(
            answer(&prometheus, &asked).iter().all(|series| series["metric"][&label].is_string()),
            "{place}: {asked}"
        );
    }
    every_rule_is_healthy(&prometheus);
    let rules = FILES.map(|file| read(format!("ops/prometheus/{file}")));
    let expressions: String =
        rules.iter().flat_map(|text| text.lines()).filter(|line| !line.contains("runbook")).collect();
    for metric in names(&expressions) {
        answers(&prometheus, &format!("count({{__name__=\"{metric}\"}})"), "a rule", &scene);
    }
    for path in listed("docs/runbooks", ".md") {
        let page = read(&path);
        let place = path.display().to_string();
        assert!(!queries(&page).is_empty(), "{place}");
        for query in queries(&page) {
            // It may have nothing to tell while all is well, but it asks of what there is.
            answer(&prometheus, query);
            for metric in names(query) {
                answers(&prometheus, &format!("count({{__name__=\"{metric}\"}})"), &place, &scene);
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
    let look = || {
        let told = json(&prometheus.rules());
        let groups = told["data"]["groups"].as_array().cloned().unwrap_or_default();
        let rules: Vec<Value> =
            groups.iter().filter_map(|group| group["rules"].as_array()).flatten().cloned().collect();
        let bad = rules.iter().find(|rule| rule["health"] == "err");
        assert!(bad.is_none(), "{bad:?}");
        (rules.len() == shipped && rules.iter().all(|rule| rule["health"] == "ok")).then_some(())
    };
    wait_for("every rule is healthy", look, || prometheus.rules());
}
