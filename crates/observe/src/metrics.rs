//! The names of the metrics. Alerts and dashboards use them: a name that was released does not change.
//!
//! The format adds `_total` to the names of counters, and `_info` to that of the program.

/// The program and its version.
pub const BUILD: &str = "relevo_build";
/// Configurations that were read anew and taken.
pub const CONFIG_RELOADS: &str = "relevo_config_reloads";
/// Configurations that were read anew and refused.
pub const CONFIG_RELOAD_FAILURES: &str = "relevo_config_reload_failures";
/// Whether the configuration that was read last was taken.
pub const CONFIG_LAST_RELOAD_SUCCESSFUL: &str = "relevo_config_last_reload_successful";
/// Spans that the collector took.
pub const SPANS_EXPORTED: &str = "relevo_spans_exported";
/// Spans that there was no room for, or that the collector did not take.
pub const SPANS_DROPPED: &str = "relevo_spans_dropped";

/// Messages handed to the broker, repeats included.
pub const PUBLISH_ATTEMPTS: &str = "outbox_publish_attempts";
/// Messages that the broker confirmed.
pub const PUBLISHED: &str = "outbox_published";
/// Times that a message was refused and put off.
pub const RETRY: &str = "outbox_retry";
/// Messages that were parked.
pub const PARKED: &str = "outbox_parked";
/// Messages that went to the dead letters.
pub const FAILED_PERMANENT: &str = "outbox_failed_permanent";
/// Messages that no route wanted.
pub const SKIPPED: &str = "outbox_skipped";
/// Answers of the broker that were lost.
pub const UNKNOWN: &str = "outbox_unknown";
/// Times that the destination was found away.
pub const OUTAGES: &str = "outbox_outages";
/// Times that the database was found away.
pub const DATABASE_AWAY: &str = "outbox_database_away";
/// Leases that were lost before they were given back.
pub const LEASES_LOST: &str = "outbox_leases_lost";
/// Leases that were taken, given back or lost.
pub const LEASE_CHANGES: &str = "outbox_lease_changes";
/// From emit to the broker's confirmation.
pub const PUBLISH_LATENCY: &str = "outbox_publish_latency_seconds";
/// From emit to the first hand-over to the broker.
pub const DISPATCH_LATENCY: &str = "outbox_dispatch_latency_ms";
/// Settlements that were recorded.
pub const SETTLEMENTS: &str = "outbox_settlements";
/// Outcomes that were no confirmation, by their class.
pub const FAILURES: &str = "outbox_failures";
/// Messages of the log that are not settled.
pub const BACKLOG: &str = "outbox_backlog_gauge";
/// Messages that have not arrived and are not dead.
pub const PENDING: &str = "outbox_pending_total";
/// Keys that wait.
pub const PARKED_KEYS: &str = "outbox_parked_keys";
/// Addresses that nothing can pass to.
pub const HELD_ADDRESSES: &str = "outbox_held_addresses";
/// Age of the oldest message that has not arrived.
pub const OLDEST_PENDING_AGE: &str = "outbox_oldest_pending_age_seconds";
/// For how long messages have been kept beyond their retention.
pub const RETENTION_HOLDBACK: &str = "outbox_retention_holdback_seconds";
/// Since everything that is sampled of an outbox was.
pub const SAMPLE_AGE: &str = "outbox_sample_age_seconds";
/// Transactions that began after the oldest that is still held.
pub const XMIN_AGE: &str = "outbox_database_xmin_age_transactions";
/// For how long the oldest snapshot has been held.
pub const XMIN_HELD: &str = "outbox_database_xmin_held_seconds";
/// Dead letters that wait for a person, wherever.
pub const DLQ: &str = "mq_dlq_total";
/// Since the newest sign of life of a consumer.
pub const INBOX_HEARTBEAT_AGE: &str = "inbox_heartbeat_age_seconds";
/// Since a consumer last took a message.
pub const INBOX_LAST_MESSAGE_AGE: &str = "inbox_last_message_age_seconds";
/// Members of a consumer that are alive.
pub const INBOX_MEMBERS: &str = "inbox_members";
/// Messages in a consumer's retry table.
pub const INBOX_RETRY_WAITING: &str = "inbox_retry_waiting_gauge";
/// Whether the breaker of a lane is open.
pub const INBOX_BREAKER_OPEN: &str = "inbox_breaker_open";
/// Messages that are parked.
pub const PARKED_NOW: &str = "outbox_parked_gauge";
/// Dead letters that nobody has marked.
pub const DEAD: &str = "outbox_dead_gauge";
/// Shards that a relay holds.
pub const LEASES: &str = "outbox_leases";
/// Messages that wait for their confirmation.
pub const IN_FLIGHT: &str = "outbox_in_flight";
/// Whether a relay does its work.
pub const READY: &str = "outbox_ready";
/// Whether the broker was there when it was last tried.
pub const BROKER_UP: &str = "broker_up";
/// For how long the broker has been away.
pub const BROKER_AWAY: &str = "broker_away_seconds";
/// Nodes of the broker's cluster that run.
pub const BROKER_NODES_RUNNING: &str = "broker_nodes_running";
/// Nodes that the broker's cluster knows.
pub const BROKER_NODES: &str = "broker_nodes";
