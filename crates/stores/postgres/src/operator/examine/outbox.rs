//! Checks the outbox: destinations and their relays, retention and backlog, partitions, dead letters and held addresses.

use std::time::Duration;

use jiff::Timestamp;
use relevo_core::finding::{Finding, Severity};

use super::{WithFix as _, finding, human_duration};
use crate::binary_copy::CopyRows;
use crate::classify::Error;
use crate::operator::Operator;

/// Reports for each destination whether it is enabled, and whether each of its shards has a relay.
pub(super) async fn destinations(operator: &Operator) -> Result<Vec<Finding>, Error> {
    const SUBJECT: &str = "destinations";
    let sql = format!(
        "SELECT d.name, d.enabled, d.shards::bigint, d.reshard_to IS NOT NULL, (SELECT count(*) FROM {schema}.lease AS l \
         WHERE l.destination = d.name AND (l.owner IS NULL OR l.expires_at < clock_timestamp())) \
         FROM {schema}.destination AS d ORDER BY d.name",
        schema = operator.schema
    );
    let mut rows = CopyRows::new(operator.connection.copy_out(sql).await?, 5)?;
    let mut findings = Vec::new();
    while let Some(mut row) = rows.next_row()? {
        let (name, on, shards) = (row.string()?, row.boolean()?, row.int8()?);
        let (is_resharding, free) = (row.boolean()?, row.int8()?);
        findings.push(if !on {
            finding(
                Severity::Warning,
                SUBJECT,
                format!("`{name}` is disabled: nothing reaches it, and retention waits for it"),
            )
            .with_fix(format!("`relevo destination enable {name}`, or `relevo destination remove {name}`"))
        } else if free > 0 {
            finding(Severity::Warning, SUBJECT, format!("`{name}`: {free} of {shards} shards have no relay"))
                .with_fix("start `relevo run`, or check why it stopped")
        } else {
            finding(Severity::Ok, SUBJECT, format!("`{name}`: {shards} shards, each with a relay"))
        });
        if is_resharding {
            findings.push(finding(Severity::Note, SUBJECT, format!("`{name}` is being resharded")));
        }
    }
    if findings.is_empty() {
        findings.push(
            finding(Severity::Warning, SUBJECT, "there is none: no relay publishes the stored messages")
                .with_fix("`relevo run`, which adds those of its configuration, or `relevo destination add NAME`"),
        );
    }
    Ok(findings)
}

/// The backlog of a destination.
struct DestinationLag {
    name: String,
    /// The age of the first message that may be unsettled. `None` if all are settled.
    age: Option<Duration>,
    rows: i64,
}

/// Compares retention with the backlog of each destination, and reports lost messages.
pub(super) async fn retention(operator: &Operator) -> Result<Vec<Finding>, Error> {
    let schema = &operator.schema;
    let sql = format!(
        "SELECT d.name, floor(date_part('epoch', clock_timestamp() - m.created_at))::bigint, \
         coalesce((SELECT n.seq FROM {schema}.message AS n ORDER BY n.seq DESC LIMIT 1) - s.max_seq, 0), \
         floor(date_part('epoch', st.retention))::bigint, st.undelivered_rows_max, st.overflow_policy = 'drop' \
         FROM {schema}.settings AS st, {schema}.destination AS d CROSS JOIN LATERAL \
         (SELECT min(t.max_seq) AS max_seq FROM {schema}.shard_positions(d.name) AS p JOIN {schema}.tick AS t ON t.tick = p.from_tick) AS s \
         LEFT JOIN LATERAL (SELECT o.created_at FROM {schema}.message AS o WHERE o.seq > s.max_seq ORDER BY o.seq LIMIT 1) AS m \
         ON true WHERE s.max_seq IS NOT NULL ORDER BY s.max_seq, d.name"
    );
    let mut rows = CopyRows::new(operator.connection.copy_out(sql).await?, 6)?;
    let mut findings = Vec::new();
    while let Some(mut row) = rows.next_row()? {
        let name = row.string()?;
        let age = row.optional_int8()?.map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)));
        let lag = DestinationLag { name, age, rows: row.int8()? };
        let retention = Duration::from_secs(row.count()?);
        let (holdback, drops) = (row.int8()?, row.boolean()?);
        findings.push(lag_finding(&lag, retention, holdback, drops, findings.is_empty()));
    }
    findings.extend(data_loss(operator).await?);
    Ok(findings)
}

