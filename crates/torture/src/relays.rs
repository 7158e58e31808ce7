//! The relays on stage: `relevo run`.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::process::Process;

/// Short, so that a relay is stopped past it several times in a run.
pub(crate) const LEASE: Duration = Duration::from_secs(3);
/// No publish takes longer.
pub(crate) const PUBLISH_DEADLINE: Duration = Duration::from_millis(1500);
/// No call to the database takes longer.
pub(crate) const CALL_DEADLINE: Duration = Duration::from_millis(1500);

/// Starts one, with a configuration of its own. `destination` is the broker's part of it.
pub(crate) fn start(
    relevo: &Path,
    directory: &Path,
    number: usize,
    database: &str,
    destination: &str,
) -> Result<Process> {
    let name = format!("relay-{number}");
    let path = directory.join(format!("{name}.toml"));
    let [lease_ms, deadline_ms, call_ms] = [LEASE, PUBLISH_DEADLINE, CALL_DEADLINE].map(|limit| limit.as_millis());
    let config = format!(
        "name = {name:?}\n[admin]\nlisten = \"off\"\n\
         [relay]\nlease_ms = {lease_ms}\nlease_margin_ms = 500\npublish_deadline_ms = {deadline_ms}\n\
         [outboxes.victim]\ndatabase = {database:?}\ncall_deadline_ms = {call_ms}\n{destination}"
    );
    std::fs::write(&path, config)?;
    Process::start(name, directory, relevo, ["run".into(), "-c".into(), path.into_os_string()])
}
