//! Dead letters.

use std::sync::Arc;

use async_nats::RequestErrorKind;
use async_nats::client::RequestError;
use async_nats::header::NATS_MESSAGE_ID;
use futures_util::future::join_all;
use relevo_core::Class;

use super::lane::{Cell, Held, Letters};
use super::window::{Content, Plan};
use super::{Shared, lock};
use crate::classify::Error;
use crate::headers::Outgoing;
use crate::publish::answer;

/// The header of a dead letter that says why.
const REASON: &str = "relevo-reason";
/// The header of a dead letter that says where it was published to.
const SUBJECT: &str = "relevo-subject";
/// The header of a dead letter that says how often it was handed out.
const COUNT: &str = "relevo-count";

/// A message that was rejected.
struct Dead {
    seq: u64,
    /// When the durable consumer was made.
    made_ns: i64,
    reason: String,
    count: u32,
    content: Arc<Content>,
}

impl Shared {
    /// Writes the dead letters of what was rejected; only then it is done. The rejection itself is in the record, so that
    /// whoever has the lane finishes it: a letter that cannot be written is tried again with the next beat, and troubles
    /// nothing else.
    pub(super) async fn bury(&self, cell: &Cell) {
        let _one = cell.burying.lock().await;
        if let Some((epoch, dead)) = self.dead(cell, |_| true).await {
            self.bury_all(cell, epoch, dead).await;
        }
    }

    /// The same, for who has just rejected: where letters cannot be written, each call would try all of them again, so it
    /// is left to the next beat.
    pub(super) async fn bury_while_letters_flow(&self, cell: &Cell) {
        let _one = cell.burying.lock().await;
        if let Some((epoch, dead)) = self.dead(cell, |held| held.letters == Letters::Flow).await {
            self.bury_all(cell, epoch, dead).await;
        }
    }

    async fn bury_all(&self, cell: &Cell, epoch: u64, dead: Vec<Dead>) {
        let written = dead.iter().map(|dead| async { (dead.seq, self.write_dead_letter(dead).await) });
        let mut buried = Vec::new();
        let mut failed = None;
        // Without the lane: it goes on while the letters are on their way.
        for (seq, written) in join_all(written).await {
            match written {
                Ok(()) => buried.push(seq),
                Err(error) => failed = Some(error),
            }
        }
        let mut slot = cell.held.lock().await;
        let Some(held) = slot.as_mut().filter(|held| held.epoch == epoch) else { return };
        held.letters = if failed.is_some() { Letters::Stuck } else { Letters::Flow };
        let kept = self.change(cell, &mut slot, |_| Plan::done(&buried)).await;
        match (kept, slot.as_mut().filter(|held| held.epoch == epoch)) {
            (Ok(Some(plan)), Some(held)) => {
                let words = held.window.carry_out(plan);
                self.say(cell, words).await;
            }
            (Err(error), Some(held)) => {
                held.letters = Letters::Stuck;
                failed = failed.or(Some(error));
            }
            _ => {}
        }
        drop(slot);
        if let Some(error) = failed {
            self.tell_unburied(cell, error);
        }
    }

    async fn dead(&self, cell: &Cell, wanted: impl Fn(&Held) -> bool) -> Option<(u64, Vec<Dead>)> {
        let slot = cell.held.lock().await;
        let held = slot.as_ref().filter(|held| wanted(held))?;
        let made_ns = held.durable_ns;
        let dead = held.window.dead().into_iter();
        let dead = dead.map(|(seq, reason, count, content)| Dead { seq, made_ns, reason, count, content });
        let dead: Vec<Dead> = dead.collect();
        (!dead.is_empty()).then_some((held.epoch, dead))
    }

    /// A person is called only where waiting mends nothing.
    fn tell_unburied(&self, cell: &Cell, error: Error) {
        tracing::warn!(group = self.group.name, lane = %cell.lane, %error, "a dead letter cannot be written, will try again");
        if matches!(error.class(), Class::Blocked | Class::Poison) {
            *lock(&self.fault) = Some(Error::Unburied { group: self.group.name.clone(), source: Box::new(error) });
            self.changed.notify_waiters();
        }
    }

    async fn write_dead_letter(&self, dead: &Dead) -> Result<(), Error> {
        match self.send_dead_letter(dead, true).await {
            // What is said of it must not keep it from being kept.
            Err(Error::TooLarge { .. } | Error::TooLargeForStream(_) | Error::HeadersTooLarge(_)) => {
                self.send_dead_letter(dead, false).await
            }
            sent => sent,
        }
    }

    async fn send_dead_letter(&self, dead: &Dead, with_reason: bool) -> Result<(), Error> {
        let mut headers = Outgoing::default();
        for (name, value) in &dead.content.raw.headers {
            if ![REASON, SUBJECT, COUNT].contains(&name.as_str()) {
                headers.put(name, &String::from_utf8_lossy(value));
            }
        }
        if with_reason {
            headers.put(REASON, &dead.reason);
            headers.put(SUBJECT, &dead.content.subject);
            headers.put(COUNT, &dead.count.to_string());
        }
        // Whoever writes it again, after a crash or an answer that got lost, writes the same one.
        let id = format!("{}.{}.{}", self.group.stream, dead.made_ns, dead.seq);
        headers.control(NATS_MESSAGE_ID, id.into());
        let (headers, header_bytes) = headers.finish()?;
        let payload = dead.content.raw.payload.clone();
        let (bytes, max) = (header_bytes + payload.len(), self.client.max_payload());
        if bytes > max {
            return Err(Error::TooLarge { bytes, max });
        }
        let asked = self.client.request_with_headers(self.group.dead_subject(), headers, payload);
        let Ok(answered) = tokio::time::timeout(self.deadline, asked).await else {
            return Err(Error::Unconfirmed(self.deadline));
        };
        answer::read(&answered.map_err(|error| self.unanswered(error))?).map(drop)
    }

    fn unanswered(&self, error: RequestError) -> Error {
        match error.kind() {
            RequestErrorKind::NoResponders => Error::NoStream,
            RequestErrorKind::TimedOut => Error::Unconfirmed(self.deadline),
            RequestErrorKind::InvalidSubject | RequestErrorKind::MaxPayloadExceeded | RequestErrorKind::Other => {
                Error::Api { what: "writing a dead letter", source: error.into() }
            }
        }
    }
}
