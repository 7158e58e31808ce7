//! Log lines about the store's maintenance.

use std::collections::BTreeMap;
use std::time::Duration;

use relevo_core::store::StoreError;
use tokio::time::Instant;
use tracing::warn;

use crate::config::Config;
use crate::log_throttle::LogThrottle;

/// The time for one call. If more can be deleted, it is followed by a pause of the same length.
pub(crate) const MAINTENANCE_BUDGET: Duration = Duration::from_secs(1);
/// Kinds of maintenance warnings that are throttled separately. A destination has a few.
const WARNING_KINDS_MAX: usize = 256;

/// Limits the log lines about maintenance, which runs every few seconds.
#[derive(Debug, Default)]
pub(crate) struct MaintenanceLog {
    /// By the text without numbers.
    warnings: BTreeMap<String, LogThrottle>,
    failures: LogThrottle,
}

impl MaintenanceLog {
    /// Logs warnings. A warning usually repeats over many runs, with other numbers. Only repeats of the same kind are
    /// throttled.
    pub(crate) fn report(&mut self, config: &Config, warnings: &[String]) {
        for warning in warnings {
            let is_number = |word: &&str| word.trim_matches(|c: char| !c.is_alphanumeric()).parse::<u64>().is_ok();
            let kind = warning.split_whitespace().filter(|word| !is_number(word)).collect();
            if self.warnings.len() >= WARNING_KINDS_MAX {
                self.warnings.clear();
            }
            let throttle = self.warnings.entry(kind).or_default();
            if let Some(times) = throttle.occurred(Instant::now(), config.advanced.maintenance_interval) {
                warn!(relay = %config.name, warning, times, "maintenance warning");
            }
        }
    }

    /// Logs a failure that the next run may not have.
    pub(crate) fn failed(&mut self, config: &Config, error: &StoreError) {
        if let Some(times) = self.failures.occurred(Instant::now(), config.advanced.maintenance_interval) {
            warn!(relay = %config.name, error = error as &dyn std::error::Error, times, "maintenance failed, will retry");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    /// Counts log lines.
    struct LineCounter(Arc<AtomicUsize>);

    impl Subscriber for LineCounter {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_repeated_maintenance_warning_is_logged_at_growing_intervals() {
        let (config, mut log) = (Config::default(), MaintenanceLog::default());
        let lines = Arc::new(AtomicUsize::new(0));
        let _subscriber = tracing::subscriber::set_default(LineCounter(Arc::clone(&lines)));
        for rows in 0..120 {
            log.report(&config, &[format!("destination \"main\" has {rows} undelivered rows")]);
            tokio::time::advance(config.advanced.maintenance_interval).await;
        }
        let logged = lines.load(Ordering::Relaxed);
        assert!((2..20).contains(&logged), "{logged} lines in ten minutes");
        log.report(&config, &["dropped 30 rows".to_owned()]);
        assert_eq!(lines.load(Ordering::Relaxed), logged + 1, "another warning is logged at once");
    }
}
