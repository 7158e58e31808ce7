//! What the configuration wants to be at the server: streams and groups of consumers, as plain data.

use crate::group::Group;

mod check;
mod compare;
mod stream;
mod words;

pub(crate) use compare::ATOMIC_FROM;
pub use stream::{Discard, Retention, Storage, Stream};
pub(crate) use words::words;

/// What is to be at the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// The streams; made first, in this order.
    pub streams: Vec<Stream>,
    /// The groups, each with its durable consumers and its stream of dead letters.
    pub groups: Vec<Group>,
}
