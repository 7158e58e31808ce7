//! Tests of the consumer runtime on the memory store in virtual time, and once on the embedded broker.

#[path = "inbox/acknowledgements.rs"]
mod acknowledgements;
#[path = "inbox/age.rs"]
mod age;
#[path = "inbox/away.rs"]
mod away;
#[path = "inbox/batches.rs"]
mod batches;
#[path = "inbox/calls.rs"]
mod calls;
#[path = "inbox/crashes.rs"]
mod crashes;
#[path = "inbox/dead.rs"]
mod dead;
#[path = "inbox/embedded.rs"]
mod embedded;
#[path = "inbox/faulty.rs"]
mod faulty;
#[path = "inbox/lanes.rs"]
mod lanes;
#[path = "inbox/once.rs"]
mod once;
#[path = "inbox/orders.rs"]
mod orders;
#[path = "inbox/outages.rs"]
mod outages;
#[path = "inbox/replay.rs"]
mod replay;
#[path = "inbox/retries.rs"]
mod retries;
#[path = "inbox/stage.rs"]
mod stage;
#[path = "inbox/stopping.rs"]
mod stopping;
#[path = "inbox/watched.rs"]
mod watched;
#[path = "inbox/wire.rs"]
mod wire;
