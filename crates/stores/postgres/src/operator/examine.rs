//! The database checks of `relevo doctor`: the settings and the state that the guarantees depend on.

mod outbox;
mod server;
mod sessions;

use std::cmp::Ordering;
use std::time::Duration;

use relevo_core::finding::{Finding, Severity};

use crate::binary_copy::CopyRows;
use crate::classify::Error;
use crate::migrate;
use crate::operator::Operator;

pub(super) async fn examine(operator: &Operator) -> Result<Vec<Finding>, Error> {
    let mut findings = Vec::new();
    let is_standby = server::is_standby(operator).await?;
    findings.extend(server::settings(operator).await?);
    findings.extend(note_if_denied("clock", server::clock(operator).await)?);
    findings.push(schema_version(operator).await?);
    if is_standby {
        findings.push(
            finding(Severity::Danger, "standby", "this server is a standby, and no relay runs on one")
                .with_fix("name the primary in `--database`"),
        );
    }
    findings.extend(note_if_denied("identity", server::identity(operator).await)?);
    findings.extend(note_if_denied("grants", server::grants(operator).await)?);
    findings.extend(note_if_denied("held xmin", sessions::backends(operator).await)?);
    findings.extend(note_if_denied("prepared transactions", sessions::prepared(operator).await)?);
    findings.extend(note_if_denied("replication slots", sessions::slots(operator).await)?);
    findings.extend(note_if_denied("destinations", outbox::destinations(operator).await)?);
    findings.extend(note_if_denied("retention", outbox::retention(operator).await)?);
    findings.extend(note_if_denied("partitions", outbox::partitions(operator).await)?);
    findings.extend(note_if_denied("dead letters", outbox::dead_letters_and_holds(operator).await)?);
    Ok(findings)
}

/// Opening the store has already rejected incompatible versions. This reports the remaining differences.
async fn schema_version(operator: &Operator) -> Result<Finding, Error> {
    const SUBJECT: &str = "schema version";
    let sql = format!("SELECT max(version)::bigint FROM {}.migration", operator.schema);
    let mut rows = CopyRows::new(operator.connection.copy_out(sql).await?, 1)?;
    let found = rows.next_row()?.map_or(Ok(0), |mut row| row.int8())?;
    let known = i64::from(migrate::VERSION);
    Ok(match found.cmp(&known) {
        Ordering::Equal => finding(Severity::Ok, SUBJECT, format!("version {found}")),
        Ordering::Less => finding(Severity::Note, SUBJECT, format!("version {found}; this program comes with {known}"))
            .with_fix("`relevo migrate`"),
        Ordering::Greater => {
            finding(Severity::Note, SUBJECT, format!("version {found} is newer than this program's {known}"))
                .with_fix("upgrade the program")
        }
    })
}

/// Reports a missing privilege as a finding. Any other error ends the examination.
fn note_if_denied(subject: &str, findings: Result<Vec<Finding>, Error>) -> Result<Vec<Finding>, Error> {
    match findings {
        Err(Error::Server(error)) if error.code() == "42501" => {
            let seen = format!("missing privilege: {}", error.message());
            Ok(vec![finding(Severity::Note, subject, seen)])
        }
        other => other,
    }
}

fn finding(severity: Severity, subject: &str, seen: impl Into<String>) -> Finding {
    Finding { severity, subject: subject.to_owned(), detail: seen.into(), fix: None }
}

/// Adds advice to a finding.
trait WithFix {
    fn with_fix(self, fix: impl Into<String>) -> Self;
}

impl WithFix for Finding {
    fn with_fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

/// Formats a duration in its largest sensible unit.
fn human_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_formatted_in_their_largest_unit() {
        let formatted =
            [0, 119, 120, 7199, 7200, 172_799, 172_800].map(|seconds| human_duration(Duration::from_secs(seconds)));
        assert_eq!(formatted, ["0 s", "119 s", "2 min", "119 min", "2 h", "47 h", "2 days"]);
    }
}
