//! How the consumers of a group share its lanes.
//!
//! The broker gives a lane to whoever subscribed first, and the rest wait. So each member subscribes to every lane, and no
//! lane is ever without somebody who would take it at once. Members tell each other that they are there; from
//! the same list all work out the same owner of each lane. Who is not its owner subscribes anew, and so stands behind the
//! owner. Nothing but the balance rests on that: one consumer at a time is the broker's doing.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, DefaultHasher, Hash as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::options::{BasicConsumeOptions, BasicPublishOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{BasicProperties, Channel};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::shared::{Session, Shared};
use crate::backoff::Backoff;
use crate::classify::Error;
use crate::group::members_key;
use crate::link;

/// Every virtual host has it, and it gives nothing to those who did not ask for exactly this key.
const EXCHANGE: &str = "amq.direct";
/// How often a member says that it is there; after three times in vain it is not.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(1);

/// What a member says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Word {
    id: String,
    /// All members that it knows, itself included.
    view: BTreeSet<String>,
    /// It has given up everything that is another's by this view.
    settled: bool,
    /// It ends.
    bye: bool,
}

/// What a member wants to do with a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// It is its own.
    Keep,
    /// It is another's, who does not know that yet.
    Wait,
    /// It is another's.
    GiveUp,
}

struct Other {
    word: Word,
    heard: Instant,
}

/// What a member knows of its group.
struct Table {
    me: String,
    others: BTreeMap<String, Other>,
}

impl Table {
    fn view(&self) -> BTreeSet<String> {
        self.others.keys().chain([&self.me]).cloned().collect()
    }

    /// A number of the view, another for another.
    fn number(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.view().hash(&mut hasher);
        hasher.finish()
    }

    /// Who should have a lane.
    fn owner(&self, lane: usize) -> String {
        let view = self.view();
        view.iter().nth(lane % view.len()).expect("it holds this member at least").clone()
    }

    /// What to do with a lane.
    fn wish(&self, lane: usize) -> Wish {
        match self.others.get(&self.owner(lane)) {
            None => Wish::Keep,
            // With another list it might give the lane up as well, and then stand behind us.
            Some(owner) if owner.word.view != self.view() => Wish::Wait,
            Some(_) => Wish::GiveUp,
        }
    }

    /// Takes in what a member said.
    fn hear(&mut self, word: Word, now: Instant) {
        if word.bye {
            self.others.remove(&word.id);
        } else if word.id != self.me {
            self.others.insert(word.id.clone(), Other { word, heard: now });
        }
    }

    /// Forgets those who say nothing any more.
    fn expire(&mut self, now: Instant) {
        self.others.retain(|_, other| now - other.heard < 3 * ANNOUNCE_EVERY);
    }

    /// Whether all others, so many, have the same list and have given up what is not theirs.
    fn is_agreed(&self, others: usize) -> bool {
        let view = self.view();
        self.others.len() >= others && self.others.values().all(|other| other.word.view == view && other.word.settled)
    }
}

/// Takes part in the group for as long as the consumer lives.
pub(crate) async fn attend(shared: Arc<Shared>) {
    let mut backoff = Backoff::default();
    let mut sessions = shared.sessions.subscribe();
    let base = format!("{:016x}", RandomState::new().hash_one(()));
    loop {
        // A member whose lanes are away does not count. After a reconnect its subscriptions are the last, as a newcomer's.
        let session = match sessions.wait_for(|session| *session != Session::Down).await.map(|session| *session) {
            Ok(Session::Up(number)) => number,
            Ok(Session::Down | Session::Over) | Err(_) => return,
        };
        let took_part = take_part(&shared, format!("{base}-{session}"), &mut sessions).await;
        // Whoever knows nothing of others keeps what the broker gives it.
        shared.share_out(0, |_| Wish::Keep);
        match took_part {
            Ok(()) => backoff = Backoff::default(),
            Err(error) => {
                tracing::warn!(group = shared.group.name, %error, "lanes cannot be shared, will try again");
                shared.joined.send_replace(true);
                sleep(backoff.next()).await;
            }
        }
    }
}

