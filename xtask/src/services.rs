//! Servers that run until `services down`, for running `cargo test` by hand, and servers for a single run.

use std::any::Any;

use anyhow::Result;
use clap::Subcommand;

use crate::install::{self, Installed};
use crate::runner::Runner;
use crate::service;

#[derive(Clone, Copy, Subcommand)]
pub(crate) enum Action {
    /// Starts the servers and prints the variables that tests read: `eval "$(cargo xtask services up)"`.
    Up,
    /// Stops the servers.
    Down,
    /// Reports which servers are running.
    Status,
}

pub(crate) fn run(runner: &Runner, action: Action) -> Result<()> {
    let installed = match action {
        Action::Up => install::all(runner)?,
        // Stopping or listing servers must not install any.
        Action::Down | Action::Status => Installed::expected()?,
    };
    for service in service::all(&installed)? {
        runner.check()?;
        let name = service.name();
        match (action, service.running()) {
            (Action::Up, Some(running)) => export(service.url_variables(), running.urls),
            (Action::Up, None) => export(service.url_variables(), service.up()?),
            (Action::Down, running) => {
                service.down()?;
                if let Some(running) = running {
                    eprintln!("{name} ended (process {})", running.process);
                }
            }
            (Action::Status, Some(running)) => {
                println!("{name}: process {}, {}", running.process, running.urls.join(" "));
            }
            (Action::Status, None) => println!("{name}: not running"),
        }
    }
    if matches!(action, Action::Up) {
        let (names, values) = installed.programs().into_iter().unzip();
        export(names, values);
    }
    Ok(())
}

/// The variables with the URLs and programs, and the servers. The servers stop when the value is dropped.
pub(crate) struct Environment {
    pub(crate) variables: Vec<(String, String)>,
    _servers: Vec<Box<dyn Any>>,
}

/// Servers for one run: those that the user's variables name, then those of `services up`, otherwise new ones.
pub(crate) fn for_one_run(runner: &Runner, installed: &Installed) -> Result<Environment> {
    let (mut variables, mut servers) = (installed.programs(), Vec::new());
    for service in service::all(installed)? {
        runner.check()?;
        let (name, names) = (service.name(), service.url_variables());
        if names.iter().any(|variable| std::env::var_os(variable).is_some()) {
            eprintln!("{name}: the one in `{}`", names.join("`, `"));
        } else if let Some(running) = service.running() {
            eprintln!("{name}: the one of `services up`, {}", running.urls.join(" "));
            variables.extend(names.into_iter().zip(running.urls));
        } else {
            let (server, urls) = service.temporary()?;
            variables.extend(names.into_iter().zip(urls));
            servers.push(server);
        }
    }
    // The user's variables also win for programs.
    variables.retain(|(variable, _)| std::env::var_os(variable).is_none());
    Ok(Environment { variables, _servers: servers })
}

fn export(names: Vec<String>, values: Vec<String>) {
    for (name, value) in names.into_iter().zip(values) {
        println!("export {name}='{value}'");
    }
}
