//! Answers.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use async_nats::header::NATS_MESSAGE_ID;
use futures_util::future::join_all;
use relevo_core::{Answer, Tag};

use super::lane::{Cell, Held};
use super::window::{Content, Plan, Window};
use super::{Shared, now_ms};
use crate::classify::Error;
use crate::headers::Outgoing;

/// The header of a dead letter that says why.
const REASON: &str = "relevo-reason";
/// The header of a dead letter that says where it was published to.
const SUBJECT: &str = "relevo-subject";
/// The header of a dead letter that says how often it was handed out.
const COUNT: &str = "relevo-count";
/// Longer reasons are cut: they stand in the lane's record.
const REASON_BYTES_MAX: usize = 1_024;

impl Shared {
    pub(super) async fn settle(&self, answers: &[(Tag, Answer)]) -> Result<Vec<Tag>, Error> {
        let mut by_lane: BTreeMap<u64, Vec<(Tag, &Answer)>> = BTreeMap::new();
        for (tag, answer) in answers {
            by_lane.entry(tag.number() & 0xffff).or_default().push((*tag, answer));
        }
        let settled = by_lane.iter().map(|(lane, answers)| async move {
            match usize::try_from(*lane).ok().and_then(|lane| self.cells.get(lane)) {
                Some(cell) => self.settle_lane(cell, answers).await,
                None => Ok(answers.iter().map(|(tag, _)| *tag).collect()),
            }
        });
        let mut lost: HashSet<Tag> = HashSet::new();
        for settled in join_all(settled).await {
            lost.extend(settled?);
        }
        // Of an answer that is given twice in one call the second is lost; both have the same tag.
        let mut seen = HashSet::new();
        let is_lost = |tag: &Tag| lost.contains(tag) && seen.insert(*tag);
        Ok(answers.iter().map(|(tag, _)| *tag).filter(is_lost).collect())
    }

    /// All answers of a lane with one write.
    async fn settle_lane(&self, cell: &Cell, answers: &[(Tag, &Answer)]) -> Result<Vec<Tag>, Error> {
        let mut slot = cell.held.lock().await;
        let now = now_ms();
        let plan = |window: &Window| window.plan(answers.iter().copied(), now);
        let Some(plan) = self.change(cell, &mut slot, plan).await? else {
            return Ok(answers.iter().map(|(tag, _)| *tag).collect());
        };
        let lost = plan.lost.clone();
        if let Some(held) = slot.as_mut() {
            let words = held.window.carry_out(plan);
            if held.leaving && held.window.out() == 0 {
                self.attend_now.notify_one();
            }
            self.say(cell, words).await;
        }
        self.bury(cell, &mut slot).await?;
        drop(slot);
        self.changed.notify_waiters();
        Ok(lost)
    }

    /// Writes the dead letters of what was rejected; only then it is done. The rejection itself is in the record, so that
    /// whoever has the lane finishes it.
    pub(super) async fn bury(&self, cell: &Cell, slot: &mut Option<Held>) -> Result<(), Error> {
        let Some(held) = slot.as_ref() else { return Ok(()) };
        let dead = held.window.dead();
        if dead.is_empty() {
            return Ok(());
        }
        let made = held.durable_ns;
        let written = dead.iter().map(|(seq, reason, count, content)| async move {
            self.write_dead_letter(made, *seq, reason, *count, content).await.map(|()| *seq)
        });
        let buried: Vec<u64> = join_all(written).await.into_iter().collect::<Result<_, _>>()?;
        if let Some(plan) = self.change(cell, slot, |_| Plan::done(&buried)).await?
            && let Some(held) = slot.as_mut()
        {
            let words = held.window.carry_out(plan);
            self.say(cell, words).await;
        }
        Ok(())
    }

    async fn write_dead_letter(
        &self,
        made: i64,
        seq: u64,
        reason: &str,
        count: u32,
        content: &Arc<Content>,
    ) -> Result<(), Error> {
        let mut headers = Outgoing::default();
        for (name, value) in &content.raw.headers {
            if ![REASON, SUBJECT, COUNT].contains(&name.as_str()) {
                headers.put(name, &String::from_utf8_lossy(value));
            }
        }
        headers.put(REASON, reason);
        headers.put(SUBJECT, &content.subject);
        headers.put(COUNT, &count.to_string());
        // Whoever writes it again, after a crash or an answer that got lost, writes the same one.
        headers.control(NATS_MESSAGE_ID, format!("{}.{made}.{seq}", self.group.stream).into());
        let (headers, _) = headers.finish()?;
        let payload = content.raw.payload.clone();
        let sent = self.context.publish_with_headers(self.group.dead_subject(), headers, payload);
        let failed = |error| Error::Api { what: "writing a dead letter", source: error };
        let Ok(sent) = tokio::time::timeout(self.deadline, sent).await else {
            return Err(Error::Unconfirmed(self.deadline));
        };
        sent.map_err(|error| failed(error.into()))?.await.map_err(|error| failed(error.into()))?;
        Ok(())
    }
}

/// A reason as the record takes it.
pub(super) fn short(reason: &str) -> String {
    let mut end = reason.len().min(REASON_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason[..end].to_owned()
}
