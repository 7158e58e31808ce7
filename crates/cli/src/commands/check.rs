//! `relevo check`

use std::io;

use anyhow::Result;
use relevo_core::broker::admin::{TopologyItem, TopologyStatus};
use relevo_host::registry::TopologyMode;
use serde_json::json;

use super::doctor::{self, Examined};
use super::topology;
use crate::config::{Destination, Loaded, Outbox, Sources};
use crate::connect::{ANSWER_TIMEOUT, OutboxLocation, topology_word};
use crate::error_report::ErrorReport;
use crate::exit::ExitStatus;
use crate::output::table::Table;
use crate::output::{self, OutputArgs, count};

/// Which configuration.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  relevo check -c relevo.toml\n  relevo check -o json")]
pub(crate) struct Args {
    #[command(flatten)]
    sources: Sources,
    #[command(flatten)]
    output: OutputArgs,
}

const OK: &str = "ok";
const INFO: &str = "info";
const ERROR: &str = "error";

/// One line of the result.
struct Row {
    outbox: Option<String>,
    /// `None` for the outbox's database.
    destination: Option<String>,
    check: String,
    result: &'static str,
    observed: String,
    fix: Option<String>,
}

/// What was checked so far.
#[derive(Default)]
struct Report {
    rows: Vec<Row>,
    /// Databases and brokers that could be examined.
    examined: Vec<Examined>,
    is_unreachable: bool,
    is_misconfigured: bool,
}

/// What a check is about: an outbox, and a destination unless it is the database.
#[derive(Clone, Copy)]
struct Subject<'a> {
    outbox: &'a str,
    destination: Option<&'a str>,
}

pub(super) async fn run(args: &Args) -> Result<ExitStatus> {
    let mut report = Report::default();
    for outbox in &report.read(&args.sources) {
        report.check_database(outbox).await;
        for destination in &outbox.destinations {
            report.check_broker(outbox, destination).await;
        }
    }
    report.add_findings().await;
    report.print(args.output)?;
    Ok(report.status())
}

impl Report {
    /// The outboxes of the configuration; none if it has a problem.
    fn read(&mut self, sources: &Sources) -> Vec<Outbox> {
        let (problems, warnings, outboxes) = match sources.load() {
            Ok(Loaded { file, config, warnings, .. }) => {
                self.configuration(OK, format!("`{file}` is valid"), None);
                (Vec::new(), warnings, config.outboxes)
            }
            Err(problems) => (problems.iter().cloned().collect(), problems.warnings, Vec::new()),
        };
        self.is_misconfigured = !problems.is_empty();
        let problems = problems.into_iter().map(|problem| (ERROR, problem));
        for (result, problem) in problems.chain(warnings.into_iter().map(|warning| (INFO, warning))) {
            let place = problem.place.map(|place| format!(" at {place}")).unwrap_or_default();
            self.configuration(result, format!("{}{place}", problem.reason), problem.hint);
        }
        outboxes
    }

    fn configuration(&mut self, result: &'static str, observed: String, fix: Option<String>) {
        let (outbox, destination, check) = (None, None, "configuration".to_owned());
        self.rows.push(Row { outbox, destination, check, result, observed, fix });
    }

    /// Checks that the database is reachable, migrated and has its destinations.
    async fn check_database(&mut self, outbox: &Outbox) {
        let subject = Subject { outbox: &outbox.name, destination: None };
        let pending = match outbox.store.pending_migrations().await {
            Ok(pending) => pending,
            Err(error) => return self.failure(subject, "database", &error.into()),
        };
        self.add(subject, "database", OK, format!("reachable at {}", outbox.store.location()), None);
        if !pending.is_empty() {
            let migrations = count(u64::try_from(pending.len()).unwrap_or(u64::MAX), "migration");
            let fix = format!("run `relevo migrate --outbox {}`", outbox.name);
            return self.add(subject, "schema", ERROR, format!("not migrated: {migrations} to apply"), Some(fix));
        }
        match doctor::examine_database(outbox).await {
            Ok(examined) => self.examined.push(examined),
            Err(error) => return self.failure(subject, "database", &error),
        }
        if let Err(error) = self.check_destinations(outbox).await {
            self.failure(subject, "destinations", &error);
        }
    }

    async fn check_destinations(&mut self, outbox: &Outbox) -> Result<()> {
        let location = OutboxLocation { store: outbox.store.clone(), origin: format!("outbox `{}`", outbox.name) };
        let known = location.open(ANSWER_TIMEOUT).await?.destinations().await?;
        for Destination { name, create, .. } in &outbox.destinations {
            if known.iter().any(|it| it.name == *name) {
                continue;
            }
            let subject = Subject { outbox: &outbox.name, destination: Some(name) };
            if *create {
                self.add(subject, "destination", INFO, "missing; `relevo run` adds it".to_owned(), None);
            } else {
                let fix = format!("run `relevo destination add {name}`, or set `create = true`");
                self.add(subject, "destination", ERROR, "missing".to_owned(), Some(fix));
            }
        }
        Ok(())
    }

