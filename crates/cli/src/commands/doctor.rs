//! `relevo doctor`

pub(super) mod memory;

use std::io::{self, Write as _};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use relevo_core::finding::{Finding, Severity};
use serde_json::json;

use self::memory::Memory;
use crate::args::{self, OutboxArgs};
use crate::config::{self, Destination, Loaded};
use crate::connect::{self, OutboxLocation, broker_error};
use crate::error_report::{ErrorReport, print_stderr};
use crate::exit::{ExitStatus, usage};
use crate::output::table::plain;
use crate::output::{self, OutputArgs};

/// What is examined: one outbox, or everything that a configuration names.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  relevo doctor\n  relevo doctor --database postgres://relevo@localhost/shop -o json"
)]
pub(crate) struct Args {
    #[command(flatten)]
    target: OutboxArgs,
    /// Another database with inboxes, whose retention is compared with that of outboxes and brokers.
    #[arg(long, value_name = "URL")]
    inbox: Vec<String>,
    #[command(flatten)]
    output: OutputArgs,
}

/// What was found in one place.
pub(super) struct Examined {
    pub(super) outbox: Option<String>,
    /// The location of an inbox that no configuration names.
    inbox: Option<String>,
    /// `None` for the outbox's database.
    pub(super) destination: Option<String>,
    pub(super) findings: Vec<Finding>,
    /// Subjects of dangers that the configuration accepts.
    accept: Vec<String>,
    memory: Memory,
}

pub(super) async fn run(args: &Args) -> Result<ExitStatus> {
    let one_is_named = args.target.database.is_some() || args.target.place.schema.is_some();
    let whole = args.target.is_configured() && !one_is_named;
    if args.target.config.are_given() && one_is_named {
        return Err(usage("`--config` names every outbox; hint: leave `--database` and `--schema` out"));
    }
    let (mut all, unseen) =
        if whole { configured(&args.target).await? } else { (vec![one(args.target.locate()?).await?], None) };
    for url in &args.inbox {
        all.push(inboxes_at(url)?);
    }
    memory::compare(&mut all).await?;
    if args.output.is_json() {
        for (examined, finding) in all.iter().flat_map(|it| it.findings.iter().map(move |finding| (it, finding))) {
            output::line(&json(examined, finding))?;
        }
    } else {
        print(&all)?;
    }
    // An error is worse than any finding.
    if let Some(error) = unseen {
        return Err(error);
    }
    let open = all.iter().flat_map(|it| it.findings.iter().filter(|finding| !it.accepts(finding)));
    Ok(match open.map(|finding| finding.severity).max().unwrap_or(Severity::Ok) {
        Severity::Ok | Severity::Note => ExitStatus::Success,
        Severity::Warning | Severity::Danger => ExitStatus::Findings,
    })
}

async fn one(place: OutboxLocation) -> Result<Examined> {
    let outbox = place.outbox().await?;
    let findings = outbox.examine().await?;
    let sends = !outbox.destinations().await?.is_empty();
    let kept = if sends { Some(outbox.settings().await?.retention) } else { None };
    let memory = Memory { horizons: kept.map(memory::of_outbox).into_iter().collect(), place: Some(place) };
    Ok(Examined { outbox: None, inbox: None, destination: None, findings, accept: Vec::new(), memory })
}

/// A database of which only the inboxes are examined.
fn inboxes_at(url: &str) -> Result<Examined> {
    let place = args::SchemaArg::default();
    let place = OutboxArgs { database: Some(url.to_owned()), place, ..OutboxArgs::default() }.locate()?;
    let inbox = Some(place.location());
    let memory = Memory { horizons: Vec::new(), place: Some(place) };
    Ok(Examined { outbox: None, inbox, destination: None, findings: Vec::new(), accept: Vec::new(), memory })
}

/// Every outbox and every broker of a configuration, or those of the outbox that is named; also the last error of those that
/// could not be examined. The other errors are printed.
async fn configured(target: &OutboxArgs) -> Result<(Vec<Examined>, Option<anyhow::Error>)> {
    let Loaded { config, warnings, .. } = config::report_problems(target.config.load())?;
    config::warn(&warnings);
    let (mut all, mut unseen) = (Vec::new(), Vec::new());
    for outbox in config.outboxes.iter().filter(|it| target.outbox.as_ref().is_none_or(|name| *name == it.name)) {
        match examine_database(outbox).await {
            Ok(examined) => all.push(examined),
            Err(error) => unseen.push(error.context(format!("outbox `{}`", outbox.name))),
        }
        for destination in &outbox.destinations {
            match examine_broker(&outbox.name, destination).await {
                Ok(examined) => all.push(examined),
                Err(error) => {
                    unseen.push(error.context(format!("outbox `{}`, destination `{}`", outbox.name, destination.name)));
                }
            }
        }
    }
    let last = unseen.pop();
    for error in unseen {
        print_stderr(&ErrorReport::of(&error).to_string());
    }
    Ok((all, last))
}

