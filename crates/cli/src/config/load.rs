//! Loads the configuration from its sources.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use relevo_config::{Layers, Origin, Problem, Reader, Setting, without_secrets};

use super::Config;
use crate::error_report::{ErrorReport, print_stderr};
use crate::exit;

/// The file that is read without `--config`.
pub(crate) const FILE: &str = "relevo.toml";
/// The variable that names the file.
const VARIABLE: &str = "RELEVO_CONFIG";
/// The prefix of variables that set keys. Two underscores separate names.
pub(super) const PREFIX: &str = "RELEVO__";
/// A short name for the variable of `log.level`.
const LOG: &str = "RELEVO_LOG";
/// The prefix of all variables of this program. Others may use it too: Kubernetes does, for services.
const FAMILY: &str = "RELEVO_";
/// Variables of this program without [`PREFIX`].
const SHORT: [&str; 3] = [LOG, VARIABLE, "RELEVO_DATABASE_URL"];

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

/// A valid configuration.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// The name of the file.
    pub(crate) file: String,
    /// Every key with its value and origin.
    pub(crate) settings: Vec<Setting>,
    pub(crate) config: Config,
    /// What is valid, but looks wrong.
    pub(crate) warnings: Vec<Problem>,
}

/// All problems of a configuration; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problems {
    all: Vec<Problem>,
    /// What is valid, but may explain the rest.
    pub(crate) warnings: Vec<Problem>,
}

impl Problems {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.all.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }
}

impl Sources {
    /// Reads all sources again.
    pub(crate) fn load(&self) -> Result<Loaded, Problems> {
        let path = self.path();
        let file = path.display().to_string();
        let text = std::fs::read_to_string(&path).map_err(|error| {
            let problem = Problem::new(format!("`{file}` cannot be read: {error}"));
            let hint = "name the file with `-c FILE`, or write one with `relevo init`";
            Problems { all: vec![problem.hint(hint)], warnings: Vec::new() }
        })?;
        // A variable that is not UTF-8 is not one of ours.
        let variables =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        read(file, &text, variables.collect(), &self.set)
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
}

pub(super) fn read(
    file: String,
    text: &str,
    variables: Vec<(String, String)>,
    flags: &[String],
) -> Result<Loaded, Problems> {
    let mut layers = Layers::default();
    layers.file(&file, text);
    let names: Vec<String> = variables.iter().map(|(name, _)| name.clone()).collect();
    if let Some((_, level)) = variables.iter().find(|(name, _)| name == LOG) {
        layers.set(&["log", "level"], level, Origin::Variable(LOG.to_owned()));
    }
    layers.variables(PREFIX, variables);
    for flag in flags {
        layers.flag("--set", flag);
    }
    let mut reader = layers.reader();
    let config = Config::read(&mut reader);
    let mut warnings = misnamed_variables(&names, &reader);
    warnings.extend_from_slice(reader.warnings());
    match (reader.finish(), config) {
        (Ok(settings), Some(config)) => Ok(Loaded { file, settings, config, warnings }),
        (Err(all), _) => Err(Problems { all, warnings }),
        (Ok(_), None) => unreachable!("a section that was not read has a problem"),
    }
}

/// Variables that were probably meant for the configuration, and set nothing.
fn misnamed_variables(names: &[String], reader: &Reader) -> Vec<Problem> {
    let is_ours =
        |name: &&String| name.starts_with(FAMILY) && !name.starts_with(PREFIX) && !SHORT.contains(&name.as_str());
    // One underscore instead of two is the common mistake.
    let joined = |name: &str| name.replace("__", "_");
    let known = reader.variables(PREFIX);
    let misnamed = names.iter().filter(is_ours).filter_map(|name| {
        let hint = match known.iter().find(|known| joined(known) == joined(name)) {
            Some(known) => format!("did you mean `{known}`?"),
            None if name.starts_with("RELEVO_OUTBOXES_") => {
                "two underscores separate names, as in `RELEVO__OUTBOXES__SHOP__SCHEMA`".to_owned()
            }
            None => return None,
        };
        Some(Problem::new(format!("variable `{}` sets nothing", without_secrets(name))).hint(hint))
    });
    misnamed.collect()
}

/// The value of a key that was read.
#[cfg(test)]
pub(super) fn setting<'a>(settings: &'a [Setting], key: &str) -> Option<&'a Setting> {
    settings.iter().find(|setting| setting.path.to_string() == key)
}

/// Prints warnings.
pub(crate) fn warn(warnings: &[Problem]) {
    for warning in warnings {
        print_stderr(&ErrorReport::of(&warning.clone().into()).as_warning());
    }
}

/// Prints all problems but one, which becomes the error.
pub(crate) fn report_problems<T>(result: Result<T, Problems>) -> Result<T> {
    result.map_err(|problems| {
        warn(&problems.warnings);
        let count = problems.len();
        if let [problem] = &*problems.all {
            return exit::usage(problem.to_string());
        }
        for problem in problems.iter() {
            print_stderr(&ErrorReport::of(&problem.clone().into()).to_string());
        }
        exit::usage(format!("the configuration has {count} problems"))
    })
}
