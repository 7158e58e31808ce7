//! The check of a broker before a relay publishes to it: its topology, and the settings that delivery guarantees depend on.

use anyhow::Result;
use relevo_core::broker::admin::{BrokerAdmin, TopologyItem, TopologyStatus};
use relevo_core::finding::{Finding, Severity};
use relevo_core::{Class, Failure};
use relevo_observe::{Dependency, RelayMonitor, RelayPhase};
use tokio::time::timeout;
use tracing::{error, info, warn};

use crate::config::DestinationConfig;
use crate::registry::TopologyMode;
use crate::run_relay::ConfigurationError;
use crate::waiting::{CHECK_TIMEOUT, Pauses, with_progress};

/// Waits until the broker is reachable, accepts the login and passes the check. A failed check is an error.
pub(crate) async fn wait_for_broker(
    outbox: &str,
    destination: &DestinationConfig,
    monitor: &RelayMonitor,
) -> Result<()> {
    let admin = destination.broker.adapter.admin().map_err(|failure| ConfigurationError(failure.error_chain()))?;
    let Some(admin) = admin else { return Ok(()) };
    let (mut pauses, mut last) = (Pauses::of(destination), String::new());
    loop {
        let checked = with_progress(monitor, timeout(CHECK_TIMEOUT, check_broker(&*admin, outbox, destination))).await;
        let failure = match checked {
            Ok(Ok(result)) => {
                monitor.set_broker_reachable(true);
                return result;
            }
            Ok(Err(failure)) => failure,
            Err(_) => {
                let text = format!("the check of the broker took longer than {CHECK_TIMEOUT:?}");
                Failure::new(Class::Outage, text)
            }
        };
        monitor.set_broker_reachable(false);
        let text = failure.error_chain();
        let rejected = matches!(failure.class(), Class::Blocked | Class::Poison);
        let what = if rejected { "the broker rejects the connection" } else { "waiting for the broker" };
        monitor.enter(RelayPhase::WaitingFor(Dependency::Broker, format!("{what}: {text}")));
        // The same error is logged once.
        if text != last {
            if rejected {
                error!(error = text, "broker rejected the connection, will retry");
            } else {
                warn!(error = text, "broker unreachable, will retry");
            }
            last = text;
        }
        pauses.pass(monitor).await;
    }
}

/// Checks the broker, without a part of it that publishing does not need if only that part is unreachable.
async fn check_broker(
    admin: &dyn BrokerAdmin,
    outbox: &str,
    destination: &DestinationConfig,
) -> Result<Result<()>, Failure> {
    let failure = match check_topology(admin, outbox, destination).await {
        Ok(result) => return Ok(result),
        Err(failure) => failure,
    };
    let Some(rest) = destination.broker.adapter.reduced_admin(&failure) else { return Err(failure) };
    let result = check_topology(&*rest, outbox, destination).await?;
    warn!(
        error = failure.error_chain(),
        "a part of the broker that publishing does not need is unreachable: only the existence of its topology was checked"
    );
    Ok(result)
}

/// Checks the broker once. The outer error is the broker's and may be temporary; the inner one needs an operator.
async fn check_topology(
    admin: &dyn BrokerAdmin,
    outbox: &str,
    destination: &DestinationConfig,
) -> Result<Result<()>, Failure> {
    let pieces = match destination.broker.topology_on_start {
        TopologyMode::Off => Vec::new(),
        TopologyMode::Check => admin.plan().await?,
        TopologyMode::Apply => admin.apply().await?,
    };
    for piece in pieces.iter().filter(|piece| piece.status == TopologyStatus::Created) {
        info!(piece = piece.name, "topology object created");
    }
    let unknown: Vec<&str> =
        pieces.iter().filter(|piece| piece.status == TopologyStatus::Unknown).map(|piece| &*piece.name).collect();
    if !unknown.is_empty() {
        info!(objects = unknown.join(", "), "topology objects that could not be compared with the configuration");
    }
    let wrong: Vec<&TopologyItem> = pieces.iter().filter(|piece| !piece.is_in_place()).collect();
    if !wrong.is_empty() {
        return Ok(Err(ConfigurationError(describe_differences(&wrong)).into()));
    }
    let findings = admin.examine(&destination.examine_context()).await?;
    Ok(refuse_dangers(&findings, outbox, destination))
}

fn describe_differences(wrong: &[&TopologyItem]) -> String {
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
        "a different object is never changed: fix it at the broker or in the configuration, or set `topology_on_start = \"off\"`"
    } else {
        "`relevo topology apply` creates missing objects, and so does `topology_on_start = \"apply\"`; `\"off\"` checks nothing"
    };
    format!("the broker is not as configured: {}; hint: {hint}", pieces.collect::<Vec<_>>().join("; "))
}

/// Dangers that the configuration does not accept are an error. Warnings are logged.
fn refuse_dangers(findings: &[Finding], outbox: &str, destination: &DestinationConfig) -> Result<()> {
    let accept = &destination.broker.accept;
    let mut refused: Vec<&Finding> = Vec::new();
    for finding in findings {
        let Finding { severity, subject, detail, fix } = finding;
        match severity {
            Severity::Ok | Severity::Note => {}
            Severity::Warning => warn!(subject, detail, fix, "broker setting will become a problem"),
            Severity::Danger if accept.contains(subject) => {
                warn!(subject, detail, fix, "broker setting breaks a delivery guarantee, accepted");
            }
            Severity::Danger => {
                error!(subject, detail, fix, "broker setting breaks a delivery guarantee");
                refused.push(finding);
            }
        }
    }
    // Without the management API some settings were not checked.
    let unseen = |finding: &Finding| finding.subject == "management" && finding.severity != Severity::Ok;
    let complete = !findings.iter().any(unseen);
    for subject in accept.iter().filter(|subject| complete && !is_danger(findings, subject)) {
        warn!(subject, "`accept` names a danger that was not found: it can be removed");
    }
    if refused.is_empty() {
        return Ok(());
    }
    let dangers = refused.iter().map(|finding| {
        let fix = finding.fix.as_ref().map_or_else(String::new, |fix| format!(" (fix: {fix})"));
        format!("`{}`: {}{fix}", finding.subject, finding.detail)
    });
    let mut subjects: Vec<String> = refused.iter().map(|finding| format!("\"{}\"", finding.subject)).collect();
    subjects.sort();
    subjects.dedup();
    Err(ConfigurationError(format!(
        "the broker's settings break delivery guarantees: {}; hint: fix them, or accept them with `accept = [{}]` \
         in `[outboxes.{outbox}.destinations.{}.broker]`",
        dangers.collect::<Vec<_>>().join("; "),
        subjects.join(", "),
        destination.name,
    ))
    .into())
}

fn is_danger(findings: &[Finding], subject: &str) -> bool {
    findings.iter().any(|finding| finding.severity == Severity::Danger && finding.subject == subject)
}