/// Examines the database of a configured outbox.
pub(super) async fn examine_database(outbox: &config::Outbox) -> Result<Examined> {
    let location = OutboxLocation { store: Arc::clone(&outbox.store), origin: format!("outbox `{}`", outbox.name) };
    let mut examined = one(location).await?;
    memory::name(&mut examined.memory.horizons, outbox);
    Ok(Examined { outbox: Some(outbox.name.clone()), ..examined })
}

/// Examines the broker of a destination, if it has settings of its own.
pub(super) async fn examine_broker(outbox: &str, destination: &Destination) -> Result<Examined> {
    let findings = match connect::broker_admin(&destination.broker)? {
        Some(admin) => admin.examine(&destination.examine_context()).await,
        None => Ok(Vec::new()),
    };
    Ok(Examined {
        outbox: Some(outbox.to_owned()),
        inbox: None,
        destination: Some(destination.name.clone()),
        findings: findings.map_err(|failure| broker_error(&failure)).context("the broker")?,
        accept: destination.broker.accept.clone(),
        memory: Memory { horizons: destination.broker.adapter.redelivery_windows(), place: None },
    })
}

impl Examined {
    /// Whether the configuration accepts this finding.
    pub(super) fn accepts(&self, finding: &Finding) -> bool {
        finding.severity == Severity::Danger && self.accept.contains(&finding.subject)
    }

    fn title(&self) -> Option<String> {
        if let Some(inbox) = &self.inbox {
            return Some(format!("inboxes at {inbox}:"));
        }
        let outbox = self.outbox.as_ref()?;
        Some(match &self.destination {
            Some(destination) => format!("outbox `{outbox}`, destination `{destination}`:"),
            None => format!("outbox `{outbox}`:"),
        })
    }
}

fn json(examined: &Examined, finding: &Finding) -> serde_json::Value {
    let Finding { severity, subject, detail: observed, fix } = finding;
    let mut line = json!({ "severity": word(*severity), "subject": subject, "observed": observed, "fix": fix });
    if let Some(inbox) = &examined.inbox {
        line["inbox"] = inbox.as_str().into();
    }
    if let Some(outbox) = &examined.outbox {
        line["outbox"] = outbox.as_str().into();
        line["destination"] = examined.destination.as_deref().into();
        line["accepted"] = examined.accepts(finding).into();
    }
    line
}

/// The worst of each place is last, where people look; what is good takes one line each.
fn print(all: &[Examined]) -> Result<()> {
    let findings = || all.iter().flat_map(|examined| &examined.findings);
    let width = findings().map(|finding| finding.subject.chars().count()).max().unwrap_or(0);
    let mut out = io::stdout().lock();
    for examined in all.iter().filter(|it| !it.findings.is_empty()) {
        if let Some(title) = examined.title() {
            writeln!(out, "{title}")?;
        }
        let mut sorted: Vec<&Finding> = examined.findings.iter().collect();
        sorted.sort_by_key(|finding| finding.severity);
        for finding in sorted {
            let (severity, subject) = (word(finding.severity), &finding.subject);
            let accepted = if examined.accepts(finding) { " (accepted)" } else { "" };
            writeln!(out, "{severity:7}  {subject:width$}  {}{accepted}", plain(&finding.detail))?;
            if let Some(fix) = finding.fix.as_ref().filter(|_| finding.severity > Severity::Ok) {
                writeln!(out, "{:7}  {:width$}  fix: {}", "", "", plain(fix))?;
            }
        }
    }
    let count = |severity| {
        let count = findings().filter(|finding| finding.severity == severity).count();
        format!("{count} {}{}", word(severity), if count == 1 || severity == Severity::Note { "" } else { "s" })
    };
    let (dangers, warnings, notes) = (count(Severity::Danger), count(Severity::Warning), count(Severity::Note));
    writeln!(out, "{} checks: {dangers}, {warnings}, {notes}", findings().count())?;
    Ok(())
}

/// The word that JSON and people see.
pub(super) const fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Ok => "ok",
        Severity::Note => "info",
        Severity::Warning => "warning",
        Severity::Danger => "error",
    }
}
