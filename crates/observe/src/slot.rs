//! Where a sample lies until the next one.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What was last sampled of something.
#[derive(Debug)]
pub struct Slot<T>(Mutex<Option<T>>);

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T: Clone> Slot<T> {
    /// `None` when it could not be sampled: no number is better than an old one.
    pub fn put(&self, sampled: Option<T>) {
        *self.lock() = sampled;
    }

    /// What was last put there.
    pub fn get(&self) -> Option<T> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<T>> {
        // Nothing panics while it is held, and the value is whole after each change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
