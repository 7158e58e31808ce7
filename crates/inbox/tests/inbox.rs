//! Tests of the consumer runtime on the memory store in virtual time, and once on the embedded broker.

#[path = "inbox/acknowledgements.rs"]
mod acknowledgements;
#[path = "inbox/batches.rs"]
mod batches;
#[path = "inbox/breakers.rs"]
mod breakers;
#[path = "inbox/controls.rs"]
mod controls;
#[path = "inbox/crashes.rs"]
mod crashes;
#[path = "inbox/dead_letters.rs"]
mod dead_letters;
#[path = "inbox/deduplication.rs"]
mod deduplication;
#[path = "inbox/embedded.rs"]
mod embedded;
#[path = "inbox/expiry.rs"]
mod expiry;
#[path = "inbox/external_calls.rs"]
mod external_calls;
#[path = "inbox/fake_broker.rs"]
mod fake_broker;
#[path = "inbox/faulty_inbox.rs"]
mod faulty_inbox;
#[path = "inbox/functions.rs"]
mod functions;
#[path = "inbox/harness.rs"]
mod harness;
#[path = "inbox/lanes.rs"]
mod lanes;
#[path = "inbox/outages.rs"]
mod outages;
#[path = "inbox/replay.rs"]
mod replay;
#[path = "inbox/retries.rs"]
mod retries;
#[path = "inbox/shutdown.rs"]
mod shutdown;
#[path = "inbox/status.rs"]
mod status;
