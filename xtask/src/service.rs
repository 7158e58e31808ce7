//! The common interface of all servers, for the commands that start and stop them.

use std::any::Any;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::account::Account;
use crate::install::{self, Installed};
use crate::marked::{self, Kind};
use crate::nats::Nats;
use crate::postgres::{self, Durability};
use crate::rabbitmq::{self, BusyWait, RabbitMq};

pub(crate) trait Service {
    /// Name and version, for display.
    fn name(&self) -> String;
    /// The environment variables that pass the URLs to tests.
    fn url_variables(&self) -> Vec<String>;
    /// The server that `services up` started, if it is running.
    fn running(&self) -> Option<Running>;
    /// Starts a server that keeps running, and returns the values of its variables.
    fn up(&self) -> Result<Vec<String>>;
    /// Stops the server that `up` started, if it is running, and deletes its files.
    fn down(&self) -> Result<()>;
    /// Starts a server that runs until the first value is dropped. The second value holds the values of its variables.
    fn temporary(&self) -> Result<(Box<dyn Any>, Vec<String>)>;
}

pub(crate) struct Running {
    pub(crate) process: u32,
    pub(crate) urls: Vec<String>,
}

/// All servers that the tests need.
pub(crate) fn all(installed: &Installed) -> Result<Vec<Box<dyn Service>>> {
    let cache = install::cache()?;
    let mut all: Vec<Box<dyn Service>> = Vec::new();
    for (major, bin) in &installed.bins {
        let directory = postgres::Directory {
            bin: bin.clone(),
            path: cache.join(format!("server-{major}")),
            account: Account::for_servers()?,
        };
        all.push(Box::new(Postgres { major: *major, directory }));
    }
    all.push(Box::new(Marked {
        name: "RabbitMQ".to_owned(),
        variables: rabbitmq::URL_VARIABLES.map(str::to_owned).to_vec(),
        directory: marked::Directory { path: cache.join("server-rabbitmq") },
        kind: Box::new(RabbitMq(BusyWait::None)),
    }));
    for (version, program) in &installed.nats {
        all.push(Box::new(Marked {
            name: format!("NATS {}", version.number()),
            variables: vec![version.url_variable().to_owned()],
            directory: marked::Directory { path: cache.join(format!("server-nats-{}", version.number())) },
            kind: Box::new(Nats { program: program.clone(), jetstream: "" }),
        }));
    }
    Ok(all)
}

impl Installed {
    /// The variables that hold the paths of the programs, with their values.
    pub(crate) fn programs(&self) -> Vec<(String, String)> {
        let shown = |path: &PathBuf| path.display().to_string();
        let postgres = self.bins.iter().map(|(major, bin)| (format!("RELEVO_TEST_POSTGRES_{major}_BIN"), shown(bin)));
        let nats = self.nats.iter().map(|(version, program)| (version.bin_variable().to_owned(), shown(program)));
        let tools = self.tools.iter().map(|(variable, program)| ((*variable).to_owned(), shown(program)));
        postgres.chain(nats).chain(tools).collect()
    }
}

struct Postgres {
    major: u32,
    directory: postgres::Directory,
}

impl Service for Postgres {
    fn name(&self) -> String {
        format!("PostgreSQL {}", self.major)
    }

    fn url_variables(&self) -> Vec<String> {
        vec![match self.major {
            15 => "RELEVO_TEST_POSTGRES_URL".to_owned(),
            major => format!("RELEVO_TEST_POSTGRES_{major}_URL"),
        }]
    }

    fn running(&self) -> Option<Running> {
        let (process, port) = self.directory.running()?;
        Some(Running { process, urls: vec![postgres::url(port)] })
    }

    fn up(&self) -> Result<Vec<String>> {
        renew(&self.directory.path)?;
        self.directory.account.give(&self.directory.path)?;
        self.directory.init(Durability::None)?;
        Ok(vec![postgres::url(self.directory.start()?)])
    }

    fn down(&self) -> Result<()> {
        if self.directory.running().is_some() {
            self.directory.stop()?;
        }
        clear(&self.directory.path)
    }

    fn temporary(&self) -> Result<(Box<dyn Any>, Vec<String>)> {
        let server = postgres::Temporary::start(&self.directory.bin, Durability::None)?;
        let urls = vec![server.url()];
        Ok((Box::new(server), urls))
    }
}

struct Marked {
    name: String,
    variables: Vec<String>,
    directory: marked::Directory,
    kind: Box<dyn Kind>,
}

impl Service for Marked {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn url_variables(&self) -> Vec<String> {
        self.variables.clone()
    }

    fn running(&self) -> Option<Running> {
        let (process, urls) = self.directory.running()?;
        Some(Running { process, urls })
    }

    fn up(&self) -> Result<Vec<String>> {
        // An earlier server may still run that never became ready.
        self.directory.stop()?;
        renew(&self.directory.path)?;
        Ok(self.directory.start(self.kind.as_ref())?.urls)
    }

    fn down(&self) -> Result<()> {
        self.directory.stop()?;
        clear(&self.directory.path)
    }

    fn temporary(&self) -> Result<(Box<dyn Any>, Vec<String>)> {
        let server = marked::Temporary::start(self.kind.as_ref())?;
        let urls = server.urls.clone();
        Ok((Box::new(server), urls))
    }
}

fn renew(path: &Path) -> Result<()> {
    clear(path)?;
    std::fs::create_dir(path).with_context(|| format!("cannot create `{}`", path.display()))
}

fn clear(path: &Path) -> Result<()> {
    if path.exists() {
        std::fs::remove_dir_all(path).with_context(|| format!("cannot remove `{}`", path.display()))?;
    }
    Ok(())
}
