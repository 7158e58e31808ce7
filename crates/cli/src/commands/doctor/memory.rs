//! How long inboxes remember, against how long outboxes and brokers can send a message again.

use std::time::Duration;

use anyhow::Result;
use relevo_core::RetryPolicy;
use relevo_core::finding::{Finding, Severity};
use relevo_core::inbox::retention_check::{self, RedeliveryWindow};
use relevo_core::store::StoreError;

use super::Examined;
use crate::config;
use crate::connect::OutboxLocation;

/// What one place adds to the comparison.
#[derive(Default)]
pub(super) struct Memory {
    /// From here messages can come again.
    pub(super) horizons: Vec<RedeliveryWindow>,
    /// Here inboxes may be.
    pub(super) place: Option<OutboxLocation>,
}

/// What an outbox keeps can be sent once more, by a destination that starts with the oldest, and then takes its retries.
pub(super) fn of_outbox(retention: Duration) -> RedeliveryWindow {
    let lasts = retention.saturating_add(RetryPolicy::default().total_delay_max());
    RedeliveryWindow { source: "this outbox".to_owned(), duration: Some(lasts) }
}

/// The same with the name and the retries that a configuration has for it.
pub(super) fn name(horizons: &mut [RedeliveryWindow], outbox: &config::Outbox) {
    let routes = outbox.destinations.iter().flat_map(|destination| destination.relay.routes.iter());
    let longest = routes.map(|route| route.policy.total_delay_max()).max().unwrap_or_default();
    for horizon in horizons {
        horizon.source = format!("outbox `{}`", outbox.name);
        let retention = horizon.duration.map(|lasts| lasts.saturating_sub(RetryPolicy::default().total_delay_max()));
        horizon.duration = retention.map(|retention| retention.saturating_add(longest));
    }
}

/// Compares every inbox with everything that can send to it.
pub(crate) async fn compare(all: &mut [Examined]) -> Result<()> {
    let horizons: Vec<RedeliveryWindow> = all.iter().flat_map(|it| it.memory.horizons.iter().cloned()).collect();
    for examined in all {
        if let Some(place) = &examined.memory.place {
            examined.findings.extend(inboxes(place, &horizons).await?);
        }
    }
    Ok(())
}

async fn inboxes(place: &OutboxLocation, horizons: &[RedeliveryWindow]) -> Result<Vec<Finding>> {
    match place.consumers().await?.list_consumers().await {
        Ok(consumers) => {
            Ok(consumers.iter().map(|consumer| retention_check::check_retention(consumer, horizons)).collect())
        }
        // The finding about the schema reports an old one. A missing right is reported here.
        Err(StoreError::SchemaMismatch { .. }) => Ok(Vec::new()),
        Err(StoreError::Refused { reason }) => {
            let (subject, detail) = ("inbox retention".to_owned(), format!("not checked: {reason}"));
            Ok(vec![Finding { severity: Severity::Note, subject, detail, fix: None }])
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outbox_can_send_what_it_keeps_and_then_retry() {
        let day = Duration::from_hours(24);
        let horizon = of_outbox(day);
        assert!(horizon.duration.is_some_and(|lasts| lasts > day), "{horizon:?}");
    }
}
