//! Conformance suites: [`outbox`] and [`inbox`] for stores, [`broker`] for brokers, [`replay`] for logs that messages are
//! read from again.
//!
//! Each case is a function in this crate, named as a sentence. A suite's macro makes one test of each in the crate of
//! the store or broker.

pub mod broker;
mod dead_letters;
pub mod inbox;
pub mod outbox;
pub mod replay;
