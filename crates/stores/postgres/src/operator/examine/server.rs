//! Checks the server: its version, settings, clock, database identity, and the privileges of this role.

use jiff::{SignedDuration, Timestamp};
use relevo_core::finding::{Finding, Severity};

use super::{WithFix as _, finding};
use crate::binary_copy::CopyRows;
use crate::classify::Error;
use crate::operator::Operator;

/// The oldest and the newest server version that the tests cover.
const SUPPORTED: std::ops::RangeInclusive<i64> = 13..=18;
/// Clock differences above which a note and then a warning is reported.
const CLOCK_NOTE: SignedDuration = SignedDuration::from_secs(1);
const CLOCK_WARNING: SignedDuration = SignedDuration::from_secs(60);

pub(super) async fn is_standby(operator: &Operator) -> Result<bool, Error> {
    let mut rows = CopyRows::new(operator.connection.copy_out("SELECT pg_is_in_recovery()".to_owned()).await?, 1)?;
    let row = rows.next_row()?;
    row.map_or(Ok(false), |mut row| row.boolean())
}

/// Checks version and settings. Each row is a name and its value in this session.
pub(super) async fn settings(operator: &Operator) -> Result<Vec<Finding>, Error> {
    let sql = "SELECT name, current_setting(name) FROM unnest(ARRAY['server_version_num', 'fsync', \
               'full_page_writes', 'synchronous_commit', 'idle_in_transaction_session_timeout']) AS name"
        .to_owned();
    let mut rows = CopyRows::new(operator.connection.copy_out(sql).await?, 2)?;
    let mut findings = Vec::new();
    while let Some(mut row) = rows.next_row()? {
        let (name, value) = (row.string()?, row.string()?);
        findings.push(setting(&name, &value));
    }
    findings.extend(overrides(operator).await?);
    Ok(findings)
}

fn setting(name: &str, value: &str) -> Finding {
    match (name, value) {
        ("server_version_num", number) => version(number.parse::<i64>().unwrap_or(0) / 10_000),
        ("fsync" | "full_page_writes", "off") => {
            finding(Severity::Danger, name, "off: a crash may lose or corrupt committed data")
                .with_fix(format!("`ALTER SYSTEM SET {name} = on`, then reload the server"))
        }
        ("synchronous_commit", "off") => {
            lossy_commits(name, "for this session, so probably for the whole server", "on")
        }
        ("idle_in_transaction_session_timeout", "0") => {
            finding(Severity::Note, name, "0: a client that hangs in a transaction holds its locks, and xmin, forever")
                .with_fix("`ALTER SYSTEM SET idle_in_transaction_session_timeout = '10min'`, or per role")
        }
        _ => finding(Severity::Ok, name, value),
    }
}

fn version(major: i64) -> Finding {
    const SUBJECT: &str = "server version";
    let seen = format!("PostgreSQL {major}");
    if major > *SUPPORTED.end() {
        finding(Severity::Note, SUBJECT, format!("{seen} is newer than this program's tests"))
    } else if major < *SUPPORTED.start() {
        finding(Severity::Danger, SUBJECT, format!("{seen} is too old")).with_fix(format!(
            "upgrade to PostgreSQL {} to {}",
            SUPPORTED.start(),
            SUPPORTED.end()
        ))
    } else {
        finding(Severity::Ok, SUBJECT, seen)
    }
}

/// Published messages are durable anyway: a tick commits with `synchronous_commit = on` before its messages are
/// published.
fn lossy_commits(subject: &str, whose: &str, fix: &str) -> Finding {
    let seen = format!("off {whose}: a crash can lose the last confirmed transactions and their messages");
    finding(Severity::Warning, subject, seen).with_fix(format!("set `synchronous_commit = {fix}` for writers"))
}

/// Checks settings of roles and databases. They apply to those sessions, not to this one.
async fn overrides(operator: &Operator) -> Result<Vec<Finding>, Error> {
    let sql = "SELECT coalesce('role `' || r.rolname || '`', 'every role'), \
               coalesce(' in database `' || d.datname || '`', '') \
               FROM pg_db_role_setting AS s LEFT JOIN pg_roles AS r ON r.oid = s.setrole \
               LEFT JOIN pg_database AS d ON d.oid = s.setdatabase CROSS JOIN LATERAL unnest(s.setconfig) AS c \
               WHERE c = 'synchronous_commit=off' AND (s.setdatabase = 0 OR d.datname = current_database()) ORDER BY 1, 2"
        .to_owned();
    let mut rows = CopyRows::new(operator.connection.copy_out(sql).await?, 2)?;
    let mut findings = Vec::new();
    while let Some(mut row) = rows.next_row()? {
        let whose = format!("for {}{}", row.text()?, row.text()?);
        findings.push(lossy_commits("synchronous_commit", &whose, "on"));
    }
    Ok(findings)
}

/// Compares this machine's clock with the database's. SQL conditions use the database's clock, and reports show times
/// of both.
pub(super) async fn clock(operator: &Operator) -> Result<Vec<Finding>, Error> {
    // The connection is open already. The call takes one round trip, so its result is from the middle of it.
    let before = Timestamp::now();
    let mut rows = CopyRows::new(operator.connection.copy_out("SELECT clock_timestamp()".to_owned()).await?, 1)?;
    let after = Timestamp::now();
    let there =
        rows.next_row()?.map(|mut row| row.timestamp()).transpose()?.ok_or(Error::UnexpectedResponse("no clock"))?;
    let here = before + before.duration_until(after) / 2;
    Ok(vec![clock_skew(here, there)])
}

