//! Maps the message ids of inboxes to the names of the history.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use relevo_core::MessageId;
use relevo_core::inbox::DedupId;

use crate::history::MessageName;
use crate::inbox::event::Case;

/// The names of all messages. A malformed message has a different id at each consumer.
#[derive(Debug, Default)]
pub struct MessageNames(Mutex<BTreeMap<(usize, MessageId), MessageName>>);

impl MessageNames {
    /// Records the id under which a consumer knows this message.
    pub fn insert(&self, consumer: usize, id: MessageId, name: MessageName) {
        self.0.lock().insert((consumer, id), name);
    }

    /// The case with this id. A message that was never published is named by its id.
    pub fn case(&self, consumer: usize, dedup_id: DedupId) -> Case {
        let known = self.0.lock().get(&(consumer, dedup_id.id)).cloned();
        let name = known.unwrap_or_else(|| MessageName { id: dedup_id.id, key: "unknown".into() });
        Case { consumer, replay: dedup_id.replay, name }
    }
}
