//! The shipped dashboards.

use serde_json::Value;

use crate::prometheus::json;
use crate::rules::{listed, read};

/// The values that replace the variables of Grafana.
const VARIABLES: [(&str, &str); 5] =
    [("$__rate_interval", "5s"), ("$service", ".*"), ("$outbox", ".*"), ("$destination", ".*"), ("$consumer", ".*")];

/// One panel: its place, its queries with the variables replaced, and its JSON.
pub(crate) struct Panel {
    pub(crate) place: String,
    pub(crate) queries: Vec<String>,
    whole: Value,
}

fn dashboards() -> Vec<(String, Value)> {
    let named = |path: &std::path::PathBuf| path.file_name().expect("a file").to_string_lossy().into_owned();
    listed("ops/grafana", ".json").iter().map(|path| (named(path), json(&read(path)))).collect()
}

fn replaced(query: &str) -> String {
    VARIABLES.iter().fold(query.to_owned(), |query, (variable, value)| query.replace(variable, value))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Every panel of every dashboard that has queries.
pub(crate) fn panels() -> Vec<Panel> {
    let mut found = Vec::new();
    for (file, dashboard) in dashboards() {
        for panel in list(&dashboard["panels"]).iter().filter(|panel| panel["type"] != "row") {
            let queries =
                list(&panel["targets"]).iter().map(|target| replaced(target["expr"].as_str().expect("a query")));
            let place = format!("`{}` in {file}", panel["title"].as_str().unwrap_or_default());
            found.push(Panel { place, queries: queries.collect(), whole: panel.clone() });
        }
    }
    found
}

/// The variables of the dashboards: place, metric with its selector, and label.
pub(crate) fn variables() -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    for (file, dashboard) in dashboards() {
        for variable in list(&dashboard["templating"]["list"]).iter().filter(|variable| variable["type"] == "query") {
            let asked = variable["query"]["query"].as_str().and_then(|query| query.strip_prefix("label_values("));
            let (metric, label) =
                asked.and_then(|inner| inner.strip_suffix(')')?.rsplit_once(", ")).expect("label_values");
            found.push((format!("a variable in {file}"), replaced(metric), label.to_owned()));
        }
    }
    found
}

#[test]
fn every_dashboard_has_its_own_uid_and_a_variable_for_its_prometheus() {
    let names: Vec<String> = dashboards().iter().map(|(file, _)| file.clone()).collect();
    assert_eq!(names, ["brokers.json", "consumers.json", "outbox.json", "overview.json"]);
    for (file, dashboard) in dashboards() {
        assert_eq!(dashboard["uid"], format!("relevo-{}", file.trim_end_matches(".json")));
        assert!(dashboard["schemaVersion"].as_u64() >= Some(36), "{file}: Grafana 10 migrates older versions");
        assert!(
            list(&dashboard["templating"]["list"]).iter().any(|variable| variable["type"] == "datasource"),
            "{file}"
        );
        let mut ids: Vec<u64> = list(&dashboard["panels"]).iter().filter_map(|panel| panel["id"].as_u64()).collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert!(count > 10 && ids.len() == count && count == list(&dashboard["panels"]).len(), "{file}");
    }
}

#[test]
fn every_panel_has_a_unit_a_description_and_queries() {
    for Panel { place, queries, whole } in panels() {
        let unit = whole["fieldConfig"]["defaults"]["unit"].as_str().unwrap_or_default();
        let description = whole["description"].as_str().unwrap_or_default();
        assert!(!unit.is_empty() && description.ends_with('.'), "{place}: `{unit}`, `{description}`");
        assert!(!queries.is_empty(), "{place} has no query");
        for target in list(&whole["targets"]) {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{place}");
        }
        assert!(queries.iter().all(|query| !query.contains('$')), "{place} has an unknown variable: {queries:?}");
    }
}

#[test]
fn no_panel_overlaps_another() {
    for (file, dashboard) in dashboards() {
        let mut cells = std::collections::BTreeSet::new();
        for panel in list(&dashboard["panels"]) {
            let at = |side: &str| panel["gridPos"][side].as_u64().expect("a number");
            assert!(at("x") + at("w") <= 24, "{file}: {}", panel["title"]);
            for (x, y) in (at("x")..at("x") + at("w")).flat_map(|x| (at("y")..at("y") + at("h")).map(move |y| (x, y))) {
                assert!(cells.insert((x, y)), "{file}: {}", panel["title"]);
            }
        }
    }
}
