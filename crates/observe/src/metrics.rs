//! The names of all metrics. Alerts and dashboards use them: a released name does not change.
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

/// Messages passed to the broker, including repeats.
pub const PUBLISH_ATTEMPTS: &str = "outbox_publish_attempts";
/// Messages that the broker confirmed.
pub const PUBLISHED: &str = "outbox_published";
/// Rejected messages that were scheduled for a retry.
pub const RETRY: &str = "outbox_retry";
/// Messages that were parked.
pub const PARKED: &str = "outbox_parked";
/// Messages that were dead-lettered.
pub const FAILED_PERMANENT: &str = "outbox_failed_permanent";
/// Messages that no route matched.
pub const UNROUTED: &str = "outbox_unrouted";
/// Failed attempts to publish, by class.
pub const PUBLISH_FAILURES: &str = "outbox_publish_failures";
/// Outages of the broker.
pub const BROKER_OUTAGES: &str = "outbox_broker_outages";
/// Outages of the database.
pub const DATABASE_OUTAGES: &str = "outbox_database_outages";
/// Leases that were lost before they were released.
pub const LEASES_LOST: &str = "outbox_leases_lost";
/// Leases that were acquired, released or lost.
pub const LEASE_CHANGES: &str = "outbox_lease_changes";
/// Settlements that were recorded.
pub const SETTLEMENTS: &str = "outbox_settlements";
/// Time from emit to the broker's confirmation.
pub const PUBLISH_LATENCY: &str = "outbox_publish_latency_seconds";
/// Time from emit to the first attempt to publish.
pub const DISPATCH_LATENCY: &str = "outbox_dispatch_latency_ms";
/// Shards that a relay leases.
pub const LEASES: &str = "outbox_leases";
/// Messages that wait for a confirmation.
pub const IN_FLIGHT_MESSAGES: &str = "outbox_in_flight_messages";
/// Whether a relay is ready.
pub const READY: &str = "outbox_ready";
/// Whether the broker was reachable at the last attempt.
pub const BROKER_UP: &str = "outbox_broker_up";
/// How long the broker has been unreachable.
pub const BROKER_DOWN: &str = "outbox_broker_down_seconds";
/// Known nodes of the broker's cluster.
pub const BROKER_NODES: &str = "outbox_broker_nodes";
/// Running nodes of the broker's cluster.
pub const BROKER_NODES_RUNNING: &str = "outbox_broker_nodes_running";

/// Unsettled messages of the log.
pub const BACKLOG: &str = "outbox_backlog_gauge";
/// Messages that are neither delivered nor dead-lettered.
pub const PENDING: &str = "outbox_pending_total";
/// Messages that are currently parked.
pub const PARKED_MESSAGES: &str = "outbox_parked_messages";
/// Parked keys.
pub const PARKED_KEYS: &str = "outbox_parked_keys";
/// Held addresses.
pub const HELD_ADDRESSES: &str = "outbox_held_addresses";
/// Age of the oldest message that is neither delivered nor dead-lettered.
pub const OLDEST_PENDING_AGE: &str = "outbox_oldest_pending_age_seconds";
/// How long messages have been retained beyond their retention.
pub const RETENTION_OVERDUE: &str = "outbox_retention_overdue_seconds";
/// Time since the last complete sample of an outbox.
pub const SAMPLE_AGE: &str = "outbox_sample_age_seconds";
/// Number of transactions that began after the oldest snapshot that is still held.
pub const XMIN_AGE: &str = "outbox_database_xmin_age_transactions";
/// How long the oldest snapshot has been held.
pub const XMIN_HELD: &str = "outbox_database_xmin_held_seconds";
/// Dead letters without a mark: in outboxes, inboxes and broker queues.
pub const DLQ: &str = "mq_dlq_total";

/// Live members of a consumer, as the database has them.
pub const INBOX_MEMBERS: &str = "inbox_members";
/// Time since the last heartbeat of any member of a consumer, as the database has it.
pub const INBOX_HEARTBEAT_AGE: &str = "inbox_heartbeat_age_seconds";
/// Time since any member of a consumer last received a message, as the database has it.
pub const INBOX_LAST_MESSAGE_AGE: &str = "inbox_last_message_age_seconds";
/// Messages in a consumer's retry queues, as the database has them.
pub const INBOX_RETRY_WAITING_MESSAGES: &str = "inbox_retry_waiting_messages";
/// Whether the breaker of a lane is open, as the database has it.
pub const INBOX_BREAKER_OPEN: &str = "inbox_breaker_open";

/// Messages that the broker delivered, including repeats.
pub const INBOX_RECEIVED: &str = "inbox_received";
/// Messages by outcome.
pub const INBOX_HANDLED: &str = "inbox_handled";
/// Handler attempts that failed and were counted.
pub const INBOX_HANDLER_FAILURES: &str = "inbox_handler_failures";
/// Handler attempts that panicked.
pub const INBOX_HANDLER_PANICS: &str = "inbox_handler_panics";
/// Handler attempts that timed out.
pub const INBOX_HANDLER_TIMEOUTS: &str = "inbox_handler_timeouts";
/// Copies of dead letters that could not be published.
pub const INBOX_DEAD_LETTER_COPIES_FAILED: &str = "inbox_dead_letter_copies_failed";
/// First deliveries that arrived after a later message of their key.
pub const INBOX_OUT_OF_ORDER: &str = "inbox_out_of_order";
/// Deliveries whose sequence number had arrived before.
pub const INBOX_SEQUENCE_REPEATS: &str = "inbox_sequence_repeats";
/// Outages of the database.
pub const INBOX_DATABASE_OUTAGES: &str = "inbox_database_outages";
/// Failed database calls about a single message.
pub const INBOX_DATABASE_ERRORS: &str = "inbox_database_errors";
/// Outages of the broker.
pub const INBOX_BROKER_OUTAGES: &str = "inbox_broker_outages";
/// Duration of handler attempts.
pub const INBOX_HANDLER_DURATION: &str = "inbox_handler_duration_seconds";
/// Running handlers.
pub const INBOX_HANDLERS_RUNNING: &str = "inbox_handlers_running";
/// Messages in memory.
pub const INBOX_BUFFERED_MESSAGES: &str = "inbox_buffered_messages";
/// Lanes of this process whose breaker is open.
pub const INBOX_MEMBER_BREAKERS_OPEN: &str = "inbox_member_breakers_open";
/// Messages that wait at the broker, by lane.
pub const INBOX_LAG_MESSAGES: &str = "inbox_lag_messages";
/// Time since the last heartbeat of this process that the database accepted.
pub const INBOX_MEMBER_HEARTBEAT_AGE: &str = "inbox_member_heartbeat_age_seconds";
