//! What is told of messages that are sampled.

use std::sync::Arc;

use relevo_core::store::Store;
use relevo_core::trace::Operation;
use relevo_core::{Broker, Message, Outcome};

use crate::keys::Item;
use crate::relay::Relay;

impl<S: Store + ?Sized + 'static, B: Broker + ?Sized + 'static> Relay<S, B> {
    /// These are about to be sent.
    pub(crate) fn begin_spans(&mut self, items: &[usize]) {
        let traces = &self.config.traces;
        if !traces.are_on() {
            return;
        }
        for &at in items {
            let item = &mut self.keys.items[at];
            item.span = traces.begin(Operation::Send, &item.entry.message, &item.address);
            if let Some(span) = &mut item.span {
                span.attempt(item.attempts + 1);
            }
        }
    }
}

impl Item {
    /// The message as it is sent.
    pub(crate) fn outgoing(&self) -> Arc<Message> {
        match &self.span {
            Some(span) => span.sent(&self.entry.message),
            None => Arc::clone(&self.entry.message),
        }
    }

    /// What became of it at the broker. What was confirmed is to be settled.
    pub(crate) fn tell(&mut self, outcome: &Outcome) {
        let Some(span) = self.span.take() else { return };
        match outcome {
            Ok(()) => {
                self.span = Some(span.next(Operation::Settle));
                span.end();
            }
            Err(failure) => span.fail(failure.class().word(), failure.describe()),
        }
    }
}
