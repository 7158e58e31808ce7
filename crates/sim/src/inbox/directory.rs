//! Maps the message ids of inboxes to the names of the history.

use std::collections::BTreeMap;
use std::sync::Mutex;

use relevo_core::MessageId;
use relevo_core::inbox::Entry;

use crate::history::{Name, lock};
use crate::inbox::event::Case;

/// The names of all messages. A malformed message has a different id at each consumer.
#[derive(Debug, Default)]
pub struct Directory(Mutex<BTreeMap<(usize, MessageId), Name>>);

impl Directory {
    /// Records the id under which a consumer knows this message.
    pub fn enter(&self, consumer: usize, id: MessageId, name: Name) {
        lock(&self.0).insert((consumer, id), name);
    }

    /// The case with this id. A message that was never published is named by its id.
    pub fn case(&self, consumer: usize, entry: Entry) -> Case {
        let known = lock(&self.0).get(&(consumer, entry.id)).cloned();
        let name = known.unwrap_or_else(|| Name { id: entry.id, key: "unknown".into() });
        Case { consumer, replay: entry.replay, name }
    }
}
