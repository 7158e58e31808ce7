//! Transactions of applications. Emitted messages enter the log at once and become visible on commit.

use std::any::Any;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use relevo_core::inbox::{DedupId, InboxState as Known};
use relevo_core::store::StoreError;
use relevo_core::{Draft, EmitError, Message, MessageId, OnDuplicate, StoreTransaction};

use crate::inbox::pending_writes::PendingWrites;
use crate::state::{Micros, Tables, micros_since, timestamp};

/// A point in a transaction to roll back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Savepoint(usize);

/// An open transaction. Dropping it rolls it back.
#[derive(Debug)]
pub struct Transaction {
    tables: Arc<Mutex<Tables>>,
    token: u64,
}

/// The state of an open transaction.
#[derive(Debug, Default)]
pub(crate) struct OpenTransaction {
    /// Assigned by the first write, before any sequence number is assigned.
    xid: Option<i64>,
    undo_steps: Vec<UndoStep>,
    /// Lines for the ledger.
    effects: Vec<String>,
    /// Its inbox changes, if it belongs to a handler.
    pub(crate) inbox: Option<PendingWrites>,
}

/// A change that can be undone.
#[derive(Clone, Copy, Debug)]
enum UndoStep {
    Inserted(i64),
    Scheduled((Micros, u64)),
    IdReserved(MessageId),
    Cancelled((Micros, u64)),
    EffectRecorded,
    /// The previous state of an inbox message.
    InboxStateChanged(DedupId, Known),
}

/// A scheduled message.
#[derive(Clone, Debug)]
pub(crate) struct Scheduled {
    pub(crate) message: Arc<Message>,
    /// The open transaction that emitted or cancelled it. No other transaction changes the message before that one
    /// ends.
    pub(crate) locked: Option<u64>,
    cancelled: bool,
}

impl Transaction {
    pub(crate) fn begin(state: &Arc<Mutex<Tables>>) -> Self {
        let token = state.lock().open(None);
        Self::with_token(state, token)
    }

    /// The handle of the open transaction with this token.
    pub(crate) fn with_token(state: &Arc<Mutex<Tables>>, token: u64) -> Self {
        Self { tables: Arc::clone(state), token }
    }

    /// Emits a message. Its sequence number is assigned now, and it becomes visible on commit.
    pub fn emit(&mut self, draft: Draft) -> Result<MessageId, EmitError> {
        self.tables.lock().emit(self.token, draft)
    }

    /// Cancels a scheduled message on commit. Returns whether it was still waiting.
    pub fn cancel(&mut self, id: MessageId) -> Result<bool, EmitError> {
        self.tables.lock().cancel(self.token, id)
    }

    /// Writes a line into the ledger, which is the only application table here. It stands for a handler's effect.
    pub fn record_effect(&mut self, line: impl Into<String>) -> Result<(), StoreError> {
        self.tables.lock().record_effect(self.token, line.into())
    }

    /// Changes the state that an inbox message gets on commit.
    pub(crate) fn set_inbox_state(&mut self, dedup_id: DedupId, state: Known) -> Result<(), StoreError> {
        self.tables.lock().set_inbox_state(self.token, dedup_id, state)
    }

    /// Creates a savepoint.
    pub fn savepoint(&mut self) -> Savepoint {
        Savepoint(self.tables.lock().open_transactions.get(&self.token).map_or(0, |open| open.undo_steps.len()))
    }

    /// Undoes everything after the savepoint. The savepoint stays valid.
    pub fn rollback_to(&mut self, savepoint: Savepoint) {
        self.tables.lock().undo(self.token, savepoint.0);
    }

    /// Commits. Everything becomes visible, or nothing if the outbox was restarted.
    pub fn commit(self) -> Result<(), StoreError> {
        self.tables.lock().commit(self.token)
    }

    /// Rolls back, like dropping the transaction.
    pub fn rollback(self) {}
}

#[async_trait]
impl StoreTransaction for Transaction {
    async fn emit(&mut self, draft: Draft) -> Result<MessageId, EmitError> {
        Self::emit(self, draft)
    }

    async fn cancel(&mut self, id: MessageId) -> Result<bool, EmitError> {
        Self::cancel(self, id)
    }

    /// The [`Transaction`] itself.
    fn native(&mut self) -> &mut dyn Any {
        self
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        self.tables.lock().rollback(self.token);
    }
}

impl Tables {
    /// Opens a transaction and returns its token.
    pub(crate) fn open(&mut self, inbox: Option<PendingWrites>) -> u64 {
        let token = self.next_token;
        self.next_token += 1;
        self.open_transactions.insert(token, OpenTransaction { inbox, ..OpenTransaction::default() });
        token
    }

    fn record_effect(&mut self, token: u64, line: String) -> Result<(), StoreError> {
        let open = self.open_transactions.get_mut(&token).ok_or_else(lost)?;
        open.effects.push(line);
        open.undo_steps.push(UndoStep::EffectRecorded);
        Ok(())
    }

    fn set_inbox_state(&mut self, token: u64, dedup_id: DedupId, state: Known) -> Result<(), StoreError> {
        let open = self.open_transactions.get_mut(&token).ok_or_else(lost)?;
        if let Some(previous) = open.inbox.as_mut().and_then(|pending| pending.set_state(dedup_id, state)) {
            open.undo_steps.push(UndoStep::InboxStateChanged(dedup_id, previous));
        }
        Ok(())
    }

