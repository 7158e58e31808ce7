//! Answers. Those to a lane that is being written wait, and the next write takes all of them along.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use futures_util::future::join_all;
use relevo_core::{Answer, Tag};
use tokio::sync::oneshot;

use super::lane::{Cell, Held};
use super::window::Window;
use super::{Shared, lock, now_ms};
use crate::classify::Error;

/// Longer reasons are cut: they stand in the lane's record.
pub(super) const REASON_BYTES_MAX: usize = 1_024;

/// Those that were lost, or why nothing is known.
type Told = Result<Vec<Tag>, Arc<Error>>;

/// A call of `settle`, as far as it is about one lane.
pub(super) struct Call {
    answers: Vec<(Tag, Answer)>,
    told: oneshot::Sender<Told>,
}

impl Call {
    fn rejects(&self) -> bool {
        self.answers.iter().any(|(_, answer)| matches!(answer, Answer::Reject { .. }))
    }

    fn tell(self, told: Told) {
        // Whoever does not listen any more gave the call up.
        self.told.send(told).ok();
    }
}

impl Shared {
    pub(super) async fn settle(self: &Arc<Self>, answers: &[(Tag, Answer)]) -> Result<Vec<Tag>, Error> {
        let mut lost: HashSet<Tag> = HashSet::new();
        let mut by_lane: BTreeMap<u64, Vec<(Tag, Answer)>> = BTreeMap::new();
        for (tag, answer) in answers {
            by_lane.entry(tag.number() & 0xffff).or_default().push((*tag, answer.clone()));
        }
        let mut asked = Vec::new();
        for (lane, answers) in by_lane {
            match usize::try_from(lane).ok().and_then(|lane| self.cells.get(lane)) {
                Some(cell) if !self.is_closed() => asked.push(self.ask(cell, answers)),
                _ => lost.extend(answers.into_iter().map(|(tag, _)| tag)),
            }
        }
        for told in join_all(asked).await {
            lost.extend(told.map_err(|_| Error::Closed)?.map_err(Error::Common)?);
        }
        // Of an answer that is given twice in one call the second is lost; both have the same tag.
        let mut seen = HashSet::new();
        let is_lost = |tag: &Tag| lost.contains(tag) && seen.insert(*tag);
        Ok(answers.iter().map(|(tag, _)| *tag).filter(is_lost).collect())
    }

    /// Leaves answers for the next write of their lane, and sees to it that there is one.
    fn ask(self: &Arc<Self>, cell: &Cell, answers: Vec<(Tag, Answer)>) -> oneshot::Receiver<Told> {
        let (told, answer) = oneshot::channel();
        let mut calls = lock(&cell.calls);
        // More calls than deliveries can be out: some of them were given up.
        if calls.len() >= self.membership.prefetch {
            calls.retain(|call| !call.told.is_closed());
        }
        calls.push(Call { answers, told });
        drop(calls);
        let (shared, number) = (Arc::clone(self), usize::from(cell.number));
        // A task, because a caller that gives up in the middle of a write must not take the others with it.
        self.spawn(async move { shared.write_answers(&shared.cells[number]).await });
        answer
    }

    /// All answers of a lane that wait, with one write. There is nothing to do where the write before took them along.
    async fn write_answers(&self, cell: &Cell) {
        let mut slot = cell.held.lock().await;
        let mut calls = std::mem::take(&mut *lock(&cell.calls));
        calls.retain(|call| !call.told.is_closed());
        if calls.is_empty() {
            return;
        }
        let written = self.write_calls(cell, &mut slot, &calls).await;
        drop(slot);
        self.changed.notify_waiters();
        let lost = match written {
            Ok(lost) => lost,
            Err(error) => {
                let error = Arc::new(error);
                for call in calls {
                    call.tell(Err(Arc::clone(&error)));
                }
                return;
            }
        };
        let mut rejecting = Vec::new();
        for (call, lost) in calls.into_iter().zip(lost) {
            if call.rejects() {
                rejecting.push((call, lost));
            } else {
                call.tell(Ok(lost));
            }
        }
        if !rejecting.is_empty() {
            self.bury_while_letters_flow(cell).await;
        }
        for (call, lost) in rejecting {
            call.tell(Ok(lost));
        }
    }

    /// Writes the answers of these calls; what each of them lost.
    async fn write_calls(&self, cell: &Cell, slot: &mut Option<Held>, calls: &[Call]) -> Result<Vec<Vec<Tag>>, Error> {
        let now = now_ms();
        let all = || calls.iter().flat_map(|call| &call.answers);
        let plan = |window: &Window| window.plan(all().map(|(tag, answer)| (*tag, answer)), now);
        let Some(plan) = self.change(cell, slot, plan).await? else {
            return Ok(shared_out(calls, |_| true));
        };
        let lost = shared_out(calls, |place| plan.lost.contains(&place));
        if let Some(held) = slot.as_mut() {
            let words = held.window.carry_out(plan);
            if held.leaving && held.window.out() == 0 {
                self.attend_now.notify_one();
            }
            self.say(cell, words).await;
        }
        Ok(lost)
    }
}

/// To each call its own tags of those that were lost, by their place among all answers.
fn shared_out(calls: &[Call], is_lost: impl Fn(usize) -> bool) -> Vec<Vec<Tag>> {
    let mut places = 0..;
    let lost = |call: &Call| {
        let tags = call.answers.iter().zip(places.by_ref());
        tags.filter(|(_, place)| is_lost(*place)).map(|((tag, _), _)| *tag).collect()
    };
    calls.iter().map(lost).collect()
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
