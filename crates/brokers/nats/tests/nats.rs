//! Everything that needs a server, in one program: it links once, and what tests share stands once.

#[path = "nats/conformance.rs"]
mod conformance;
#[path = "nats/consumer_harness.rs"]
mod consumer_harness;
#[path = "nats/consuming.rs"]
mod consuming;
#[path = "nats/harness.rs"]
mod harness;
