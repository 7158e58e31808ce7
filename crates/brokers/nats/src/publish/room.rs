//! How much may be in flight on one connection.

use std::sync::{Mutex, PoisonError};

use tokio::sync::Semaphore;

use super::pace::{WINDOW_MIN, WINDOW_START};
use crate::classify::Error;

/// Room for messages in flight; how much there is follows the server's pace, because behind a slow one a full window would
/// wait past its deadline.
#[derive(Debug)]
pub(super) struct Room {
    free: Semaphore,
    max: usize,
    size: Mutex<Size>,
}

#[derive(Debug)]
struct Size {
    window: usize,
    /// The window was made smaller than what is in flight: so much must end before anything new may begin.
    debt: usize,
}

impl Room {
    pub(super) fn new(max: usize) -> Self {
        let window = max.min(WINDOW_START);
        Self { free: Semaphore::new(window), max, size: Mutex::new(Size { window, debt: 0 }) }
    }

    /// Waits for room for a message, or for a batch of so many; an error when the connection is lost.
    pub(super) async fn take(&self, messages: usize) -> Result<(), Error> {
        let weight = u32::try_from(self.weight(messages)).expect("the smallest window is small");
        let permit = self.free.acquire_many(weight).await.map_err(|_| Error::Disconnected)?;
        // It is given back when the message has its outcome.
        permit.forget();
        Ok(())
    }

    /// How much room a message or a batch takes. A batch is stored at once, however large it is: it must fit into the
    /// smallest window.
    pub(super) fn weight(&self, messages: usize) -> usize {
        messages.min(WINDOW_MIN).min(self.max)
    }

    /// Gives room back, except for what the window has shrunk by.
    pub(super) fn leave(&self, weight: usize) {
        self.leave_in(&mut self.lock(), weight);
    }

    /// So many may be in flight from now on, within the limits.
    pub(super) fn resize(&self, window: usize) {
        let window = window.clamp(WINDOW_MIN.min(self.max), self.max);
        let mut size = self.lock();
        if window >= size.window {
            let more = window - size.window;
            self.leave_in(&mut size, more);
        } else {
            let less = size.window - window;
            size.debt += less - self.free.forget_permits(less);
        }
        size.window = window;
    }

    /// The connection is lost: whoever waits for room waits in vain.
    pub(super) fn close(&self) {
        self.free.close();
    }

    fn leave_in(&self, size: &mut Size, weight: usize) {
        let paid = size.debt.min(weight);
        size.debt -= paid;
        self.free.add_permits(weight - paid);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Size> {
        // Nothing panics while it is held.
        self.size.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_window_that_shrinks_takes_nothing_new_until_enough_has_ended() {
        let room = Room::new(1_000);
        for _ in 0..1_000 {
            room.take(1).await.expect("room");
        }
        room.resize(300);
        room.leave(700);
        assert_eq!(room.free.available_permits(), 0);
        room.leave(300);
        assert_eq!(room.free.available_permits(), 300);
        room.resize(5_000);
        assert_eq!(room.free.available_permits(), 1_000, "never more than allowed");
    }

    #[tokio::test]
    async fn the_largest_batch_fits_into_the_smallest_window() {
        let room = Room::new(8_000);
        room.resize(1);
        room.take(1_000).await.expect("room");
        let small = Room::new(10);
        small.take(1_000).await.expect("room");
    }
}
