//! The servers that stay until told otherwise, for running `cargo test` by hand.

use anyhow::{Context as _, Result};
use clap::Subcommand;

use crate::account::Account;
use crate::install::{self, Installed};
use crate::postgres::{self, Directory, Durability, Temporary};
use crate::runner::Runner;

#[derive(Clone, Copy, Subcommand)]
pub(crate) enum Action {
    /// Starts them, and prints the variables that tests read: `eval "$(cargo xtask services up)"`.
    Up,
    /// Ends them.
    Down,
    /// Says which are running.
    Status,
}

pub(crate) fn run(runner: &Runner, action: Action) -> Result<()> {
    let installed = match action {
        Action::Up => install::all(runner)?,
        // Nothing is installed to end what is not there.
        Action::Down | Action::Status => Installed::expected()?,
    };
    for (major, bin) in &installed.bins {
        runner.check()?;
        let directory = directory(*major, bin)?;
        let running = directory.running();
        match (action, running) {
            (Action::Up, Some((_, port))) => export(&url_variable(*major), &postgres::url(port)),
            (Action::Up, None) => {
                export(&url_variable(*major), &postgres::url(launch(&directory)?));
            }
            (Action::Down, Some((pid, _))) => {
                directory.stop()?;
                clear(&directory)?;
                eprintln!("PostgreSQL {major} ended (process {pid})");
            }
            (Action::Down, None) => clear(&directory)?,
            (Action::Status, Some((pid, port))) => {
                println!("PostgreSQL {major}: process {pid}, port {port}");
            }
            (Action::Status, None) => println!("PostgreSQL {major}: not running"),
        }
    }
    if matches!(action, Action::Up) {
        for (major, bin) in &installed.bins {
            export(&bin_variable(*major), &bin.display().to_string());
        }
    }
    Ok(())
}

/// The variables that name servers and programs, and the servers that live as long as this value.
pub(crate) struct Environment {
    pub(crate) variables: Vec<(String, String)>,
    _servers: Vec<Temporary>,
}

/// Servers for one run: the person's own where a variable names one, then those of `services up`, else new ones.
pub(crate) fn for_one_run(runner: &Runner, installed: &Installed) -> Result<Environment> {
    let (mut variables, mut servers) = (Vec::new(), Vec::new());
    for (major, bin) in &installed.bins {
        runner.check()?;
        variables.push((bin_variable(*major), bin.display().to_string()));
        let variable = url_variable(*major);
        if std::env::var_os(&variable).is_some() {
            eprintln!("PostgreSQL {major}: the one in `{variable}`");
        } else if let Some((_, port)) = directory(*major, bin)?.running() {
            eprintln!("PostgreSQL {major}: the one of `services up`, port {port}");
            variables.push((variable, postgres::url(port)));
        } else {
            let server = Temporary::start(bin, Durability::None)?;
            variables.push((variable, server.url()));
            servers.push(server);
        }
    }
    Ok(Environment { variables, _servers: servers })
}

fn directory(major: u32, bin: &std::path::Path) -> Result<Directory> {
    let path = install::cache()?.join(format!("server-{major}"));
    Ok(Directory { bin: bin.to_owned(), path, account: Account::for_servers()? })
}

fn launch(directory: &Directory) -> Result<u16> {
    clear(directory)?;
    std::fs::create_dir(&directory.path)?;
    directory.account.give(&directory.path)?;
    directory.init(Durability::None)?;
    directory.start()
}

fn clear(directory: &Directory) -> Result<()> {
    if directory.path.exists() {
        std::fs::remove_dir_all(&directory.path)
            .with_context(|| format!("cannot remove `{}`", directory.path.display()))?;
    }
    Ok(())
}

fn export(name: &str, value: &str) {
    println!("export {name}='{value}'");
}

fn url_variable(major: u32) -> String {
    match major {
        15 => "RELEVO_TEST_POSTGRES_URL".to_owned(),
        _ => format!("RELEVO_TEST_POSTGRES_{major}_URL"),
    }
}

fn bin_variable(major: u32) -> String {
    format!("RELEVO_TEST_POSTGRES_{major}_BIN")
}
