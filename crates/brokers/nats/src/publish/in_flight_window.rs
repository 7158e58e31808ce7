//! Limits the messages in flight on one connection.

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::pace::{WINDOW_MIN, WINDOW_START};
use crate::classify::Error;

/// The window for messages in flight. It follows the rate of the server: with a slow server, messages of a full window
/// would pass their deadline.
#[derive(Debug)]
pub(super) struct InFlightWindow {
    permits: Semaphore,
    max: usize,
    size: Mutex<WindowSize>,
}

#[derive(Debug)]
struct WindowSize {
    window: usize,
    /// The excess after the window shrank: this many must end before a new message may start.
    excess: usize,
}

impl InFlightWindow {
    pub(super) fn new(max: usize) -> Self {
        let window = max.min(WINDOW_START);
        Self { permits: Semaphore::new(window), max, size: Mutex::new(WindowSize { window, excess: 0 }) }
    }

    /// Waits for capacity for one message or a batch. Fails when the connection is lost.
    pub(super) async fn acquire(&self, messages: usize) -> Result<(), Error> {
        let weight = u32::try_from(self.weight(messages)).expect("the smallest window is small");
        let permit = self.permits.acquire_many(weight).await.map_err(|_| Error::Disconnected)?;
        // The capacity is released when the message has an outcome.
        permit.forget();
        Ok(())
    }

    /// The capacity that a message or a batch needs. The server stores a batch at once, so even a large one must fit
    /// into the smallest window.
    pub(super) fn weight(&self, messages: usize) -> usize {
        messages.min(WINDOW_MIN).min(self.max)
    }

    /// Releases capacity, except for the excess after the window shrank.
    pub(super) fn release(&self, weight: usize) {
        self.release_in(&mut self.size.lock(), weight);
    }

    /// Sets the window, within the limits.
    pub(super) fn resize(&self, window: usize) {
        let window = window.clamp(WINDOW_MIN.min(self.max), self.max);
        let mut size = self.size.lock();
        if window >= size.window {
            let more = window - size.window;
            self.release_in(&mut size, more);
        } else {
            let less = size.window - window;
            size.excess += less - self.permits.forget_permits(less);
        }
        size.window = window;
    }

    /// Fails all waiters: the connection is lost.
    pub(super) fn close(&self) {
        self.permits.close();
    }

    fn release_in(&self, size: &mut WindowSize, weight: usize) {
        let paid = size.excess.min(weight);
        size.excess -= paid;
        self.permits.add_permits(weight - paid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_shrinking_window_admits_nothing_until_enough_was_released() {
        let room = InFlightWindow::new(1_000);
        for _ in 0..1_000 {
            room.acquire(1).await.expect("room");
        }
        room.resize(300);
        room.release(700);
        assert_eq!(room.permits.available_permits(), 0);
        room.release(300);
        assert_eq!(room.permits.available_permits(), 300);
        room.resize(5_000);
        assert_eq!(room.permits.available_permits(), 1_000, "never more than allowed");
    }

    #[tokio::test]
    async fn the_largest_batch_fits_into_the_smallest_window() {
        let room = InFlightWindow::new(8_000);
        room.resize(1);
        room.acquire(1_000).await.expect("room");
        let small = InFlightWindow::new(10);
        small.acquire(1_000).await.expect("room");
    }
}