/// Until the lanes' connection is another, or this one breaks.
async fn take_part(shared: &Shared, me: String, sessions: &mut watch::Receiver<Session>) -> Result<(), Error> {
    let name = format!("{} (members of {})", shared.membership.name, shared.group.name);
    let connection = link::connect(&shared.config, &name).await?;
    let deadline = shared.config.connect_deadline;
    let opened = timeout(deadline, open(shared, &connection)).await.map_err(|_| Error::Silent(deadline))?;
    let (channel, mut words) = opened.map_err(Error::of_channel)?;
    let mut table = Table { me, others: BTreeMap::new() };
    let mut tick = interval(ANNOUNCE_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut said: Option<Word> = None;
    loop {
        let settled = shared.share_out(table.number(), |lane| table.wish(lane));
        let word = Word { id: table.me.clone(), view: table.view(), settled, bye: false };
        let news = said.as_ref() != Some(&word);
        if news {
            say(shared, &channel, &word).await?;
            said = Some(word);
        }
        if !*shared.joined.borrow() && table.is_agreed(others(shared, &channel).await?) {
            shared.joined.send_replace(true);
        }
        tokio::select! {
            changed = sessions.changed() => {
                let bye = Word { bye: true, ..said.expect("it was said above") };
                say(shared, &channel, &bye).await?;
                timeout(deadline, connection.close(200, "OK".into())).await.ok();
                return changed.map_err(|_| Error::Closed);
            }
            () = shared.moved.notified() => {}
            _ = tick.tick() => {
                table.expire(Instant::now());
                // Said again even if nothing is new.
                said = None;
            }
            word = words.next() => {
                let delivery = word.ok_or(Error::Closed)?.map_err(Error::of_channel)?;
                if let Ok(word) = serde_json::from_slice::<Word>(&delivery.data) {
                    let newcomer = word.id != table.me && !table.others.contains_key(&word.id);
                    table.hear(word, Instant::now());
                    if newcomer {
                        said = None;
                    }
                }
            }
        }
    }
}

async fn open(shared: &Shared, connection: &lapin::Connection) -> Result<(Channel, lapin::Consumer), lapin::Error> {
    let channel = connection.create_channel().await?;
    let options = QueueDeclareOptions { exclusive: true, auto_delete: true, ..QueueDeclareOptions::default() };
    let queue = channel.queue_declare("".into(), options, FieldTable::default()).await?;
    let (name, bind) = (queue.name().clone(), QueueBindOptions::default());
    channel.queue_bind(name.clone(), EXCHANGE.into(), key(shared), bind, FieldTable::default()).await?;
    let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
    let words = channel.basic_consume(name, "".into(), options, FieldTable::default()).await?;
    Ok((channel, words))
}

/// The group's key; a name that is too long for one was refused when the group was made.
fn key(shared: &Shared) -> ShortString {
    members_key(&shared.group.name).as_str().into()
}

async fn say(shared: &Shared, channel: &Channel, word: &Word) -> Result<(), Error> {
    let text = serde_json::to_vec(word).expect("strings and booleans are JSON");
    let options = BasicPublishOptions::default();
    let said = channel.basic_publish(EXCHANGE.into(), key(shared), options, &text, BasicProperties::default());
    let deadline = shared.config.connect_deadline;
    timeout(deadline, said).await.map_err(|_| Error::Silent(deadline))?.map_err(Error::of_channel)?;
    Ok(())
}

/// How many others are subscribed to the first lane.
async fn others(shared: &Shared, channel: &Channel) -> Result<usize, Error> {
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let asked = channel.queue_declare(shared.queues[0].as_str().into(), options, FieldTable::default());
    let deadline = shared.config.connect_deadline;
    let queue = timeout(deadline, asked).await.map_err(|_| Error::Silent(deadline))?.map_err(Error::of_channel)?;
    Ok(queue.consumer_count().saturating_sub(1) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(id: &str, view: &[&str]) -> Word {
        Word { id: id.to_owned(), view: view.iter().map(|&id| id.to_owned()).collect(), settled: true, bye: false }
    }

    fn table(me: &str, words: &[Word]) -> Table {
        let mut table = Table { me: me.to_owned(), others: BTreeMap::new() };
        for word in words {
            table.hear(word.clone(), Instant::now());
        }
        table
    }

    #[test]
    fn members_with_one_list_agree_on_every_owner() {
        let all = ["a", "b", "c"];
        let tables = all.map(|me| table(me, &all.map(|id| word(id, &all))));
        for lane in 0..12 {
            let keepers: Vec<&str> =
                tables.iter().filter(|table| table.wish(lane) == Wish::Keep).map(|table| table.me.as_str()).collect();
            assert_eq!(keepers, [all[lane % 3]], "lane {lane}");
        }
        assert!(tables.iter().all(|table| table.is_agreed(2)));
    }

    #[test]
    fn nothing_is_given_up_to_an_owner_with_another_list() {
        let table = table("b", &[word("a", &["a"])]);
        assert_eq!((table.wish(0), table.wish(1)), (Wish::Wait, Wish::Keep));
        assert!(!table.is_agreed(1));
    }

    #[test]
    fn who_leaves_or_falls_silent_owns_nothing() {
        let mut table = table("b", &[word("a", &["a", "b"]), word("c", &["b", "c"])]);
        table.hear(Word { bye: true, ..word("a", &["a", "b"]) }, Instant::now());
        assert_eq!((table.wish(0), table.wish(1)), (Wish::Keep, Wish::GiveUp));
        table.expire(Instant::now() + 3 * ANNOUNCE_EVERY);
        assert_eq!((table.wish(0), table.wish(1)), (Wish::Keep, Wish::Keep));
    }
}
