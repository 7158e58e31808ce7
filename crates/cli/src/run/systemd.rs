//! What the service manager is told; nothing at all where there is none.

use std::time::Duration;

use sd_notify::NotifyState;
use tracing::warn;

/// The service works, or will as soon as what it waits for is there.
pub(crate) fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The configuration is being read anew; [`ready`] ends it.
pub(crate) fn reloading() {
    // Without the time a newer systemd cannot tell this from an older message, and fails the reload.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => warn!(%error, "the monotonic clock cannot be read"),
    }
}

/// The service is about to end.
pub(crate) fn stopping(status: &str) {
    tell(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

/// One line for `systemctl status`.
pub(crate) fn status(status: &str) {
    tell(&[NotifyState::Status(status)]);
}

/// Everything that must turn turns.
pub(crate) fn alive() {
    tell(&[NotifyState::Watchdog]);
}

/// How often [`alive`] is to be told: half of what the service manager allows.
pub(crate) fn watchdog_every() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|limit| (limit / 2).max(Duration::from_millis(1)))
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        warn!(%error, "the service manager cannot be told");
    }
}
