//! Writing down what became of deliveries.

use std::collections::{BTreeSet, HashSet};

use relevo_core::{Answer, Tag};
use sqlx::Row as _;

use crate::classify::Error;
use crate::consumer::Shared;
use crate::lanes::{Out, State, json};
use crate::link::Write;

/// What the answers of one call come to.
#[derive(Default)]
struct Plan<'a> {
    lost: Vec<Tag>,
    settled: Vec<Tag>,
    done: Vec<Out>,
    rejected: Vec<(Out, &'a str)>,
    later: Vec<(Out, i64)>,
    /// Later messages of a key that is retried.
    taken_back: Vec<(Tag, Out)>,
}

impl Shared {
    pub(crate) async fn settle(&self, answers: &[(Tag, Answer)]) -> Result<Vec<Tag>, Error> {
        let mut state = self.state.lock().await;
        if state.doubtful {
            self.resolve_doubt(&mut state).await?;
        }
        if answers.iter().all(|(tag, _)| state.out(*tag).is_none()) {
            return Ok(answers.iter().map(|(tag, _)| *tag).collect());
        }
        let mut write = self.broker.link.write().await?;
        for lane in self.lost_lanes(&mut write, &state).await? {
            state.lose(lane);
        }
        let plan = self.plan(&state, answers);
        state.doubtful = true;
        self.carry_out(&mut write, &plan).await?;
        write.commit().await?;
        state.doubtful = false;
        for tag in plan.settled.iter().chain(plan.taken_back.iter().map(|(tag, _)| tag)) {
            state.take_back(*tag);
        }
        if state.has_drained() {
            // Others wait for the lane; if it fails now, the heartbeat tries again.
            if let Err(error) = self.attend(&mut state).await {
                tracing::warn!(group = self.group.name, %error, "a lane could not be given back, will try again");
            }
        }
        drop(state);
        self.changed.notify_waiters();
        Ok(plan.lost)
    }

    /// Lanes that the file no longer gives to this consumer.
    async fn lost_lanes(&self, write: &mut Write, state: &State) -> Result<Vec<u16>, Error> {
        let rows = sqlx::query("SELECT lane, epoch FROM broker_lane WHERE group_id = ?1 AND owner = ?2")
            .bind(self.group.id)
            .bind(self.owner)
            .fetch_all(write.sql())
            .await?;
        let mine: BTreeSet<(u16, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let held = state.lanes.iter().map(|(lane, held)| (*lane, held.epoch));
        Ok(held.filter(|lane| !mine.contains(lane)).map(|(lane, _)| lane).collect())
    }

    /// Goes through the answers in order: each is seen as if those before it were carried out.
    fn plan<'a>(&self, state: &State, answers: &'a [(Tag, Answer)]) -> Plan<'a> {
        let mut plan = Plan::default();
        let mut gone = HashSet::new();
        for (tag, answer) in answers {
            let Some(out) = state.out(*tag).filter(|_| gone.insert(*tag)) else {
                plan.lost.push(*tag);
                continue;
            };
            plan.settled.push(*tag);
            match answer {
                Answer::Acknowledge => plan.done.push(out.clone()),
                Answer::Reject { reason } => plan.rejected.push((out.clone(), reason)),
                Answer::RetryLater { after } => {
                    if self.group.ordered {
                        let is_later =
                            |other: &Out| other.lane == out.lane && other.key == out.key && other.seq > out.seq;
                        let later = state.outs().filter(|(other, later)| is_later(later) && gone.insert(*other));
                        plan.taken_back.extend(later.map(|(tag, out)| (tag, out.clone())));
                    }
                    plan.later.push((out.clone(), i64::try_from(after.as_millis()).unwrap_or(i64::MAX / 2)));
                }
            }
        }
        plan
    }

    async fn carry_out(&self, write: &mut Write, plan: &Plan<'_>) -> Result<(), Error> {
        for (out, reason) in &plan.rejected {
            sqlx::query(
                "INSERT INTO broker_dead (group_id, seq, lane, count, reason, dead_at_ms)
                 SELECT group_id, seq, lane, count, ?3, CAST(unixepoch('subsec') * 1000 AS INTEGER)
                 FROM broker_pending WHERE group_id = ?1 AND seq = ?2
                 ON CONFLICT (seq, group_id) DO NOTHING",
            )
            .bind(self.group.id)
            .bind(out.seq)
            .bind(*reason)
            .execute(write.sql())
            .await?;
        }
        let gone: Vec<&Out> = plan.done.iter().chain(plan.rejected.iter().map(|(out, _)| out)).collect();
        let seqs: Vec<i64> = gone.iter().map(|out| out.seq).collect();
        sqlx::query("DELETE FROM broker_pending WHERE group_id = ?1 AND seq IN (SELECT value FROM json_each(?2))")
            .bind(self.group.id)
            .bind(json(&seqs))
            .execute(write.sql())
            .await?;
        for head in gone.into_iter().filter(|out| out.head) {
            self.release(write, head).await?;
        }
        for (_, out) in &plan.taken_back {
            sqlx::query(
                "UPDATE broker_pending SET state = 3, due_ms = NULL, key = ?3 WHERE group_id = ?1 AND seq = ?2",
            )
            .bind(self.group.id)
            .bind(out.seq)
            .bind(&*out.key)
            .execute(write.sql())
            .await?;
        }
        for (out, after_ms) in &plan.later {
            self.put_off(write, out, *after_ms).await?;
        }
        Ok(())
    }

    /// What waited behind a message that is settled goes on.
    async fn release(&self, write: &mut Write, head: &Out) -> Result<(), Error> {
        sqlx::query("UPDATE broker_pending SET state = 0 WHERE group_id = ?1 AND lane = ?2 AND key = ?3 AND state = 3")
            .bind(self.group.id)
            .bind(head.lane)
            .bind(&*head.key)
            .execute(write.sql())
            .await?;
        Ok(())
    }

    /// The message waits, and in an ordered group those of its key that came back wait behind it.
    async fn put_off(&self, write: &mut Write, out: &Out, after_ms: i64) -> Result<(), Error> {
        sqlx::query(
            "UPDATE broker_pending SET state = 2, retries = retries + 1, key = ?3,
                    due_ms = CAST(unixepoch('subsec') * 1000 AS INTEGER) + ?4
             WHERE group_id = ?1 AND seq = ?2",
        )
        .bind(self.group.id)
        .bind(out.seq)
        .bind(&*out.key)
        .bind(after_ms)
        .execute(write.sql())
        .await?;
        if self.group.ordered {
            sqlx::query(
                "UPDATE broker_pending SET state = 3, due_ms = NULL
                 WHERE group_id = ?1 AND lane = ?2 AND key = ?3 AND seq > ?4 AND state IN (0, 2)",
            )
            .bind(self.group.id)
            .bind(out.lane)
            .bind(&*out.key)
            .bind(out.seq)
            .execute(write.sql())
            .await?;
        }
        Ok(())
    }
}
