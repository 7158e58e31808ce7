//! The test programs of the workspace.

use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::cargo_test;
use crate::runner::Runner;

/// The slowest programs, slowest first. If one of them started last, it would run alone at the end.
const LONGEST: [&str; 12] = [
    "relevo-store-postgres postgres",
    "relevo-broker-rabbitmq rabbitmq",
    "relevo-cli run",
    "relevo-torture consumers",
    "relevo-broker-nats nats",
    "relevo-cli torture",
    "relevo-cli postgres",
    "ticketflow parts",
    "ticketflow outside",
    "relevo-sim inbox",
    "relevo-store-sqlite sqlite",
    "relevo-sim outbox",
];

pub(super) enum Program {
    /// A program that Cargo built from one target.
    Built { package: String, target: String, executable: PathBuf, directory: PathBuf },
    /// The documentation examples, which only Cargo can build and run.
    Documentation(Command),
}

/// A command to run, with the name that the report shows.
pub(super) struct NamedCommand {
    pub(super) name: String,
    pub(super) command: Command,
}

/// Builds all selected test programs, slowest first. Returns `None` if the build fails.
pub(super) fn build(runner: &Runner, selection: &[&str]) -> Result<Option<Vec<Program>>> {
    let mut command = cargo_test(&["--no-run", "--message-format=json-render-diagnostics"], selection)?;
    command.stdout(Stdio::piped());
    let mut programs = Vec::new();
    let built = runner.with(&mut command, |child| {
        let output = BufReader::new(child.stdout.take().context("the output was piped")?);
        for message in serde_json::Deserializer::from_reader(output).into_iter::<Value>() {
            programs.extend(Program::from_message(&message.context("Cargo's messages are JSON")?));
        }
        Ok(())
    })?;
    programs.sort_by_key(Program::rank);
    Ok(built.then_some(programs))
}

impl Program {
    /// The documentation examples of the selected packages.
    pub(super) fn documentation(selection: &[&str]) -> Result<Self> {
        Ok(Self::Documentation(cargo_test(&["--doc"], selection)?))
    }

    fn from_message(message: &Value) -> Option<Self> {
        if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
            return None;
        }
        let manifest = Path::new(message["manifest_path"].as_str()?);
        let package =
            message["package_id"].as_str()?.rsplit(['/', '#']).find(|part| !part.starts_with(char::is_numeric))?;
        Some(Self::Built {
            package: package.split('@').next()?.to_owned(),
            target: message["target"]["name"].as_str()?.to_owned(),
            executable: message["executable"].as_str()?.into(),
            directory: manifest.parent()?.to_owned(),
        })
    }

    fn rank(&self) -> usize {
        match self {
            Self::Built { package, target, .. } => {
                let name = format!("{package} {target}");
                LONGEST.iter().position(|long| *long == name).unwrap_or(LONGEST.len())
            }
            Self::Documentation(_) => LONGEST.len(),
        }
    }

    /// Runs the program as `cargo test` does: in the folder of its package, with these variables. Examples of the
    /// documentation are compiled and executed where temporary files usually are.
    pub(super) fn command(
        self,
        arguments: &[&str],
        variables: &[(String, String)],
        temporary: Option<&Path>,
    ) -> NamedCommand {
        let (name, mut command) = match self {
            Self::Built { package, target, executable, directory } => {
                let mut command = Command::new(executable);
                command.current_dir(&directory).env("CARGO_MANIFEST_DIR", directory);
                command.envs(temporary.map(|path| ("TMPDIR", path)));
                // The times of single tests need an unstable option of the test harness. This variable permits it.
                command.env("RUSTC_BOOTSTRAP", "1").args(["-Zunstable-options", "--report-time"]).args(arguments);
                (format!("{package} {target}"), command)
            }
            Self::Documentation(mut command) => {
                command.arg("--").args(arguments);
                ("documentation".to_owned(), command)
            }
        };
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        NamedCommand { name, command }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Program;

    #[test]
    fn only_test_programs_are_run() {
        let artifact = |test: bool| {
            json!({
                "reason": "compiler-artifact",
                "package_id": "path+file:///src/crates/stores/postgres#relevo-store-postgres@0.1.0",
                "manifest_path": "/src/crates/stores/postgres/Cargo.toml",
                "target": { "name": "postgres" },
                "profile": { "test": test },
                "executable": "/target/debug/deps/postgres-1",
            })
        };
        let program = Program::from_message(&artifact(true)).unwrap().command(&["leases"], &[], None);
        assert_eq!(program.name, "relevo-store-postgres postgres");
        assert_eq!(program.command.get_current_dir().unwrap().to_str(), Some("/src/crates/stores/postgres"));
        assert!(Program::from_message(&artifact(false)).is_none());
    }
}
