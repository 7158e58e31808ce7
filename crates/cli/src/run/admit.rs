//! Whether a destination's broker is such that messages may go out: its topology, and the settings that promises stand on.

use anyhow::Result;
use relevo_core::Failure;
use relevo_core::broker::admin::{BrokerAdmin, TopologyItem, TopologyStatus};
use relevo_core::finding::{Finding, Severity};
use relevo_host::registry::TopologyMode;
use tracing::{error, info, warn};

use crate::broker::is_there;
use crate::config::Destination;
use crate::exit::usage;

/// Looks at the broker once. The outer error is the broker's, and may pass; the inner one is what a person must decide.
pub(crate) async fn admit(
    admin: &dyn BrokerAdmin,
    outbox: &str,
    destination: &Destination,
) -> Result<Result<()>, Failure> {
    let pieces = match destination.broker.topology_on_start {
        TopologyMode::Off => Vec::new(),
        TopologyMode::Check => admin.plan().await?,
        TopologyMode::Apply => admin.apply().await?,
    };
    for piece in pieces.iter().filter(|piece| piece.status == TopologyStatus::Created) {
        info!(piece = piece.name, "made at the broker");
    }
    let unknown: Vec<&str> =
        pieces.iter().filter(|piece| piece.status == TopologyStatus::Unknown).map(|piece| &*piece.name).collect();
    if !unknown.is_empty() {
        info!(objects = unknown.join(", "), "topology objects that could not be compared with the configuration");
    }
    let wrong: Vec<&TopologyItem> = pieces.iter().filter(|piece| !is_there(piece)).collect();
    if !wrong.is_empty() {
        return Ok(Err(usage(told_pieces(&wrong))));
    }
    let findings = admin.examine(&destination.expectations()).await?;
    Ok(judge(&findings, outbox, destination))
}

fn told_pieces(wrong: &[&TopologyItem]) -> String {
    let pieces = wrong.iter().map(|piece| match &piece.status {
        TopologyStatus::Different(differences) => {
            let differences: Vec<String> = differences.iter().map(ToString::to_string).collect();
            format!("{} differs: {}", piece.name, differences.join(", "))
        }
        TopologyStatus::Unchanged | TopologyStatus::Created | TopologyStatus::Unknown | TopologyStatus::Missing => {
            format!("{} is missing", piece.name)
        }
    });
    let differs = wrong.iter().any(|piece| piece.status != TopologyStatus::Missing);
    let hint = if differs {
        "what differs is never changed: mend it at the broker or in the configuration, or set `topology_on_start = \"off\"`"
    } else {
        "`relevo topology apply` creates missing objects, and so does `topology_on_start = \"apply\"`; `\"off\"` checks nothing"
    };
    format!("the broker is not as configured: {}; hint: {hint}", pieces.collect::<Vec<_>>().join("; "))
}

/// Dangers that nobody accepted are an error; everything else that a person should know is logged.
fn judge(findings: &[Finding], outbox: &str, destination: &Destination) -> Result<()> {
    let accept = &destination.broker.accept;
    let mut refused: Vec<&Finding> = Vec::new();
    for finding in findings {
        let Finding { severity, subject, detail: seen, fix } = finding;
        match severity {
            Severity::Ok | Severity::Note => {}
            Severity::Warning => warn!(subject, seen, fix, "a setting of the broker will become a problem"),
            Severity::Danger if accept.contains(subject) => {
                warn!(subject, seen, fix, "a setting of the broker contradicts a promise, and is accepted");
            }
            Severity::Danger => {
                error!(subject, seen, fix, "a setting of the broker contradicts a promise");
                refused.push(finding);
            }
        }
    }
    // What the management API did not show was not looked at, and may be there.
    let unseen = |finding: &Finding| finding.subject == "management" && finding.severity != Severity::Ok;
    let looked = !findings.iter().any(unseen);
    for subject in accept.iter().filter(|subject| looked && !is_danger(findings, subject)) {
        warn!(subject, "`accept` names what was not found: it can be removed");
    }
    if refused.is_empty() {
        return Ok(());
    }
    let told = refused.iter().map(|finding| {
        let fix = finding.fix.as_ref().map_or_else(String::new, |fix| format!(" (fix: {fix})"));
        format!("`{}`: {}{fix}", finding.subject, finding.detail)
    });
    let mut subjects: Vec<String> = refused.iter().map(|finding| format!("\"{}\"", finding.subject)).collect();
    subjects.sort();
    subjects.dedup();
    Err(usage(format!(
        "the broker's settings contradict what is promised: {}; hint: mend them, or start all the same with `accept = [{}]` \
         in `[outboxes.{outbox}.destinations.{}.broker]`",
        told.collect::<Vec<_>>().join("; "),
        subjects.join(", "),
        destination.name,
    )))
}

fn is_danger(findings: &[Finding], subject: &str) -> bool {
    findings.iter().any(|finding| finding.severity == Severity::Danger && finding.subject == subject)
}
