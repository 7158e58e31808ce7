//! The relay's calls to the store: leases, settlements, parked keys and maintenance.
//!
//! Only one of the first three runs at a time. When a parked head is removed, each message that should wait behind it
//! must be either settled or in memory. Maintenance runs beside them, so that it delays no renewal and no settlement.

pub(crate) mod busy;
mod maintenance;

use std::sync::Arc;

use relevo_core::outbox::leases::{Lease, LeaseResponse};
use relevo_core::outbox::log::SettleResult;
use relevo_core::outbox::maintenance::MaintenanceReport;
use relevo_core::outbox::parked::{ParkedBatch, ParkedResult, ParkedSettlement};
use relevo_core::retry::{ExponentialBackoff, Jitter};
use relevo_core::store::StoreError;
use relevo_core::trace::ActiveSpan;
use tokio::time::{Instant, sleep_until, timeout_at};
use tracing::warn;

use crate::config::Config;
use crate::log_throttle::LogThrottle;
use crate::relay::{Pending, Relay, RelayError};
use crate::settle::PendingSettlement;
use crate::status::add;
use crate::store_calls::busy::{BusyCalls, CallKind};
use crate::store_calls::maintenance::{MAINTENANCE_BUDGET, MaintenanceLog};

/// The store call in progress, and when each kind of call is due.
pub(crate) struct StoreCalls {
    pub(crate) call: Option<Pending<StoreReply>>,
    pub(crate) maintenance: Option<Pending<Result<MaintenanceReport, StoreError>>>,
    pub(crate) schedule: Schedule,
    pub(crate) busy: BusyCalls,
    /// The pauses after failures of the database.
    backoff: ExponentialBackoff,
    busy_log: LogThrottle,
    maintenance_log: MaintenanceLog,
}

impl StoreCalls {
    pub(crate) fn new(config: &Config, now: Instant) -> Self {
        Self {
            call: None,
            maintenance: None,
            schedule: Schedule::new(now),
            busy: BusyCalls::new(config),
            backoff: ExponentialBackoff::new(config.advanced.outage_backoff_min, config.outage_backoff_max),
            busy_log: LogThrottle::default(),
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
        result: Result<LeaseResponse, StoreError>,
    },
    Settlement {
        pending: PendingSettlement,
        result: Result<SettleResult, StoreError>,
    },
    Parked(Result<Vec<ParkedBatch>, StoreError>),
    ParkedSettlement {
        settlements: Vec<ParkedSettlement>,
        spans: Vec<ActiveSpan>,
        result: Result<Vec<ParkedResult>, StoreError>,
    },
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
        let may = |calls: &StoreCalls, kind| !calls.busy.is_paused(kind, now);
        if (now >= self.store_calls.schedule.lease || self.can_release()) && may(&self.store_calls, CallKind::Lease) {
            return Some(self.lease_call(now));
        }
        if self.leases.shards.is_empty() {
            return None;
        }
        if may(&self.store_calls, CallKind::SettleParked)
            && let Some(call) = self.settle_parked_call()
        {
            return Some(call);
        }
        let has_room = 2 * self.pages.messages() < self.config.advanced.pages_max * self.config.advanced.page_messages;
        let schedule = &mut self.store_calls.schedule;
        if !self.store_calls.busy.is_paused(CallKind::Settle, now)
            && ((self.pages.is_front_complete() && (now >= schedule.settle_front || !has_room))
                || (now >= schedule.settle && self.pages.len() > 0))
        {
            schedule.settle = now + self.config.advanced.settle_interval_max;
            schedule.settle_front = now + self.config.advanced.settle_interval_min;
            if let Some(call) = self.settle_call() {
                return Some(call);
            }
        }
        if now >= self.store_calls.schedule.parked
            && may(&self.store_calls, CallKind::ReadParked)
            && self.can_read_parked(now)
        {
            self.store_calls.schedule.parked = now + self.config.advanced.parked_poll_interval;
            return Some(self.read_parked_call());
        }
        None
    }

