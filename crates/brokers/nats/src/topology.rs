//! The configured topology: streams and consumer groups, as plain data.

use crate::group::Group;

mod compare;
mod stream;
mod validate;
mod words;

pub(crate) use compare::ATOMIC_FROM;
pub use stream::{Discard, Retention, Storage, Stream};
pub(crate) use words::words;

/// The configured topology.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// The streams, created first and in this order.
    pub streams: Vec<Stream>,
    /// The groups, each with its durable consumers.
    pub groups: Vec<Group>,
}
