//! The server's count of what it delivers, by which a loss on the way is noticed.

/// The number of the last delivery, if everything that was delivered for the first time up to it was seen.
#[derive(Debug, Default)]
pub(super) struct Count(Option<u64>);

/// What must be read from the stream before a delivery may be taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Gap {
    /// Nothing.
    None,
    /// Whatever is before it: the server delivers for the first time in the order of the stream.
    Before,
    /// Whatever the server has ever delivered: a message that comes again says nothing of what went before it.
    Delivered,
}

impl Count {
    /// A delivery came. If there is a gap it must be closed now, or this count be thrown away.
    pub(super) fn arrived(&mut self, number: u64, is_first: bool) -> Gap {
        match self.0.replace(number) {
            Some(last) if last + 1 == number => Gap::None,
            _ if is_first => Gap::Before,
            _ => Gap::Delivered,
        }
    }
}

#[cfg(test)]
mod tests;
