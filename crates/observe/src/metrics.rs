//! The names of the metrics. Alerts and dashboards use them: a released name does not change.
//!
//! The format appends `_total` to the names of counters, and `_info` to the name of the program metric.

/// The program and its version.
pub const BUILD: &str = "relevo_build";
/// Configuration reloads that were applied.
pub const CONFIG_RELOADS: &str = "relevo_config_reloads";
/// Configuration reloads that were rejected.
pub const CONFIG_RELOAD_FAILURES: &str = "relevo_config_reload_failures";
/// Whether the last configuration reload was applied.
pub const CONFIG_LAST_RELOAD_SUCCESSFUL: &str = "relevo_config_last_reload_successful";
/// Spans that the collector accepted.
pub const SPANS_EXPORTED: &str = "relevo_spans_exported";
/// Spans that did not fit into the queue, or that the collector did not accept.
pub const SPANS_DROPPED: &str = "relevo_spans_dropped";

/// Messages sent to the broker, including repeats.
pub const PUBLISH_ATTEMPTS: &str = "outbox_publish_attempts";
/// Messages that the broker confirmed.
pub const PUBLISHED: &str = "outbox_published";
/// Times that a message was rejected and scheduled for a retry.
pub const RETRY: &str = "outbox_retry";
/// Messages that were parked.
pub const PARKED: &str = "outbox_parked";
/// Messages that were dead-lettered.
pub const FAILED_PERMANENT: &str = "outbox_failed_permanent";
/// Messages that no route matched.
pub const SKIPPED: &str = "outbox_skipped";
/// Publishes whose confirmation was lost.
pub const UNKNOWN: &str = "outbox_unknown";
/// Times that the destination was found unreachable.
pub const OUTAGES: &str = "outbox_outages";
/// Times that the database was found unreachable.
pub const DATABASE_AWAY: &str = "outbox_database_away";
/// Leases that were lost before they were released.
pub const LEASES_LOST: &str = "outbox_leases_lost";
/// Leases that were acquired, released or lost.
pub const LEASE_CHANGES: &str = "outbox_lease_changes";
/// Time from emit to the broker's confirmation.
pub const PUBLISH_LATENCY: &str = "outbox_publish_latency_seconds";
/// Time from emit to the first publish to the broker.
pub const DISPATCH_LATENCY: &str = "outbox_dispatch_latency_ms";
/// Settlements that were recorded.
pub const SETTLEMENTS: &str = "outbox_settlements";
/// Publish results other than a confirmation, by class.
pub const FAILURES: &str = "outbox_failures";
/// Messages of the log that are not settled.
pub const BACKLOG: &str = "outbox_backlog_gauge";
/// Messages that are neither delivered nor dead-lettered.
pub const PENDING: &str = "outbox_pending_total";
/// Keys that are parked.
pub const PARKED_KEYS: &str = "outbox_parked_keys";
/// Addresses that are held.
pub const HELD_ADDRESSES: &str = "outbox_held_addresses";
/// Age of the oldest message that is not delivered.
pub const OLDEST_PENDING_AGE: &str = "outbox_oldest_pending_age_seconds";
/// How long messages have been kept beyond their retention.
pub const RETENTION_HOLDBACK: &str = "outbox_retention_holdback_seconds";
/// Time since all sampled values of an outbox were last read.
pub const SAMPLE_AGE: &str = "outbox_sample_age_seconds";
/// Number of transactions that began after the oldest snapshot that is still held.
pub const XMIN_AGE: &str = "outbox_database_xmin_age_transactions";
/// How long the oldest snapshot has been held.
pub const XMIN_HELD: &str = "outbox_database_xmin_held_seconds";
/// Dead letters that wait for an operator: in outboxes, inboxes and broker queues.
pub const DLQ: &str = "mq_dlq_total";
/// Time since the newest heartbeat of a consumer.
pub const INBOX_HEARTBEAT_AGE: &str = "inbox_heartbeat_age_seconds";
/// Time since a consumer last received a message.
pub const INBOX_LAST_MESSAGE_AGE: &str = "inbox_last_message_age_seconds";
/// Members of a consumer that are alive.
pub const INBOX_MEMBERS: &str = "inbox_members";
/// Messages in a consumer's retry table.
pub const INBOX_RETRY_WAITING: &str = "inbox_retry_waiting_gauge";
/// Whether the breaker of a lane is open.
pub const INBOX_BREAKER_OPEN: &str = "inbox_breaker_open";
/// Messages that are currently parked.
pub const PARKED_NOW: &str = "outbox_parked_gauge";
/// Dead letters that no operator has marked.
pub const DEAD: &str = "outbox_dead_gauge";
/// Shards that a relay holds.
pub const LEASES: &str = "outbox_leases";
/// Messages that wait for a confirmation.
pub const IN_FLIGHT: &str = "outbox_in_flight";
/// Whether a relay does its work.
pub const READY: &str = "outbox_ready";
/// Whether the broker was reachable at the last attempt.
pub const BROKER_UP: &str = "broker_up";
/// How long the broker has been unreachable.
pub const BROKER_AWAY: &str = "broker_away_seconds";
/// Running nodes of the broker's cluster.
pub const BROKER_NODES_RUNNING: &str = "broker_nodes_running";
/// Known nodes of the broker's cluster.
pub const BROKER_NODES: &str = "broker_nodes";