/// The first destination is the furthest behind. Retention waits for it.
fn lag_finding(lag: &DestinationLag, retention: Duration, holdback: i64, drops: bool, pins: bool) -> Finding {
    const SUBJECT: &str = "retention";
    let DestinationLag { name, age, rows } = lag;
    let Some(age) = age else {
        return finding(Severity::Ok, SUBJECT, format!("`{name}` has taken everything that is kept"));
    };
    let seen = format!(
        "`{name}` is behind by {rows} rows; the oldest it may not have taken is {} old, messages are kept for {}",
        human_duration(*age),
        human_duration(retention)
    );
    let seen = if pins { format!("{seen}; retention waits for this destination") } else { seen };
    let fix = format!("let its relays run, or `relevo destination remove {name}`");
    if *rows > holdback && drops {
        finding(Severity::Danger, SUBJECT, format!("{seen}; rows are dropped unread beyond {holdback} rows"))
            .with_fix(fix)
    } else if *age > retention || *rows > holdback / 2 {
        finding(Severity::Warning, SUBJECT, seen).with_fix(fix)
    } else if *age > retention / 2 {
        finding(Severity::Note, SUBJECT, seen).with_fix(fix)
    } else {
        finding(Severity::Ok, SUBJECT, seen)
    }
}

async fn data_loss(operator: &Operator) -> Result<Option<Finding>, Error> {
    let sql = format!("SELECT coalesce(sum(rows), 0)::bigint, max(lost_at) FROM {}.data_loss", operator.schema);
    let mut rows = CopyRows::new(operator.connection.copy_out(sql).await?, 2)?;
    let (lost, at): (i64, Option<Timestamp>) = match rows.next_row()? {
        Some(mut row) => (row.int8()?, row.optional_timestamp()?),
        None => (0, None),
    };
    let at = at.map_or_else(String::new, |at| format!(", last at {at:.0}"));
    Ok((lost > 0).then(|| {
        finding(Severity::Danger, "losses", format!("{lost} rows were dropped before a destination took them{at}"))
            .with_fix("raise `undelivered_rows_max` in the table `settings`, or set `overflow_policy` to `keep`")
    }))
}

/// Reports rows in the default partition. They mean that maintenance did not create partitions in time.
pub(super) async fn partitions(operator: &Operator) -> Result<Vec<Finding>, Error> {
    const SUBJECT: &str = "partitions";
    let sql = format!(
        "SELECT EXISTS (SELECT 1 FROM {schema}.message_overflow), (SELECT count(*) FROM {schema}.message_partition)",
        schema = operator.schema
    );
    let mut rows = CopyRows::new(operator.connection.copy_out(sql).await?, 2)?;
    let mut row = rows.next_row()?.ok_or(Error::UnexpectedResponse("no partitions"))?;
    let (overflows, count) = (row.boolean()?, row.int8()?);
    Ok(vec![if overflows {
        let seen =
            "messages are in the overflow partition, which is emptied row by row: no relay prepared another in time";
        finding(Severity::Warning, SUBJECT, seen)
            .with_fix("let a relay run: it prepares partitions ahead of the writers")
    } else {
        finding(Severity::Ok, SUBJECT, format!("{count} prepared, none overflows"))
    }])
}

/// Reports dead letters and held addresses of this store's destination.
pub(super) async fn dead_letters_and_holds(operator: &Operator) -> Result<Vec<Finding>, Error> {
    let schema = &operator.schema;
    let sql = format!(
        "SELECT d.name, (SELECT count(*) FROM (SELECT 1 FROM {schema}.dead_letter AS x \
             WHERE x.destination = d.name AND x.state = 'dead' LIMIT 10000) AS counted), \
         (SELECT string_agg('`' || h.address || '` (' || h.error || ')', ', ' ORDER BY h.address) \
             FROM {schema}.address_hold AS h WHERE h.destination = d.name) \
         FROM {schema}.destination AS d ORDER BY d.name"
    );
    let mut rows = CopyRows::new(operator.connection.copy_out(sql).await?, 3)?;
    let mut findings = Vec::new();
    while let Some(mut row) = rows.next_row()? {
        let (name, dead, held) = (row.string()?, row.int8()?, row.optional_string()?);
        if dead > 0 {
            findings.push(
                finding(
                    Severity::Note,
                    "dead letters",
                    format!("`{name}` has {dead} without a decision of an operator"),
                )
                .with_fix(format!("`relevo dead-letter list --destination {name}`")),
            );
        }
        if let Some(held) = held {
            findings.push(
                finding(Severity::Warning, "held addresses", format!("`{name}`: deliveries to {held} are on hold"))
                    .with_fix("fix the address, the relay probes it and resumes"),
            );
        }
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn severity(age: Option<u64>, rows: i64, drops: bool) -> Severity {
        let lag = DestinationLag { name: "main".to_owned(), age: age.map(Duration::from_secs), rows };
        lag_finding(&lag, Duration::from_secs(1000), 100, drops, true).severity
    }

    #[test]
    fn a_lag_is_compared_with_retention() {
        assert_eq!(severity(None, 0, false), Severity::Ok);
        assert_eq!(severity(Some(10), 10, false), Severity::Ok);
        assert_eq!(severity(Some(501), 10, false), Severity::Note);
        assert_eq!(severity(Some(1001), 10, false), Severity::Warning);
        assert_eq!(severity(Some(10), 51, false), Severity::Warning);
        assert_eq!(severity(Some(10), 101, true), Severity::Danger);
    }
}
