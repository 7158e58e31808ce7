//! The JSON schema of the whole configuration, and the pages that are made from it.

use relevo_config::reference::{self, merge, named, schema_of, with};
use relevo_host::registry::BrokerConfig;
use relevo_relay::RouteSection;
use serde_json::{Value, json};

#[cfg(test)]
use super::load::PREFIX;
use super::process::{AdminSection, LogSection, ProcessSection, TracesSection};
use super::{DestinationSection, OutboxSection};

/// The schema, without what editors need in addition.
pub(super) fn schema() -> Value {
    let relay = schema_of::<relevo_relay::Config>();
    let routes = json!({ "type": "array", "items": schema_of::<RouteSection>() });
    let own_relay = {
        let mut relay = relay.clone();
        relay["description"] = "Overrides keys of `[relay]` for this destination.".into();
        relay
    };
    let destination = with(schema_of::<DestinationSection>(), "broker", BrokerConfig::schema());
    let destination = with(with(destination, "relay", own_relay), "routes", routes);
    let about = "A destination of the outbox, with its own progress. One relay serves each.";
    let outbox = with(schema_of::<OutboxSection>(), "destinations", named(about, destination));
    let about = "An outbox: one schema of a PostgreSQL database, or one SQLite file.";
    let sections = [
        ("log", schema_of::<LogSection>()),
        ("admin", schema_of::<AdminSection>()),
        ("traces", schema_of::<TracesSection>()),
        ("relay", relay),
        ("outboxes", named(about, outbox)),
    ];
    let process = merge(json!({ "type": "object" }), &schema_of::<ProcessSection>());
    let mut schema = sections.into_iter().fold(process, |schema, (name, section)| with(schema, name, section));
    schema["description"] = "What this process is called.".into();
    schema
}

/// The schema for editors.
pub(super) fn for_editors() -> Value {
    let mut schema = reference::for_editors(schema());
    schema["title"] = "Relevo".into();
    schema
}

#[cfg(test)]
const INTRODUCTION: &str = "\
# Configuration

`relevo run` and `relevo config` read a TOML file (`-c FILE`, or `RELEVO_CONFIG`, or `relevo.toml` in the current directory),
then variables, then flags; later sources override earlier ones. [relevo.example.toml](../../relevo.example.toml) has every
key with its default. A test compares this page with the program. `relevo config schema` prints a JSON schema for editors.

- **Unknown keys are errors**, in the file and among the variables, with the nearest known name. All problems are reported
  at once. `relevo config check` reports them without starting anything, and exits with 2 if there are any, as
  `relevo run` does. With `-o json` it writes one object on one line: `ok`, `file`, `warnings`, and `problems` or the
  numbers of `outboxes` and `destinations`; each problem has `problem`, `place` and `hint`.
- **Durations** are a whole number with a unit: `\"500ms\"`, `\"30s\"`, `\"5m\"`, `\"2h\"`, `\"7d\"`. **Sizes** likewise: `\"64KiB\"`,
  `\"10MiB\"`, `\"1GiB\"`.
- **Lists**: the name of a list in the singular sets one value: `url = \"…\"` for `urls = [\"…\"]`. Only one of both is allowed.
- **Variables**: `RELEVO__` and the key's path in capitals, two underscores between its parts, `-` as `_`:
  `outboxes.my-shop.schema` is `RELEVO__OUTBOXES__MY_SHOP__SCHEMA`. Names that differ only in case, `-` and `_` are
  refused, because they would share their variables. Commas separate the items of lists. Routes can be set in the file
  only. Other variables that begin with `RELEVO_` have other purposes; one that is nearly a variable of this page is
  reported as a warning.
- **Flags**: `--set outboxes.my-shop.schema=billing`, any number of times.
- **Secrets**: a key `X` of this kind can also be set as `X_file`, which names a file with the value, or as `X_env`, which
  names a variable with the value. No output contains a secret: `relevo config show` prints `<secret>` instead. Every
  user who can list processes sees a flag: use none for a secret.
- **SIGHUP** reads everything again. If there is a problem, it is logged and nothing changes. Otherwise the routes of
  running relays are replaced; other changes are logged by name and need a restart.
- `relevo config show` prints every value and its origin, with `-o json` as one object on one line;
  `relevo config example` prints the example file.
- Relative paths are relative to the working directory.
";

const EXAMPLE: &str = "\
# Every key of Relevo's configuration. A line `#key = value` shows the default, or an example where there is none.
# Variables (RELEVO__RELAY__LEASE_DURATION) and flags (--set relay.lease_duration=20s) override this file.
# `relevo config check -c FILE` reports every problem of a file. See docs/reference/config.md.
";

/// The reference page, in Markdown.
#[cfg(test)]
pub(super) fn page() -> String {
    reference::page(INTRODUCTION, &schema(), PREFIX)
}

/// A file with every key, the defaults commented out.
pub(super) fn example() -> String {
    reference::example(EXAMPLE, &schema(), &["shop", "main", "orders"], "embedded")
}

#[cfg(test)]
mod tests {
    /// Set to write the pages instead of comparing them.
    const WRITE: &str = "RELEVO_WRITE_REFERENCE";

    fn compare(file: &str, expected: &str) {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
        if std::env::var_os(WRITE).is_some() {
            std::fs::write(&path, expected).expect("the working tree can be written");
        }
        let actual = std::fs::read_to_string(&path).expect("the page exists");
        assert!(
            actual == expected,
            "`{file}` differs from the program: run this test with `{WRITE}=1`, and read what changed"
        );
    }

    #[test]
    fn the_reference_page_is_current() {
        compare("docs/reference/config.md", &super::page());
    }

    #[test]
    fn the_example_file_is_current() {
        compare("relevo.example.toml", &super::example());
    }
}
