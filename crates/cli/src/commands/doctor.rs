//! `relevo doctor`

use std::io::{self, Write as _};

use anyhow::Result;
use relevo_core::operate::{Finding, Severity};
use serde_json::json;

use super::output::{self, Format};
use super::table::plain;
use crate::args::Target;
use crate::database::ANSWER_DEADLINE;
use crate::exit::Code;
use crate::outbox::Place;

/// Which outbox is examined.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    format: Format,
}

pub(super) async fn run(args: &Args) -> Result<Code> {
    let findings = Place::of(&args.target)?.open("", ANSWER_DEADLINE).await?.examine().await?;
    if args.format.json {
        for Finding { severity, subject, seen, fix } in &findings {
            output::line(&json!({ "severity": word(*severity), "subject": subject, "seen": seen, "fix": fix }))?;
        }
    } else {
        told(&findings)?;
    }
    let worst = findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Good);
    Ok(match worst {
        Severity::Good | Severity::Note => Code::Done,
        Severity::Warning | Severity::Danger => Code::Found,
    })
}

/// The worst is last, where people look; what is good takes one line each.
fn told(findings: &[Finding]) -> Result<()> {
    let mut sorted: Vec<&Finding> = findings.iter().collect();
    sorted.sort_by_key(|finding| finding.severity);
    let width = sorted.iter().map(|finding| finding.subject.chars().count()).max().unwrap_or(0);
    let mut out = io::stdout().lock();
    for finding in &sorted {
        let (severity, subject) = (word(finding.severity), &finding.subject);
        writeln!(out, "{severity:7}  {subject:width$}  {}", plain(&finding.seen))?;
        if let Some(fix) = finding.fix.as_ref().filter(|_| finding.severity > Severity::Good) {
            writeln!(out, "{:7}  {:width$}  fix: {}", "", "", plain(fix))?;
        }
    }
    let count = |severity| {
        let count = findings.iter().filter(|finding| finding.severity == severity).count();
        format!("{count} {}{}", word(severity), if count == 1 { "" } else { "s" })
    };
    let (dangers, warnings, notes) = (count(Severity::Danger), count(Severity::Warning), count(Severity::Note));
    writeln!(out, "{} looked at: {dangers}, {warnings}, {notes}", findings.len())?;
    Ok(())
}

/// The word that JSON and people see.
const fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Good => "good",
        Severity::Note => "note",
        Severity::Warning => "warning",
        Severity::Danger => "danger",
    }
}
