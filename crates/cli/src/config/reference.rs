//! The pages that are made from the table: `docs/reference/config.md` and `relevo.example.toml`.

use std::fmt::Write as _;

use super::keys::{INDEX, Key, NAME, SECTIONS, Section, Takes};
use super::overlay::variable_of;

const INTRODUCTION: &str = "\
# Configuration

`relevo run` and `relevo config` read a TOML file (`-c FILE`, or `RELEVO_CONFIG`, or `relevo.toml`), then variables, then
flags; what comes later is stronger. [relevo.example.toml](../../relevo.example.toml) has every key with its default.
This page is made from the program's own table, and a test compares the two.

- **Unknown keys are errors**, in the file and among the variables, with the nearest name that is known. All problems are
  told at once. `relevo config check` tells them without starting anything; it exits with 1 if there are any.
- **Variables**: `RELEVO__` and the key's path in capitals, two underscores between its parts, `-` as `_`:
  `outboxes.my-shop.schema` is `RELEVO__OUTBOXES__MY_SHOP__SCHEMA`. Routes are set in the file only. Other variables that
  begin with `RELEVO_` mean something else.
- **Flags**: `--set outboxes.my-shop.schema=billing`, as often as needed.
- **Secrets** come from files (`…_file`) or variables (`…_env`), and are never shown: `relevo config print` has `<secret>`
  in their place. A flag is seen by everybody who can list processes: use none for a secret.
- **SIGHUP** reads everything anew. If anything is wrong, that is logged and nothing changes. Otherwise routes are
  exchanged in relays that run; whatever else has changed is named in the log and waits for a restart.
- `relevo config print [--json]` shows every value and where it came from; `relevo config example` writes the example
  file, `relevo config reference` this page.
- Relative paths are relative to the working directory.
";

/// The reference page, in Markdown.
pub(super) fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    for section in SECTIONS {
        let heading = shown(section);
        let _ = write!(page, "\n## {heading}\n\n{}\n\n", section.doc);
        page.push_str("| Key | Takes | Default | What it does |\n|---|---|---|---|\n");
        for key in section.keys {
            let default = key.default.map_or_else(|| "none".to_owned(), |default| format!("`{default}`"));
            let _ = writeln!(page, "| `{}` | {} | {default} | {} |", key.name, key.kind.describe(), key.doc);
        }
        if let Some(key) = section.keys.first() {
            page.push_str(&note(section, key));
        }
    }
    page
}

fn note(section: &Section, key: &Key) -> String {
    let takes = match key.takes {
        Takes::Reload => "Read again on SIGHUP.",
        Takes::Restart => "A change needs a restart.",
    };
    match variable_of(section.path, key.name) {
        Some(variable) => format!("\n{takes} The variable of the first is `{variable}`.\n"),
        None => format!("\n{takes} Set in the file only.\n"),
    }
}

fn shown(section: &Section) -> String {
    if section.path.is_empty() {
        return "Before any table".to_owned();
    }
    let words: Vec<&str> = section.path.iter().filter(|word| **word != INDEX).copied().collect();
    let path = words.join(".").replace(NAME, "NAME");
    if section.path.contains(&INDEX) { format!("`[[{path}]]`") } else { format!("`[{path}]`") }
}

/// What is not commented out, so that the example file is a good one.
const NEEDED: [&str; 3] = ["database", "kind", "path"];

/// A file with every key, its defaults commented out.
pub(super) fn example() -> String {
    let mut text = "\
# Every key of Relevo's configuration. A line `#key = value` shows the default, or an example where there is none.
# Variables (RELEVO__RELAY__LEASE_MS) and flags (--set relay.lease_ms=20000) are stronger than this file.
# `relevo config check -c FILE` tells everything that is wrong with a file. See docs/reference/config.md.
"
    .to_owned();
    for section in SECTIONS {
        let mut names = ["shop", "main"].into_iter();
        let words: Vec<&str> = section
            .path
            .iter()
            .filter(|word| **word != INDEX)
            .map(|word| if *word == NAME { names.next().expect("no deeper") } else { word })
            .collect();
        text.push('\n');
        wrap(&mut text, section.doc);
        if section.path.contains(&INDEX) {
            let _ = writeln!(text, "#[[{}]]", words.join("."));
        } else if !words.is_empty() {
            let _ = writeln!(text, "[{}]", words.join("."));
        }
        for key in section.keys {
            text.push('\n');
            wrap(&mut text, key.doc);
            let comment = if NEEDED.contains(&key.name) { "" } else { "#" };
            let _ = writeln!(text, "{comment}{} = {}", key.name, key.example);
        }
    }
    text
}

/// A sentence as comments of at most 100 columns.
fn wrap(text: &mut String, sentence: &str) {
    let mut line = String::from("#");
    for word in sentence.split_whitespace() {
        if line.len() + 1 + word.len() > 100 {
            let _ = writeln!(text, "{line}");
            "#".clone_into(&mut line);
        }
        line.push(' ');
        line.push_str(word);
    }
    let _ = writeln!(text, "{line}");
}

#[cfg(test)]
mod tests {
    /// Set to write the pages instead of comparing them.
    const WRITE: &str = "RELEVO_WRITE_REFERENCE";

    fn compare(file: &str, made: &str) {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
        if std::env::var_os(WRITE).is_some() {
            std::fs::write(&path, made).expect("the working tree can be written");
        }
        let there = std::fs::read_to_string(&path).expect("the page is there");
        assert!(
            there == made,
            "`{file}` is not what the table says: run this test with `{WRITE}=1`, and read what changed"
        );
    }

    #[test]
    fn the_reference_page_is_what_the_table_says() {
        compare("docs/reference/config.md", &super::page());
    }

    #[test]
    fn the_example_file_is_what_the_table_says() {
        compare("relevo.example.toml", &super::example());
    }
}