fn clock_skew(here: Timestamp, there: Timestamp) -> Finding {
    const SUBJECT: &str = "clock";
    let difference = there.duration_until(here);
    let direction = if difference.is_negative() { "behind" } else { "ahead of" };
    let seen = format!("this machine is {} ms {direction} the database", difference.abs().as_millis());
    match difference.abs() {
        apart if apart >= CLOCK_WARNING => finding(Severity::Warning, SUBJECT, seen)
            .with_fix("set both clocks by NTP; nothing is lost, but times that people compare are wrong"),
        apart if apart >= CLOCK_NOTE => finding(Severity::Note, SUBJECT, seen).with_fix("set both clocks by NTP"),
        _ => finding(Severity::Ok, SUBJECT, seen),
    }
}

/// Checks whether the rows were written in this database.
pub(super) async fn identity(operator: &Operator) -> Result<Vec<Finding>, Error> {
    const SUBJECT: &str = "identity";
    let sql = format!(
        "SELECT EXISTS (SELECT 1 FROM {}.database_identity AS i, pg_control_system() AS c, pg_database AS d \
         WHERE d.datname = current_database() AND d.oid = i.database_oid AND c.system_identifier = i.system_identifier)",
        operator.schema
    );
    let mut rows = CopyRows::new(operator.connection.copy_out(sql).await?, 1)?;
    let same = rows.next_row()?.map_or(Ok(false), |mut row| row.boolean())?;
    Ok(vec![if same {
        finding(Severity::Ok, SUBJECT, "the outbox was written in this database")
    } else {
        let seen = "the outbox was written in another database: a copy, a restored dump or an upgraded cluster";
        finding(Severity::Danger, SUBJECT, seen).with_fix(
            "if this one shall publish from now on: `relevo outbox adopt`, or `relevo outbox rebase` after a restore",
        )
    }])
}

/// Checks the privileges that `grant_relay` grants.
pub(super) async fn grants(operator: &Operator) -> Result<Vec<Finding>, Error> {
    const SUBJECT: &str = "grants";
    let schema = operator.schema.trim_matches('"');
    let sql = format!(
        "SELECT current_user::text, what FROM (\
         SELECT 'execute ' || p.proname FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace \
         WHERE n.nspname = '{schema}' AND p.proname IN ('add_destination', 'make_tick', 'move_due_scheduled', 'acquire_leases', \
             'release_leases', 'settle', 'shard_positions', 'read_parked', 'settle_parked', 'maintain', 'backlog', 'redrive', \
             'discard', 'inbox_list_consumers') \
         AND NOT has_function_privilege(p.oid, 'execute') \
         UNION ALL SELECT 'select on ' || c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace \
         WHERE n.nspname = '{schema}' AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition \
         AND NOT has_table_privilege(c.oid, 'select')) AS missing(what) ORDER BY what"
    );
    let mut rows = CopyRows::new(operator.connection.copy_out(sql).await?, 2)?;
    let (mut role, mut missing) = (String::new(), Vec::new());
    while let Some(mut row) = rows.next_row()? {
        role = row.string()?;
        missing.push(row.string()?);
    }
    Ok(vec![if missing.is_empty() {
        finding(Severity::Ok, SUBJECT, "this role may run a relay")
    } else {
        let seen = format!("role `{role}` may not run a relay; it lacks: {}", missing.join(", "));
        finding(Severity::Warning, SUBJECT, seen).with_fix(format!(
            "`SELECT {}.grant_relay('{}')`, as the owner",
            operator.schema,
            role.replace('\'', "''")
        ))
    }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_supported_from_13_to_18() {
        let severity = |major| version(major).severity;
        assert_eq!([12, 13, 18, 19].map(severity), [Severity::Danger, Severity::Ok, Severity::Ok, Severity::Note]);
    }

    #[test]
    fn settings_that_lose_commits_are_reported() {
        let severity = |name, value| setting(name, value).severity;
        assert_eq!(severity("fsync", "off"), Severity::Danger);
        assert_eq!(severity("full_page_writes", "off"), Severity::Danger);
        assert_eq!(severity("synchronous_commit", "off"), Severity::Warning);
        assert_eq!(severity("synchronous_commit", "remote_apply"), Severity::Ok);
        assert_eq!(severity("idle_in_transaction_session_timeout", "0"), Severity::Note);
        assert_eq!(severity("idle_in_transaction_session_timeout", "10min"), Severity::Ok);
    }

    #[test]
    fn clock_skew_is_reported_with_its_direction() {
        let now = Timestamp::UNIX_EPOCH;
        let behind = clock_skew(now, now + SignedDuration::from_secs(90));
        assert_eq!(
            (behind.severity, &*behind.detail),
            (Severity::Warning, "this machine is 90000 ms behind the database")
        );
        assert_eq!(clock_skew(now + SignedDuration::from_secs(2), now).severity, Severity::Note);
        assert_eq!(clock_skew(now, now).severity, Severity::Ok);
    }
}