    fn emit(&mut self, token: u64, draft: Draft) -> Result<MessageId, EmitError> {
        if !self.open_transactions.contains_key(&token) {
            return Err(emit_error(lost()));
        }
        draft.check()?;
        let now = self.now();
        let created_at = timestamp(self.config.started_at, now);
        let (chosen, on_duplicate, deliver_at) = (draft.id, draft.on_duplicate, draft.deliver_at);
        let id = chosen.unwrap_or_else(|| {
            MessageId::v7(u64::try_from(created_at.as_millisecond()).unwrap_or_default(), self.random.uuid_v7_bytes())
        });
        if chosen.is_some() && !self.ids.insert(id) {
            return match on_duplicate {
                OnDuplicate::Error => Err(EmitError::DuplicateId(id)),
                OnDuplicate::Ignore => Ok(id),
            };
        }
        let message = Arc::new(draft.into_message(id, created_at));
        let open = self.open_transactions.get_mut(&token).ok_or_else(|| emit_error(lost()))?;
        if chosen.is_some() {
            open.undo_steps.push(UndoStep::IdReserved(id));
        }
        let xid = *open.xid.get_or_insert_with(|| self.log.assign_xid());
        if let Some(at) = deliver_at.filter(|at| *at > created_at) {
            let due_at = micros_since(self.config.started_at, at);
            let schedule_key = (due_at, self.next_scheduled);
            self.next_scheduled += 1;
            let scheduled = Scheduled { message, locked: Some(token), cancelled: false };
            self.scheduled.insert(schedule_key, scheduled);
            open.undo_steps.push(UndoStep::Scheduled(schedule_key));
        } else {
            open.undo_steps.push(UndoStep::Inserted(self.log.insert(xid, message, now)));
        }
        Ok(id)
    }

    fn cancel(&mut self, token: u64, id: MessageId) -> Result<bool, EmitError> {
        let open = self.open_transactions.get_mut(&token).ok_or_else(|| emit_error(lost()))?;
        let waiting = self.scheduled.iter_mut().find(|(_, scheduled)| {
            scheduled.message.id == id && !scheduled.cancelled && scheduled.locked.is_none_or(|by| by == token)
        });
        let Some((schedule_key, scheduled)) = waiting else { return Ok(false) };
        scheduled.locked = Some(token);
        scheduled.cancelled = true;
        open.undo_steps.push(UndoStep::Cancelled(*schedule_key));
        Ok(true)
    }

    /// Undoes all changes of a transaction except its first `keep` ones.
    fn undo(&mut self, token: u64, keep: usize) {
        let Some(open) = self.open_transactions.get_mut(&token) else { return };
        for step in open.undo_steps.drain(keep.min(open.undo_steps.len())..).rev() {
            match step {
                UndoStep::Inserted(seq) => {
                    self.log.remove(seq);
                }
                UndoStep::Scheduled(schedule_key) => {
                    self.scheduled.remove(&schedule_key);
                }
                UndoStep::IdReserved(id) => {
                    self.ids.remove(&id);
                }
                UndoStep::Cancelled(schedule_key) => {
                    if let Some(scheduled) = self.scheduled.get_mut(&schedule_key) {
                        scheduled.cancelled = false;
                        // A message that this transaction emitted itself stays locked until the transaction ends.
                    }
                }
                UndoStep::EffectRecorded => {
                    open.effects.pop();
                }
                UndoStep::InboxStateChanged(dedup_id, previous) => {
                    open.inbox.as_mut().and_then(|pending| pending.set_state(dedup_id, previous));
                }
            }
        }
    }

    fn commit(&mut self, token: u64) -> Result<(), StoreError> {
        let mut open = self.open_transactions.remove(&token).ok_or_else(lost)?;
        if let Some(xid) = open.xid {
            self.log.end(xid);
        }
        self.effects.append(&mut open.effects);
        if let Some(pending) = open.inbox {
            let now = self.now();
            let tables = self.consumers.entry(pending.consumer.to_string()).or_default();
            pending.apply(tables, now);
        }
        self.scheduled.retain(|_, scheduled| scheduled.locked != Some(token) || !scheduled.cancelled);
        self.unlock(token);
        Ok(())
    }

    pub(crate) fn rollback(&mut self, token: u64) {
        self.undo(token, 0);
        if let Some(xid) = self.open_transactions.remove(&token).and_then(|open| open.xid) {
            self.log.end(xid);
        }
        self.unlock(token);
    }

    fn unlock(&mut self, token: u64) {
        for scheduled in self.scheduled.values_mut().filter(|scheduled| scheduled.locked == Some(token)) {
            scheduled.locked = None;
        }
        self.transaction_ended.notify_waiters();
    }

    /// Moves due scheduled messages into the log, in the order of their due times. This is a separate transaction: one
    /// that created a tick and also wrote messages would see its own, but not all that committed before.
    pub(crate) fn insert_due_messages(&mut self) {
        let now = self.now();
        let due = self.scheduled.range(..=(now, u64::MAX)).filter(|(_, scheduled)| scheduled.locked.is_none());
        let due: Vec<_> = due.map(|(schedule_key, _)| *schedule_key).collect();
        if due.is_empty() {
            return;
        }
        let (xid, created_at) = (self.log.assign_xid(), timestamp(self.config.started_at, now));
        for schedule_key in due {
            if let Some(scheduled) = self.scheduled.remove(&schedule_key) {
                // Its age counts from here.
                let message = Message { created_at, ..(*scheduled.message).clone() };
                self.log.insert(xid, Arc::new(message), now);
            }
        }
        self.log.end(xid);
    }
}

fn lost() -> StoreError {
    StoreError::Unavailable("the transaction was lost in a restart".into())
}

fn emit_error(error: StoreError) -> EmitError {
    EmitError::Store(Box::new(error))
}
