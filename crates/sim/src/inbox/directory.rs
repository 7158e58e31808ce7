//! Who is who: what inboxes know by id, the history knows by name.

use std::collections::BTreeMap;
use std::sync::Mutex;

use relevo_core::MessageId;
use relevo_core::inbox::Entry;

use crate::history::{Name, lock};
use crate::inbox::event::Case;

/// The names of all messages. One that cannot be read has another id at each consumer.
#[derive(Debug, Default)]
pub struct Directory(Mutex<BTreeMap<(usize, MessageId), Name>>);

impl Directory {
    /// A consumer knows this message by this id.
    pub fn enter(&self, consumer: usize, id: MessageId, name: Name) {
        lock(&self.0).insert((consumer, id), name);
    }

    /// What a consumer calls by this id. One that was never published is named after itself.
    pub fn case(&self, consumer: usize, entry: Entry) -> Case {
        let known = lock(&self.0).get(&(consumer, entry.id)).cloned();
        let name = known.unwrap_or_else(|| Name { id: entry.id, key: "unknown".into() });
        Case { consumer, replay: entry.replay, name }
    }
}
