//! Checks which crate may depend on which.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::Finding;
use crate::cargo;

/// Checks the dependencies of each package, without its dev-dependencies.
pub(super) fn check(root: &Path) -> Result<Vec<Finding>> {
    let output = cargo::command(&["metadata", "--no-deps", "--offline", "--format-version", "1"])?.output()?;
    ensure!(output.status.success(), "`cargo metadata` failed: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).context("`cargo metadata` prints JSON")?;
    let mut findings = Vec::new();
    for package in metadata["packages"].as_array().context("`cargo metadata` lists packages")? {
        let name = package["name"].as_str().unwrap_or_default();
        let manifest = PathBuf::from(package["manifest_path"].as_str().unwrap_or_default());
        let text = std::fs::read_to_string(&manifest)?;
        for dependency in normal_dependencies(package) {
            if may_depend_on(name, dependency) {
                continue;
            }
            let line = text.lines().position(|line| line.trim_start().starts_with(dependency)).unwrap_or(0) + 1;
            let file = manifest.strip_prefix(root).unwrap_or(&manifest).to_owned();
            let problem =
                format!("`{name}` may not depend on `{dependency}`; a new arrow is a decision and gets an ADR");
            findings.push(Finding { file, line, problem });
        }
    }
    Ok(findings)
}

fn normal_dependencies(package: &Value) -> impl Iterator<Item = &str> {
    let all = package["dependencies"].as_array().into_iter().flatten();
    all.filter(|dependency| dependency["kind"].is_null()).filter_map(|dependency| dependency["name"].as_str())
}

fn may_depend_on(package: &str, dependency: &str) -> bool {
    let Some(to) = dependency.strip_prefix("relevo-") else {
        return true;
    };
    let Some(from) = package.strip_prefix("relevo-") else {
        // The library may depend on adapters. The systems depend only on the library, like any user's project.
        return package == "relevo" && !FOR_TESTS.contains(&to) && to != "cli";
    };
    match from {
        "core" | "config" | "sqlite-file" => false,
        // ADR 17: a section is read by the crate that it configures.
        _ if to == "config" => !FOR_TESTS.contains(&from),
        // ADR 15: one list of file systems and result codes for all that keep a SQLite file.
        "store-sqlite" | "broker-embedded" => ["core", "sqlite-file"].contains(&to),
        "conformance" => ["core", "relay", "testkit"].contains(&to),
        "sim" => ["core", "relay", "flow", "inbox", "saga", "store-memory", "broker-memory"].contains(&to),
        // ADR 16: the host names all adapters, and runs the engines.
        "host" => !FOR_TESTS.contains(&to) && !["cli", "store-memory", "broker-memory"].contains(&to),
        "bench" | "torture" => to != "cli",
        "cli" => !FOR_TESTS.contains(&to),
        "observe" => ["core", "relay", "inbox", "admin"].contains(&to),
        // Adapters, engines, and future crates.
        _ => to == "core",
    }
}

const FOR_TESTS: [&str; 5] = ["conformance", "testkit", "sim", "bench", "torture"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_depend_on_the_core_alone() {
        for adapter in ["relevo-store-postgres", "relevo-broker-memory"] {
            assert!(may_depend_on(adapter, "relevo-core"));
            assert!(may_depend_on(adapter, "sqlx"));
            assert!(!may_depend_on(adapter, "relevo-relay"));
            assert!(!may_depend_on(adapter, "relevo-store-memory"));
        }
    }

    #[test]
    fn adapters_with_a_sqlite_file_share_one_crate() {
        for adapter in ["relevo-store-sqlite", "relevo-broker-embedded"] {
            assert!(may_depend_on(adapter, "relevo-sqlite-file"));
            assert!(!may_depend_on("relevo-sqlite-file", adapter));
        }
        assert!(!may_depend_on("relevo-store-postgres", "relevo-sqlite-file"));
        assert!(!may_depend_on("relevo-sqlite-file", "relevo-core"));
    }

    #[test]
    fn the_core_depends_on_no_crate_and_the_relay_on_no_adapter() {
        assert!(!may_depend_on("relevo-core", "relevo-relay"));
        assert!(may_depend_on("relevo-relay", "relevo-core"));
        assert!(!may_depend_on("relevo-relay", "relevo-store-memory"));
    }

    #[test]
    fn the_observe_crate_depends_on_engines_and_no_adapter() {
        for engine in ["relevo-core", "relevo-relay", "relevo-inbox", "relevo-admin"] {
            assert!(may_depend_on("relevo-observe", engine));
            assert!(!may_depend_on(engine, "relevo-observe"));
        }
        assert!(!may_depend_on("relevo-observe", "relevo-store-postgres"));
    }

    #[test]
    fn shipped_crates_depend_on_adapters_but_not_on_test_support() {
        assert!(may_depend_on("relevo-cli", "relevo-store-postgres"));
        assert!(!may_depend_on("relevo-cli", "relevo-testkit"));
        assert!(!may_depend_on("xtask", "relevo-core"));
    }

    #[test]
    fn the_host_depends_on_adapters_and_engines_but_not_on_test_support() {
        assert!(may_depend_on("relevo-host", "relevo-broker-nats"));
        assert!(may_depend_on("relevo-host", "relevo-store-sqlite"));
        assert!(may_depend_on("relevo-host", "relevo-relay"));
        assert!(!may_depend_on("relevo-host", "relevo-broker-memory"));
        assert!(!may_depend_on("relevo-host", "relevo-testkit"));
        assert!(!may_depend_on("relevo-broker-nats", "relevo-host"));
    }

    #[test]
    fn systems_depend_on_the_library_alone() {
        assert!(may_depend_on("ticketflow", "relevo"));
        assert!(!may_depend_on("ticketflow", "relevo-relay"));
        assert!(may_depend_on("relevo", "relevo-relay"));
        assert!(!may_depend_on("relevo", "relevo-cli"));
    }

    #[test]
    fn dev_dependencies_are_not_checked() {
        let package = serde_json::json!({ "dependencies": [
            { "name": "relevo-core", "kind": null },
            { "name": "relevo-testkit", "kind": "dev" },
        ] });
        assert_eq!(normal_dependencies(&package).collect::<Vec<_>>(), ["relevo-core"]);
    }
}
