//! The pages that are made from the table: `docs/reference/config.md` and `relevo.example.toml`.

use super::keys::{INDEX, Key, NAME, SECTIONS, Section, Takes};
use super::overlay::variable_of;

const INTRODUCTION: &str = "\
# Configuration

`relevo run` and `relevo config` read a TOML file (`-c FILE`, or `RELEVO_CONFIG`, or `relevo.toml`), then variables, then
flags; what comes later is stronger. [relevo.example.toml](../../relevo.example.toml) has every key with its default.
This page is made from the program's own table, and a test compares the two.

- **Unknown keys are errors**, in the file and among the variables, with the nearest name that is known. All problems are
  told at once. `relevo config check` tells them without starting anything, and exits with 2 if there are any, as
  `relevo run` does. With `--json` it writes one object on one line: `ok`, `file`, `warnings`, and `problems` or the
  numbers of `outboxes` and `destinations`; each problem has `problem`, `place` and `hint`.
- **Variables**: `RELEVO__` and the key's path in capitals, two underscores between its parts, `-` as `_`:
  `outboxes.my-shop.schema` is `RELEVO__OUTBOXES__MY_SHOP__SCHEMA`. Names that only differ in case, `-` and `_` are
  refused, for they would share their variables. Lists have commas between their parts. Routes are set in the file
  only. Other variables that begin with
  `RELEVO_` mean something else; one that is nearly a variable of this page is told as a warning.
- **Flags**: `--set outboxes.my-shop.schema=billing`, as often as needed.
- **Secrets** come from files (`…_file`) or variables (`…_env`), and are never shown: `relevo config print` has `<secret>`
  in their place. A flag is seen by everybody who can list processes: use none for a secret.
- **SIGHUP** reads everything anew. If anything is wrong, that is logged and nothing changes. Otherwise routes are
  exchanged in relays that run; whatever else has changed is named in the log and waits for a restart.
- `relevo config print` shows every value and where it came from, with `--json` as one object on one line;
  `relevo config example` writes the example file, `relevo config reference` this page.
- Relative paths are relative to the working directory.
";

/// The reference page, in Markdown.
pub(super) fn page() -> String {
    let mut lines = vec![INTRODUCTION.to_owned()];
    for section in SECTIONS {
        lines.push(format!("## {}\n\n{}\n", shown(section), section.doc));
        lines.push("| Key | Takes | Default | What it does |\n|---|---|---|---|".to_owned());
        for key in section.keys {
            let default = key.default.map_or_else(|| "none".to_owned(), |default| format!("`{default}`"));
            lines.push(format!("| `{}` | {} | {default} | {} |", key.name, key.kind.describe(), key.doc));
        }
        lines.extend(section.keys.first().map(|key| note(section, key)));
    }
    lines.join("\n").trim_end().to_owned() + "\n"
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
    if let Some(kind) = section.of {
        return format!("`[{path}]` of kind `{kind}`");
    }
    if section.path.contains(&INDEX) { format!("`[[{path}]]`") } else { format!("`[{path}]`") }
}

/// No line of a comment is longer.
const COLUMNS: usize = 100;

const EXAMPLE: &str = "\
# Every key of Relevo's configuration. A line `#key = value` shows the default, or an example where there is none.
# Variables (RELEVO__RELAY__LEASE_MS) and flags (--set relay.lease_ms=20000) are stronger than this file.
# `relevo config check -c FILE` tells everything that is wrong with a file. See docs/reference/config.md.
";

/// What is not commented out, so that the example file is a good one.
const NEEDED: [&str; 3] = ["database", "kind", "path"];

/// The kind of broker that the example file has; the others are comments.
const SHOWN: &str = "embedded";

/// What stands for the names in a section's path: a destination for each kind of broker.
pub(super) fn names_of(section: &Section) -> [&'static str; 3] {
    ["shop", section.of.filter(|kind| *kind != SHOWN).unwrap_or("main"), "orders"]
}

/// A file with every key, its defaults commented out.
pub(super) fn example() -> String {
    let mut lines = vec![EXAMPLE.to_owned()];
    for section in SECTIONS {
        let mut names = names_of(section).into_iter();
        let words = section.path.iter().filter(|word| **word != INDEX);
        let words = words.map(|word| if *word == NAME { names.next().expect("no deeper") } else { word });
        let path = words.collect::<Vec<&str>>().join(".");
        lines.extend(comment(section.doc));
        let other = section.of.filter(|kind| *kind != SHOWN);
        if section.path.contains(&INDEX) {
            lines.push(format!("#[[{path}]]"));
        } else if section.of == Some(SHOWN) {
            // Its heading is above, with the `kind`.
        } else if other.is_some() {
            lines.push(format!("#[{path}]"));
            lines.extend(other.filter(|_| path.ends_with("broker")).map(|kind| format!("#kind = \"{kind}\"")));
        } else if !path.is_empty() {
            lines.push(format!("[{path}]"));
        }
        for key in section.keys {
            lines.push(String::new());
            lines.extend(comment(key.doc));
            let mark = if NEEDED.contains(&key.name) && other.is_none() { "" } else { "#" };
            lines.push(format!("{mark}{} = {}", key.name, key.example));
        }
        lines.push(String::new());
    }
    lines.join("\n")
}

/// A sentence as lines of a comment.
fn comment(sentence: &str) -> Vec<String> {
    let mut lines = vec![String::from("#")];
    for word in sentence.split_whitespace() {
        let full = lines.last().is_some_and(|line| line.len() + 1 + word.len() > COLUMNS);
        if full {
            lines.push(String::from("#"));
        }
        if let Some(line) = lines.last_mut() {
            line.push(' ');
            line.push_str(word);
        }
    }
    lines
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
