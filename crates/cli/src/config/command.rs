//! `relevo config`: checks and shows the configuration.

use std::io::{self, Write as _};

use anyhow::Result;
use clap::{Args, Subcommand};
use relevo_config::{Origin, Problem, Setting};
use serde_json::{Value, json};

use super::{Loaded, Problems, Sources, report_problems, schema, warn};
use crate::error_report::print_stderr;
use crate::exit::ExitStatus;
use crate::output::OutputArgs;

/// What to do with the configuration.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Reads file and variables as `relevo run` does, and reports every problem.
    Check(CheckArgs),
    /// Prints every key with its value and origin. Secrets are replaced.
    Show(ShowArgs),
    /// Prints a JSON schema of the file, for editors.
    #[command(after_help = "Example:\n  relevo config schema")]
    Schema,
    /// Prints a file with every key, the defaults commented out.
    #[command(after_help = "Example:\n  relevo config example")]
    Example,
}

/// Which configuration.
#[derive(Debug, Args)]
#[command(after_help = "Example: relevo config check -c relevo.toml -o json")]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    sources: Sources,
    #[command(flatten)]
    output: OutputArgs,
}

/// Which configuration.
#[derive(Debug, Args)]
#[command(after_help = "Example: relevo config show --set relay.lease_duration=20s")]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    sources: Sources,
    #[command(flatten)]
    output: OutputArgs,
}

impl Command {
    /// Runs it.
    pub(crate) fn run(&self) -> Result<ExitStatus> {
        match self {
            Self::Check(args) => return args.run(),
            Self::Schema => writeln!(io::stdout(), "{:#}", schema::for_editors())?,
            Self::Example => io::stdout().write_all(schema::example().as_bytes())?,
            Self::Show(args) => {
                let loaded = report_problems(args.sources.load())?;
                warn(&loaded.warnings);
                if args.output.is_json() {
                    writeln!(io::stdout(), "{}", settings_json(&loaded))?;
                } else {
                    io::stdout().write_all(settings_text(&loaded.settings).as_bytes())?;
                }
            }
        }
        Ok(ExitStatus::Success)
    }
}

impl CheckArgs {
    fn run(&self) -> Result<ExitStatus> {
        let result = self.sources.load();
        if self.output.is_json() {
            let code = if result.is_ok() { ExitStatus::Success } else { ExitStatus::Usage };
            writeln!(io::stdout(), "{}", result_json(&self.sources, &result))?;
            return Ok(code);
        }
        let loaded = report_problems(result)?;
        warn(&loaded.warnings);
        let (outboxes, destinations) = loaded.config.counts();
        let outboxes = count(outboxes, "outbox", "outboxes");
        let destinations = count(destinations, "destination", "destinations");
        print_stderr(&format!("`{}` is valid: {outboxes}, {destinations}", loaded.file));
        Ok(ExitStatus::Success)
    }
}

/// One line a key, as in the file, with its origin.
fn settings_text(settings: &[Setting]) -> String {
    let lines: Vec<(String, &Origin)> =
        settings.iter().map(|Setting { path, value, origin }| (format!("{path} = {value}"), origin)).collect();
    let width = lines.iter().map(|(line, _)| line.chars().count()).max().unwrap_or(0).min(80);
    let lines: Vec<String> = lines.into_iter().map(|(line, origin)| format!("{line:width$}  # {origin}\n")).collect();
    lines.concat()
}

/// One object: the file, and a list of `key`, `value`, `origin` with `line` or `name`.
fn settings_json(loaded: &Loaded) -> Value {
    let settings = loaded.settings.iter().map(|Setting { path, value, origin }| {
        let mut setting = json!({ "key": path.to_string(), "value": value, "origin": origin.word() });
        match origin {
            Origin::Default => {}
            Origin::File { line, .. } => setting["line"] = json!(line),
            Origin::Variable(name) | Origin::Flag(name) => setting["name"] = json!(name),
        }
        setting
    });
    json!({ "file": loaded.file, "settings": settings.collect::<Vec<_>>() })
}

/// One object: whether it is valid, and all problems and warnings.
fn result_json(sources: &Sources, result: &Result<Loaded, Problems>) -> Value {
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

fn list<'a>(problems: impl Iterator<Item = &'a Problem>) -> Value {
    let object = |Problem { reason, place, hint }: &Problem| json!({ "problem": reason, "place": place.as_ref().map(ToString::to_string), "hint": hint });
    problems.map(object).collect()
}

fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}
