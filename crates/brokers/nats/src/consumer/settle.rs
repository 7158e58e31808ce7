//! Answers.

use std::collections::{BTreeMap, HashSet};

use futures_util::future::join_all;
use relevo_core::{Answer, Tag};

use super::lane::{Cell, Letters};
use super::window::Window;
use super::{Shared, now_ms};
use crate::classify::Error;

/// Longer reasons are cut: they stand in the lane's record.
pub(super) const REASON_BYTES_MAX: usize = 1_024;

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
        let rejects = !plan.dead.is_empty();
        let mut is_burying = false;
        if let Some(held) = slot.as_mut() {
            let words = held.window.carry_out(plan);
            if held.leaving && held.window.out() == 0 {
                self.attend_now.notify_one();
            }
            // Where letters cannot be written, each call would try all of them again: the next beat does.
            is_burying = rejects && held.letters == Letters::Flow;
            self.say(cell, words).await;
        }
        drop(slot);
        self.changed.notify_waiters();
        if is_burying {
            self.bury(cell).await;
        }
        Ok(lost)
    }
}

/// As much of a reason as takes so many bytes in the record, and how many it takes.
pub(super) fn cut(reason: &str, bytes_max: usize) -> (String, usize) {
    let mut bytes = 0;
    let mut end = 0;
    for (at, one) in reason.char_indices() {
        // As JSON writes it.
        let more = match one {
            '"' | '\\' | '\u{8}' | '\u{c}' | '\n' | '\r' | '\t' => 2,
            '\0'..='\u{1f}' => 6,
            _ => one.len_utf8(),
        };
        if bytes + more > bytes_max {
            break;
        }
        bytes += more;
        end = at + one.len_utf8();
    }
    (reason[..end].to_owned(), bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_cut_reason_takes_as_many_bytes_as_said(reason in any::<String>(), bytes_max in 0..64_usize) {
            let (cut, bytes) = cut(&reason, bytes_max);
            prop_assert!(reason.starts_with(&cut) && bytes <= bytes_max);
            prop_assert_eq!(serde_json::to_string(&cut).expect("text").len(), bytes + 2);
        }
    }
}