    /// Checks that the broker is reachable and has its topology.
    async fn check_broker(&mut self, outbox: &Outbox, destination: &Destination) {
        let subject = Subject { outbox: &outbox.name, destination: Some(&destination.name) };
        match topology::broker_topology(&outbox.name, destination).await {
            Ok(Some(compared)) => self.add_topology(subject, destination.broker.topology_on_start, &compared.pieces),
            Ok(None) => self.add(subject, "topology", OK, "the broker has none".to_owned(), None),
            Err(error) => return self.failure(subject, "broker", &error),
        }
        match doctor::examine_broker(&outbox.name, destination).await {
            Ok(examined) => self.examined.push(examined),
            Err(error) => self.failure(subject, "broker", &error),
        }
    }

    /// One line for everything that is as configured, and one for each other item.
    fn add_topology(&mut self, subject: Subject<'_>, mode: TopologyMode, items: &[TopologyItem]) {
        let (same, others): (Vec<_>, Vec<_>) = items.iter().partition(|item| item.status == TopologyStatus::Unchanged);
        let same = count(u64::try_from(same.len()).unwrap_or(u64::MAX), "item");
        self.add(subject, "topology", OK, format!("{same} as configured"), None);
        for TopologyItem { name, status } in others {
            let (result, observed, fix) = match status {
                TopologyStatus::Unchanged | TopologyStatus::Created | TopologyStatus::Unknown => {
                    (INFO, topology_word(status).to_owned(), None)
                }
                TopologyStatus::Missing if mode == TopologyMode::Apply => {
                    (INFO, "missing; `relevo run` creates it".to_owned(), None)
                }
                TopologyStatus::Missing => (ERROR, "missing".to_owned(), Some("run `relevo topology apply`")),
                TopologyStatus::Different(differences) => {
                    let differences: Vec<String> = differences.iter().map(ToString::to_string).collect();
                    let fix = "change it at the broker or in the configuration";
                    (ERROR, format!("different: {}", differences.join(", ")), Some(fix))
                }
            };
            self.add(subject, name, result, observed, fix.map(str::to_owned));
        }
    }

    /// The findings of `relevo doctor`.
    async fn add_findings(&mut self) {
        let mut examined = std::mem::take(&mut self.examined);
        if let Err(error) = doctor::memory::compare(&mut examined).await {
            self.failure_of(None, None, "inbox retention", &error);
        }
        for examined in &examined {
            for finding in &examined.findings {
                let result = if examined.accepts(finding) { INFO } else { doctor::word(finding.severity) };
                self.rows.push(Row {
                    outbox: examined.outbox.clone(),
                    destination: examined.destination.clone(),
                    check: finding.subject.clone(),
                    result,
                    observed: finding.detail.clone(),
                    fix: finding.fix.clone().filter(|_| result != OK),
                });
            }
        }
        // The configuration first, then each outbox with its destinations.
        self.rows.sort_by(|one, other| (&one.outbox, &one.destination).cmp(&(&other.outbox, &other.destination)));
    }

    fn add(&mut self, subject: Subject<'_>, check: &str, result: &'static str, observed: String, fix: Option<String>) {
        let (outbox, destination) = (Some(subject.outbox.to_owned()), subject.destination.map(str::to_owned));
        self.rows.push(Row { outbox, destination, check: check.to_owned(), result, observed, fix });
    }

    fn failure(&mut self, Subject { outbox, destination }: Subject<'_>, check: &str, error: &anyhow::Error) {
        self.failure_of(Some(outbox), destination, check, error);
    }

    fn failure_of(&mut self, outbox: Option<&str>, destination: Option<&str>, check: &str, error: &anyhow::Error) {
        match ExitStatus::of(error) {
            ExitStatus::Unreachable => self.is_unreachable = true,
            ExitStatus::Usage => self.is_misconfigured = true,
            _ => {}
        }
        let report = ErrorReport::of(error);
        self.rows.push(Row {
            outbox: outbox.map(str::to_owned),
            destination: destination.map(str::to_owned),
            check: check.to_owned(),
            result: ERROR,
            observed: report.error().to_owned(),
            fix: report.hint(),
        });
    }

    fn print(&self, output: OutputArgs) -> Result<()> {
        if output.is_json() {
            return self.rows.iter().try_for_each(|Row { outbox, destination, check, result, observed, fix }| {
                output::line(&json!({
                    "outbox": outbox,
                    "destination": destination,
                    "check": check,
                    "result": result,
                    "observed": observed,
                    "fix": fix,
                }))
            });
        }
        let rows = self.rows.iter().map(|row| {
            let fix = row.fix.clone().unwrap_or_default();
            vec![row.name(), row.result.to_owned(), row.observed.clone(), fix]
        });
        let rows: Vec<Vec<String>> = rows.collect();
        Table::new(&["CHECK", "RESULT", "DETAIL", "FIX"]).write(&mut io::stdout().lock(), &rows)?;
        Ok(())
    }

    fn status(&self) -> ExitStatus {
        if self.is_misconfigured {
            ExitStatus::Usage
        } else if self.is_unreachable {
            ExitStatus::Unreachable
        } else if self.rows.iter().any(|row| row.result == ERROR) {
            ExitStatus::Findings
        } else {
            ExitStatus::Success
        }
    }
}

impl Row {
    /// The check, with the outbox and the destination that it is about.
    fn name(&self) -> String {
        match (&self.outbox, &self.destination) {
            (Some(outbox), Some(destination)) => format!("{outbox}/{destination}: {}", self.check),
            (Some(outbox), None) => format!("{outbox}: {}", self.check),
            (None, _) => self.check.clone(),
        }
    }
}
