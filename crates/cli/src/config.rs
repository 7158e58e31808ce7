//! The configuration: a TOML file, then variables, then flags.

mod broker;
mod command;
mod file;
mod keys;
mod outboxes;
mod overlay;
mod print;
mod problem;
mod reference;
mod resolved;
mod routes;
mod secret;
mod settings;
mod traces;
mod tuning;
mod value;

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

pub(crate) use command::Command;
pub(crate) use file::is_name;
pub(crate) use outboxes::{Destination, Outbox};
pub(crate) use problem::{Problem, Problems};
pub(crate) use resolved::{Config, Format, Log};

use self::settings::Settings;
use crate::error_report::{ErrorReport, print_stderr};
use crate::exit;

/// The file that is read where no other is named.
const FILE: &str = "relevo.toml";
/// The variable that names the file where `--config` does not.
const VARIABLE: &str = "RELEVO_CONFIG";

/// Where the configuration comes from.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Sources {
    /// The file [default: `relevo.toml`; env: `RELEVO_CONFIG`].
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Sets one key, as `log.level=debug`; stronger than file and variables.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
}

/// A configuration that was read, checked, and is whole.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// What people call the file.
    pub(crate) file: String,
    pub(crate) settings: Settings,
    pub(crate) config: Config,
    /// What is not wrong, but hardly meant.
    pub(crate) warnings: Vec<Problem>,
}

impl Sources {
    /// Reads everything anew, and says all that is wrong with it.
    pub(crate) fn load(&self) -> Result<Loaded, Problems> {
        let path = self.path();
        let file = path.display().to_string();
        let text = std::fs::read_to_string(&path).map_err(|error| {
            let problem = Problem::new(format!("`{file}` cannot be read: {error}"));
            problem.hint("name the file with `-c FILE`; `relevo.example.toml` documents every key")
        })?;
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            // What is no UTF-8 cannot be one of ours.
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        read(file, &text, variables, &self.flags())
    }

    /// Whether a configuration is named on the command line.
    pub(crate) fn are_given(&self) -> bool {
        self.config.is_some() || !self.set.is_empty()
    }

    /// Whether the environment names one.
    pub(crate) fn are_in_environment() -> bool {
        std::env::var_os(VARIABLE).is_some()
    }

    /// The file that is read.
    pub(crate) fn path(&self) -> PathBuf {
        let named = self.config.clone().or_else(|| std::env::var_os(VARIABLE).map(PathBuf::from));
        named.unwrap_or_else(|| PathBuf::from(FILE))
    }

    fn flags(&self) -> Vec<(String, String)> {
        self.set.iter().map(|set| ("--set".to_owned(), set.clone())).collect()
    }
}

fn read(
    file: String,
    text: &str,
    variables: impl Iterator<Item = (String, String)>,
    flags: &[(String, String)],
) -> Result<Loaded, Problems> {
    let (mut settings, mut problems) = (Settings::default(), Vec::new());
    let variables: Vec<(String, String)> = variables.collect();
    let names: Vec<String> = variables.iter().map(|(name, _)| name.clone()).collect();
    file::read(&file, text, &mut settings, &mut problems);
    overlay::variables(variables, &mut settings, &mut problems);
    overlay::flags(flags, &mut settings, &mut problems);
    settings.fill_in();
    let config = Config::resolve(&settings, &mut problems);
    let warnings = overlay::strangers(names.iter().map(String::as_str), &settings);
    if !problems.is_empty() {
        return Err(Problems::new(problems, warnings));
    }
    Ok(Loaded { file, settings, config, warnings })
}

/// Tells what is hardly meant.
pub(crate) fn warn(warnings: &[Problem]) {
    for warning in warnings {
        print_stderr(&ErrorReport::of(&warning.clone().into()).as_warning());
    }
}

/// Tells all problems but one, which becomes the error.
pub(crate) fn told<T>(result: Result<T, Problems>) -> Result<T> {
    result.map_err(|problems| {
        warn(&problems.warnings);
        let count = problems.len();
        let mut all = problems.iter();
        if count == 1
            && let Some(problem) = all.next()
        {
            return exit::usage(problem.to_string());
        }
        for problem in all {
            print_stderr(&ErrorReport::of(&problem.clone().into()).to_string());
        }
        exit::usage(format!("the configuration has {count} problems"))
    })
}

#[cfg(test)]
mod tests;
