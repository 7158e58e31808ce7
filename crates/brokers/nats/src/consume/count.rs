//! Checks the server's delivery numbers to detect lost deliveries.

/// The number of the last delivery, if every first delivery up to it was seen.
#[derive(Debug, Default)]
pub(super) struct DeliveryCounter(Option<u64>);

/// What must be read from the stream before a delivery is accepted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Gap {
    /// Nothing.
    None,
    /// All messages before it: the server makes first deliveries in stream order.
    Before,
    /// All messages that the server has ever delivered: a redelivery does not show which messages came before it.
    Delivered,
}

impl DeliveryCounter {
    /// Records a delivery. A reported gap must be closed now, or this counter discarded.
    pub(super) fn record(&mut self, number: u64, is_first: bool) -> Gap {
        match self.0.replace(number) {
            Some(last) if last + 1 == number => Gap::None,
            _ if is_first => Gap::Before,
            _ => Gap::Delivered,
        }
    }
}

#[cfg(test)]
mod tests;
