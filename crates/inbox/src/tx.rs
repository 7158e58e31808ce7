//! The transaction handle of a handler, and its way back to the worker.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use parking_lot::Mutex;

/// The transaction in which a handler works. It dereferences to the transaction of the store.
///
/// It has no `commit`: the runtime commits after the handler returned successfully, and rolls back otherwise. Dropping it
/// returns the transaction to the runtime. A handler that keeps it, for example in a task, fails with class `commit`.
pub struct Tx<T> {
    /// `None` only while it is dropped.
    transaction: Option<T>,
    returned: Arc<Mutex<Option<T>>>,
}

impl<T> Tx<T> {
    /// Lends the transaction to a handler.
    pub(crate) fn lend(transaction: T) -> (Self, LentTransaction<T>) {
        let returned = Arc::new(Mutex::new(None));
        (Self { transaction: Some(transaction), returned: Arc::clone(&returned) }, LentTransaction(returned))
    }
}

/// Where a handler's transaction arrives when its [`Tx`] is dropped.
pub(crate) struct LentTransaction<T>(Arc<Mutex<Option<T>>>);

impl<T> LentTransaction<T> {
    /// The transaction, or `None` if the handler keeps it. The transaction is then rolled back when the handler drops
    /// it.
    pub(crate) fn take_back(self) -> Option<T> {
        self.0.lock().take()
    }
}

impl<T> Deref for Tx<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.transaction.as_ref().expect("it is taken out only by the drop")
    }
}

impl<T> DerefMut for Tx<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.transaction.as_mut().expect("it is taken out only by the drop")
    }
}

impl<T> Drop for Tx<T> {
    fn drop(&mut self) {
        *self.returned.lock() = self.transaction.take();
    }
}

impl<T> fmt::Debug for Tx<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tx")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_handle_returns_the_transaction() {
        let (mut tx, lent) = Tx::lend(vec![1]);
        tx.push(2);
        drop(tx);
        assert_eq!(lent.take_back(), Some(vec![1, 2]));
    }

    #[test]
    fn a_kept_handle_returns_nothing() {
        let (tx, lent) = Tx::lend(1);
        assert_eq!(lent.take_back(), None);
        drop(tx);
    }
}
