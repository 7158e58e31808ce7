//! The relays of a run: `relevo run`.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::process::Process;

/// Short, so that a run suspends relays for longer than this several times.
pub(crate) const LEASE: Duration = Duration::from_secs(3);
/// The publish timeout.
pub(crate) const PUBLISH_TIMEOUT: Duration = Duration::from_millis(1500);
/// The timeout of a database call.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_millis(1500);

/// Starts a relay with its own configuration. `destination` is the broker section of it.
pub(crate) fn start(
    relevo: &Path,
    directory: &Path,
    number: usize,
    database: &str,
    destination: &str,
) -> Result<Process> {
    let name = format!("relay-{number}");
    let path = directory.join(format!("{name}.toml"));
    let [lease, publish, call] = [LEASE, PUBLISH_TIMEOUT, CALL_TIMEOUT].map(|limit| limit.as_millis());
    let config = format!(
        "name = {name:?}\n[admin]\nlisten = \"off\"\n\
         [relay]\nlease_duration = \"{lease}ms\"\npublish_timeout = \"{publish}ms\"\n\
         advanced = {{ lease_margin = \"500ms\" }}\n\
         [outboxes.torture]\ndatabase = {database:?}\ncall_timeout = \"{call}ms\"\n{destination}"
    );
    std::fs::write(&path, config)?;
    Process::start(name, directory, relevo, ["run".into(), "-c".into(), path.into_os_string()])
}
