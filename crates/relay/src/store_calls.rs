//! The relay's calls to the store: leases, settlements, parked keys and maintenance.
//!
//! Only one call runs at a time. When a parked head is removed, each message that should wait behind it must be either
//! settled or in memory.

mod maintenance;

use std::sync::Arc;

use relevo_core::outbox::leases::{Lease, LeaseResponse, TakenShard};
use relevo_core::outbox::log::SettleResult;
use relevo_core::outbox::maintenance::MaintenanceReport;
use relevo_core::outbox::parked::{ParkedBatch, ParkedResult};
use relevo_core::retry::{ExponentialBackoff, Jitter};
use relevo_core::store::StoreError;
use relevo_core::trace::ActiveSpan;
use tokio::time::{Instant, timeout};
use tracing::warn;

use crate::config::Config;
use crate::parked::SentSettlement;
use crate::relay::{Pending, Relay, RelayError};
use crate::settle::PendingSettlement;
use crate::status::add;
use crate::store_calls::maintenance::MaintenanceLog;

/// The store call in progress, and when each kind of call is due.
pub(crate) struct StoreCalls {
    pub(crate) call: Option<Pending<StoreReply>>,
    pub(crate) schedule: Schedule,
    /// The pauses after failures of the database.
    backoff: ExponentialBackoff,
    maintenance_log: MaintenanceLog,
}

impl StoreCalls {
    pub(crate) fn new(config: &Config, now: Instant) -> Self {
        Self {
            call: None,
            schedule: Schedule::new(now),
            backoff: ExponentialBackoff::new(config.outage_backoff_min, config.outage_backoff_max),
            maintenance_log: MaintenanceLog::default(),
        }
    }

    pub(crate) fn reset(&mut self, now: Instant) {
        self.call = None;
        self.schedule = Schedule::new(now);
    }
}

/// When each regular call is due next.
pub(crate) struct Schedule {
    pub(crate) lease: Instant,
    pub(crate) parked: Instant,
    pub(crate) settle: Instant,
    /// Before this time, completed pages are settled only if memory is full.
    pub(crate) settle_front: Instant,
    pub(crate) maintain: Instant,
}

impl Schedule {
    const fn new(now: Instant) -> Self {
        Self { lease: now, parked: now, settle: now, settle_front: now, maintain: now }
    }
}

/// The reply of a store call.
pub(crate) enum StoreReply {
    Leases {
        requested_at: Instant,
        released: Vec<Lease>,
        result: Result<(LeaseResponse, Vec<TakenShard>), StoreError>,
    },
    Settlement {
        pending: PendingSettlement,
        result: Result<SettleResult, StoreError>,
    },
    Parked(Result<Vec<ParkedBatch>, StoreError>),
    ParkedSettlement {
        sent: Vec<SentSettlement>,
        spans: Vec<ActiveSpan>,
        result: Result<Vec<ParkedResult>, StoreError>,
    },
    Maintenance(Result<MaintenanceReport, StoreError>),
    Released,
}

impl Relay {
    /// Starts the most urgent call, unless one is running.
    pub(crate) fn start_store_call(&mut self, now: Instant) {
        if self.store_calls.call.is_none() && !self.stopping {
            self.store_calls.call = self.next_store_call(now);
        }
    }

    fn next_store_call(&mut self, now: Instant) -> Option<Pending<StoreReply>> {
        if now >= self.store_calls.schedule.lease || self.can_release() {
            return Some(self.lease_call(now));
        }
        if self.leases.shards.is_empty() {
            return None;
        }
        if let Some(call) = self.settle_parked_call() {
            return Some(call);
        }
        let has_room = 2 * self.pages.messages() < self.config.pages_max * self.config.page_messages;
        let schedule = &mut self.store_calls.schedule;
        if (self.pages.is_front_complete() && (now >= schedule.settle_front || !has_room))
            || (now >= schedule.settle && self.pages.len() > 0)
        {
            schedule.settle = now + self.config.settle_interval_max;
            schedule.settle_front = now + self.config.settle_interval_min;
            if let Some(call) = self.settle_call() {
                return Some(call);
            }
        }
        if now >= self.store_calls.schedule.parked && self.can_read_parked(now) {
            self.store_calls.schedule.parked = now + self.config.parked_poll_interval;
            return Some(self.read_parked_call());
        }
        if now >= self.store_calls.schedule.maintain {
            self.store_calls.schedule.maintain = now + self.config.maintenance_interval;
            let store = Arc::clone(&self.store);
            return Some(Box::pin(async move { StoreReply::Maintenance(store.maintain().await) }));
        }
        None
    }

    pub(crate) fn apply_reply(&mut self, reply: StoreReply) -> Result<(), RelayError> {
        match reply {
            StoreReply::Leases { requested_at, released, result: Ok((response, taken)) } => {
                self.apply_leases(requested_at, &released, response, taken);
            }
            StoreReply::Settlement { pending, result: Ok(result) } => self.apply_settlement(&pending, &result),
            StoreReply::Parked(Ok(batches)) => self.take_parked_batches(batches),
            StoreReply::ParkedSettlement { sent, spans, result: Ok(results) } => {
                self.apply_parked_settlement(&sent, spans, &results);
            }
            StoreReply::Maintenance(Ok(report)) => {
                self.store_calls.maintenance_log.report(&self.config, &report.warnings);
            }
            StoreReply::Maintenance(Err(error)) if error.is_retryable() => {
                self.store_calls.maintenance_log.failed(&self.config, &error);
            }
            StoreReply::Leases { result: Err(error), .. }
            | StoreReply::Settlement { result: Err(error), .. }
            | StoreReply::Parked(Err(error))
            | StoreReply::ParkedSettlement { result: Err(error), .. }
            | StoreReply::Maintenance(Err(error)) => return self.store_failed(error),
            StoreReply::Released => {}
        }
        Ok(())
    }

    /// Handles a store error. After an outage the state in memory may be outdated, so the relay starts again.
    pub(crate) fn store_failed(&mut self, error: StoreError) -> Result<(), RelayError> {
        if !error.is_retryable() {
            return Err(RelayError::Store(error));
        }
        add(&self.status.counters.database_outages, 1);
        let pause = self.store_calls.backoff.next(Jitter::NONE);
        warn!(
            relay = %self.config.name, error = &error as &dyn std::error::Error, ?pause,
            "database unreachable, unsettled messages will be read again"
        );
        self.status.set_database_up(false);
        self.discard_unsettled();
        self.store_calls.call = Some(self.release_after(pause));
        Ok(())
    }

    pub(crate) fn database_recovered(&mut self) {
        self.store_calls.backoff.reset();
        self.status.set_database_up(true);
    }

    /// Makes a call of the shutdown, within the grace period.
    pub(crate) async fn finish_store_call(&mut self, call: Option<Pending<StoreReply>>) {
        let Some(call) = call else { return };
        if let Ok(reply) = timeout(self.config.shutdown_grace, call).await
            && let Err(error) = self.apply_reply(reply)
        {
            warn!(relay = %self.config.name, error = &error as &dyn std::error::Error, "last settlement failed");
        }
    }
}
