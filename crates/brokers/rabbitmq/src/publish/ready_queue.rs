//! Tracks which futures of one task must be polled, in the order of their wake-ups.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

/// The queue of woken numbers.
#[derive(Debug, Default)]
pub(crate) struct ReadyQueue {
    inner: Mutex<ReadyState>,
}

#[derive(Debug, Default)]
struct ReadyState {
    woken: Vec<usize>,
    task: Option<Waker>,
}

struct SlotWaker {
    slot: usize,
    queue: Arc<ReadyQueue>,
}

impl ReadyQueue {
    /// A waker that adds this number to the queue.
    pub(crate) fn waker(self: &Arc<Self>, number: usize) -> Waker {
        Arc::new(SlotWaker { slot: number, queue: Arc::clone(self) }).into()
    }

    /// Takes all numbers woken since the last call, in order. `empty` is a list to use again.
    pub(crate) fn take_ready(&self, empty: Vec<usize>) -> Vec<usize> {
        std::mem::replace(&mut self.inner.lock().woken, empty)
    }

    /// Returns when a number can be taken.
    pub(crate) async fn wait_ready(&self) {
        std::future::poll_fn(|context| self.poll_ready(context)).await;
    }

    fn poll_ready(&self, context: &Context<'_>) -> Poll<()> {
        let mut inner = self.inner.lock();
        if !inner.woken.is_empty() {
            return Poll::Ready(());
        }
        if !inner.task.as_ref().is_some_and(|task| task.will_wake(context.waker())) {
            inner.task = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut inner = self.queue.inner.lock();
        inner.woken.push(self.slot);
        // The first one wakes the task, which then takes all the others.
        let task = if inner.woken.len() == 1 { inner.task.take() } else { None };
        drop(inner);
        if let Some(task) = task {
            task.wake();
        }
    }
}
