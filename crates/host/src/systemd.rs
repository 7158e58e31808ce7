//! Notifications to the service manager. Without one they do nothing.

use std::time::Duration;

use sd_notify::NotifyState;
use tracing::warn;

/// The service runs, or waits for its servers.
pub(crate) fn ready(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The configuration is being reloaded. [`ready`] ends it.
pub(crate) fn reloading() {
    // Without the time a newer systemd cannot distinguish this from an older message, and fails the reload.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => warn!(%error, "the monotonic clock cannot be read"),
    }
}

/// The service is stopping.
pub(crate) fn stopping(status: &str) {
    notify(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

/// One line for `systemctl status`.
pub(crate) fn status(status: &str) {
    notify(&[NotifyState::Status(status)]);
}

/// All relays make progress.
pub(crate) fn alive() {
    notify(&[NotifyState::Watchdog]);
}

/// How often to call [`alive`]: half of what the service manager allows.
pub(crate) fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|limit| (limit / 2).max(Duration::from_millis(1)))
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        warn!(%error, "cannot notify the service manager");
    }
}
