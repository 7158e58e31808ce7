//! The configuration for people and programs: every value, and where it came from.

use std::io::{self, Write};

use serde_json::{Value as Json, json};

use super::problem::Problem;
use super::settings::{Origin, Setting};
use super::{Loaded, Problems, Sources};

/// One line a key, as the file would say it, with the origin behind it.
pub(super) fn lines(loaded: &Loaded, mut out: impl Write) -> io::Result<()> {
    let lines: Vec<(String, &Origin)> =
        loaded.settings.iter().map(|(path, Setting { value, origin })| (format!("{path} = {value}"), origin)).collect();
    let width = lines.iter().map(|(line, _)| line.chars().count()).max().unwrap_or(0).min(80);
    for (line, origin) in lines {
        writeln!(out, "{line:width$}  # {origin}")?;
    }
    Ok(())
}

/// One object: whether it is good, and all that is wrong or hardly meant.
pub(super) fn verdict(sources: &Sources, result: &Result<Loaded, Problems>) -> Json {
    let file = sources.path().display().to_string();
    match result {
        Ok(loaded) => {
            let (outboxes, destinations) = loaded.config.counts();
            let warnings = list(loaded.warnings.iter());
            json!({ "ok": true, "file": file, "outboxes": outboxes, "destinations": destinations, "warnings": warnings })
        }
        Err(problems) => {
            let warnings = list(problems.warnings.iter());
            json!({ "ok": false, "file": file, "problems": list(problems.iter()), "warnings": warnings })
        }
    }
}

fn list<'a>(problems: impl Iterator<Item = &'a Problem>) -> Json {
    problems.map(|Problem { what, place, hint }| json!({ "problem": what, "place": place, "hint": hint })).collect()
}

/// One object: the file, and a list of `key`, `value`, `origin` with `line` or `name`.
pub(super) fn json(loaded: &Loaded) -> Json {
    let settings = loaded.settings.iter().map(|(path, Setting { value, origin })| {
        let mut setting = json!({ "key": path.to_string(), "value": value.json(), "origin": origin.word() });
        match origin {
            Origin::Default => {}
            Origin::File { line, .. } => setting["line"] = json!(line),
            Origin::Variable(name) | Origin::Flag(name) => setting["name"] = json!(name),
        }
        setting
    });
    json!({ "file": loaded.file, "settings": settings.collect::<Vec<_>>() })
}