    /// Starts maintenance if it is due, beside the other calls.
    pub(crate) fn start_maintenance(&mut self, now: Instant) {
        let calls = &mut self.store_calls;
        if calls.maintenance.is_none()
            && !self.stopping
            && !self.leases.shards.is_empty()
            && now >= calls.schedule.maintain
        {
            calls.schedule.maintain = now + self.config.advanced.maintenance_interval;
            let store = Arc::clone(&self.store);
            calls.maintenance = Some(Box::pin(async move { store.maintain(MAINTENANCE_BUDGET).await }));
        }
    }

    pub(crate) fn apply_maintenance(
        &mut self,
        result: Result<MaintenanceReport, StoreError>,
    ) -> Result<(), RelayError> {
        let log = &mut self.store_calls.maintenance_log;
        match result {
            Ok(report) => {
                if report.more {
                    let schedule = &mut self.store_calls.schedule;
                    schedule.maintain = schedule.maintain.min(Instant::now() + MAINTENANCE_BUDGET);
                }
                log.report(&self.config, &report.warnings);
            }
            Err(error) if error.is_retryable() => log.failed(&self.config, &error),
            Err(error) => return Err(RelayError::Store(error)),
        }
        Ok(())
    }

    pub(crate) fn apply_reply(&mut self, reply: StoreReply) -> Result<(), RelayError> {
        let (kind, result) = match reply {
            StoreReply::Leases { requested_at, released, result } => {
                (CallKind::Lease, result.map(|response| self.apply_leases(requested_at, &released, response)))
            }
            StoreReply::Settlement { pending, result } => {
                (CallKind::Settle, result.map(|result| self.apply_settlement(&pending, &result)))
            }
            StoreReply::Parked(result) => {
                (CallKind::ReadParked, result.map(|batches| self.take_parked_batches(batches)))
            }
            StoreReply::ParkedSettlement { settlements, spans, result } => {
                if let Err(StoreError::Busy { .. }) = &result {
                    self.parked.batches.restore(settlements, spans);
                    (CallKind::SettleParked, result.map(drop))
                } else {
                    (
                        CallKind::SettleParked,
                        result.map(|results| self.apply_parked_settlement(&settlements, spans, &results)),
                    )
                }
            }
            StoreReply::Released => return Ok(()),
        };
        self.end_call(kind, result)
    }

    /// Ends a call of this kind. If the store was busy, the call changed nothing: only this kind of call waits, and is
    /// made again.
    pub(crate) fn end_call(&mut self, kind: CallKind, result: Result<(), StoreError>) -> Result<(), RelayError> {
        match result {
            Ok(()) => self.store_calls.busy.succeeded(kind),
            Err(StoreError::Busy { retry_after, source }) => {
                let now = Instant::now();
                let pause = self.store_calls.busy.pause(kind, retry_after, now);
                // A store that stays busy for that long is an outage: an operator must be alerted.
                let is_outage = self.store_calls.busy.busy_for(kind, now) >= self.config.lease_duration;
                if is_outage {
                    add(&self.status.counters.database_outages, 1);
                }
                if is_outage || now >= self.leases.valid_until {
                    self.status.set_database_up(false);
                }
                if let Some(times) = self.store_calls.busy_log.occurred(now, self.config.outage_backoff_max) {
                    warn!(
                        relay = %self.config.name, error = &*source as &dyn std::error::Error, call = ?kind, ?pause, times,
                        "store is busy, will retry"
                    );
                }
            }
            Err(error) => return self.store_failed(error),
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

    /// Makes a call of the shutdown within the grace period, and repeats it while the store is busy.
    pub(crate) async fn finish_store_call(
        &mut self,
        kind: CallKind,
        make_call: impl Fn(&mut Self) -> Option<Pending<StoreReply>>,
    ) {
        let end = Instant::now() + self.config.shutdown_grace;
        while let Some(call) = make_call(self) {
            let Ok(reply) = timeout_at(end, call).await else { return };
            if let Err(error) = self.apply_reply(reply) {
                warn!(relay = %self.config.name, error = &error as &dyn std::error::Error, "last settlement failed");
                return;
            }
            match self.store_calls.busy.until(kind) {
                Some(until) if until < end => sleep_until(until).await,
                _ => return,
            }
        }
    }
}
