//! Finds what prevents vacuum from removing old rows: open transactions, prepared transactions, replication slots.

use std::time::Duration;

use relevo_core::finding::{Finding, Severity};

use super::{WithFix as _, finding, human_duration};
use crate::binary_copy::CopyRows;
use crate::classify::Error;
use crate::operator::Operator;
use crate::queries::status::sample::XMIN_AGE;

const NOTE_AFTER: Duration = Duration::from_mins(1);
const WARNING_AFTER: Duration = Duration::from_mins(10);
/// Maximum number of holders that a finding names.
const NAMED_MAX: usize = 5;

/// Reading works with an old xmin, but every other table that is updated grows.
pub(super) fn severity_of(held_for: Duration) -> Severity {
    match held_for {
        held if held >= WARNING_AFTER => Severity::Warning,
        held if held >= NOTE_AFTER => Severity::Note,
        _ => Severity::Ok,
    }
}

/// Reports sessions that hold back xmin, oldest first. Short calls of Relevo itself are left out.
pub(super) async fn backends(operator: &Operator) -> Result<Vec<Finding>, Error> {
    const SUBJECT: &str = "held xmin";
    let sql = format!(
        "SELECT pid::bigint, coalesce(nullif(application_name, ''), 'no name'), coalesce(state, backend_type, 'unknown'), \
         coalesce(datname::text, '-'), coalesce(xact_start, backend_start), \
         greatest(0, floor(date_part('epoch', clock_timestamp() - coalesce(xact_start, backend_start))))::bigint, \
         {XMIN_AGE} FROM pg_stat_activity \
         WHERE {XMIN_AGE} IS NOT NULL AND pid <> pg_backend_pid() \
         AND clock_timestamp() - coalesce(xact_start, backend_start) > interval '1 second' \
         ORDER BY coalesce(xact_start, backend_start) LIMIT {NAMED_MAX}"
    );
    let mut rows = CopyRows::new(operator.connection.copy_out(sql).await?, 7)?;
    let mut findings = Vec::new();
    while let Some(mut row) = rows.next_row()? {
        let (pid, name, state, database) = (row.int8()?, row.text()?, row.text()?, row.text()?);
        let (since, seconds, age) = (row.timestamp()?, row.count()?, row.int8()?);
        let held_for = Duration::from_secs(seconds);
        let seen = format!(
            "process {pid} (`{name}`, {state}, database `{database}`) holds xmin since {since:.0}, for {}; {age} transactions began after it",
            human_duration(held_for)
        );
        findings.push(
            finding(severity_of(held_for), SUBJECT, seen)
                .with_fix(format!("end its transaction, or `SELECT pg_terminate_backend({pid})`")),
        );
    }
    if findings.is_empty() {
        findings.push(finding(Severity::Ok, SUBJECT, "no session holds it for longer than a second"));
    }
    if !sees_all_sessions(operator).await? {
        findings.push(
            finding(Severity::Note, "pg_monitor", "this role sees only its own sessions: others may hold xmin unseen")
                .with_fix("GRANT pg_monitor TO the role that runs `relevo doctor`"),
        );
    }
    Ok(findings)
}

async fn sees_all_sessions(operator: &Operator) -> Result<bool, Error> {
    let sql = "SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')".to_owned();
    let mut rows = CopyRows::new(operator.connection.copy_out(sql).await?, 1)?;
    let row = rows.next_row()?;
    row.map_or(Ok(false), |mut row| row.boolean())
}

/// Prepared transactions survive their sessions and restarts, so they are easily forgotten.
pub(super) async fn prepared(operator: &Operator) -> Result<Vec<Finding>, Error> {
    const SUBJECT: &str = "prepared transactions";
    let sql = format!(
        "SELECT gid, owner::text, database::text, prepared, \
         greatest(0, floor(date_part('epoch', clock_timestamp() - prepared)))::bigint, database = current_database() \
         FROM pg_prepared_xacts ORDER BY prepared LIMIT {NAMED_MAX}"
    );
    let mut rows = CopyRows::new(operator.connection.copy_out(sql).await?, 6)?;
    let mut findings = Vec::new();
    while let Some(mut row) = rows.next_row()? {
        let (gid, owner, database) = (row.text()?, row.text()?, row.text()?);
        let (since, held_for) = (row.timestamp()?, Duration::from_secs(row.count()?));
        let seen = format!(
            "`{gid}` of `{owner}` in database `{database}` is prepared since {since:.0}, for {}; it holds xmin and its locks",
            human_duration(held_for)
        );
        let connect = if row.boolean()? { String::new() } else { format!("in database `{database}`: ") };
        let gid = gid.replace('\'', "''");
        findings.push(
            finding(severity_of(held_for).max(Severity::Note), SUBJECT, seen)
                .with_fix(format!("{connect}`COMMIT PREPARED '{gid}'` or `ROLLBACK PREPARED '{gid}'`")),
        );
    }
    if findings.is_empty() {
        findings.push(finding(Severity::Ok, SUBJECT, "none"));
    }
    Ok(findings)
}

/// A replication slot without a reader retains rows and write-ahead log forever.
pub(super) async fn slots(operator: &Operator) -> Result<Vec<Finding>, Error> {
    const SUBJECT: &str = "replication slots";
    let sql = format!(
        "SELECT slot_name::text, slot_type, active, coalesce(age(xmin), age(catalog_xmin))::bigint, \
         CASE WHEN pg_is_in_recovery() THEN NULL ELSE pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint END \
         FROM pg_replication_slots WHERE NOT active OR coalesce(xmin, catalog_xmin) IS NOT NULL \
         ORDER BY active, slot_name LIMIT {NAMED_MAX}"
    );
    let mut rows = CopyRows::new(operator.connection.copy_out(sql).await?, 5)?;
    let mut findings = Vec::new();
    while let Some(mut row) = rows.next_row()? {
        let (name, kind, active) = (row.text()?, row.text()?, row.boolean()?);
        let (age, behind) = (row.optional_int8()?, row.optional_int8()?);
        let used = if active { "in use" } else { "without a reader" };
        let age = age.map_or_else(String::new, |age| format!("; it holds xmin, {age} transactions began after it"));
        let behind = behind
            .map_or_else(String::new, |bytes| format!("; it retains {} MB of write-ahead log", bytes / 1_000_000));
        let seen = format!("{kind} slot `{name}` is {used}{age}{behind}");
        let severity = if active { Severity::Ok } else { Severity::Warning };
        let found = finding(severity, SUBJECT, seen);
        let name = name.replace('\'', "''");
        findings.push(if active {
            found
        } else {
            found.with_fix(format!("let its reader run again, or `SELECT pg_drop_replication_slot('{name}')`"))
        });
    }
    if findings.is_empty() {
        findings.push(finding(Severity::Ok, SUBJECT, "none that holds anything back"));
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_xmin_is_a_note_after_a_minute_and_a_warning_after_ten() {
        let severities = [59, 60, 599, 600].map(|seconds| severity_of(Duration::from_secs(seconds)));
        assert_eq!(severities, [Severity::Ok, Severity::Note, Severity::Note, Severity::Warning]);
    }
}
