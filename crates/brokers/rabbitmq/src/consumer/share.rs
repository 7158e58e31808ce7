//! Lane assignment among the consumers of a group.
//!
//! The broker activates the first subscriber of a lane; the others wait. Each member therefore subscribes to every
//! lane, so that a standby can take over any lane at once. Members announce themselves to each other, and compute the
//! same owner of each lane from the same member list. A member that does not own a lane subscribes again, and so queues
//! after the owner. This affects only the balance: the broker guarantees one active consumer at a time.

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

/// Every virtual host has this exchange, and it routes only to bindings with exactly this key.
const EXCHANGE: &str = "amq.direct";
/// The announcement interval. After three missed announcements a member counts as dead.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(1);

/// The announcement of a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Word {
    id: String,
    /// All members that it knows, including itself.
    view: BTreeSet<String>,
    /// It has released every lane that belongs to others in this view.
    settled: bool,
    /// It leaves the group.
    bye: bool,
}

/// What a member decides for a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// It owns the lane.
    Keep,
    /// Another member owns the lane and does not know it yet.
    Wait,
    /// Another member owns the lane.
    GiveUp,
}

struct Other {
    word: Word,
    heard: Instant,
}

/// What a member knows about its group.
struct Table {
    me: String,
    others: BTreeMap<String, Other>,
}

impl Table {
    fn view(&self) -> BTreeSet<String> {
        self.others.keys().chain([&self.me]).cloned().collect()
    }

    /// A hash of the view.
    fn number(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.view().hash(&mut hasher);
        hasher.finish()
    }

    /// The owner of a lane.
    fn owner(&self, lane: usize) -> String {
        let view = self.view();
        view.iter().nth(lane % view.len()).expect("it holds this member at least").clone()
    }

    /// The decision for a lane.
    fn wish(&self, lane: usize) -> Wish {
        match self.others.get(&self.owner(lane)) {
            None => Wish::Keep,
            // With a different list it might release the lane too, and then queue after us.
            Some(owner) if owner.word.view != self.view() => Wish::Wait,
            Some(_) => Wish::GiveUp,
        }
    }

    /// Records an announcement.
    fn hear(&mut self, word: Word, now: Instant) {
        if word.bye {
            self.others.remove(&word.id);
        } else if word.id != self.me {
            self.others.insert(word.id.clone(), Other { word, heard: now });
        }
    }

    /// Removes members without recent announcements.
    fn expire(&mut self, now: Instant) {
        self.others.retain(|_, other| now - other.heard < 3 * ANNOUNCE_EVERY);
    }

    /// Whether there are at least `others` other members, and all have the same list and have released the lanes of
    /// others.
    fn is_agreed(&self, others: usize) -> bool {
        let view = self.view();
        self.others.len() >= others && self.others.values().all(|other| other.word.view == view && other.word.settled)
    }
}

/// Takes part in the group while the consumer exists.
pub(crate) async fn attend(shared: Arc<Shared>) {
    let mut backoff = Backoff::default();
    let mut sessions = shared.sessions.subscribe();
    let base = format!("{:016x}", RandomState::new().hash_one(()));
    loop {
        // A member without its lanes does not count. After a reconnect its subscriptions are the last ones, as for a
        // new member.
        let session = match sessions.wait_for(|session| *session != Session::Down).await.map(|session| *session) {
            Ok(Session::Up(number)) => number,
            Ok(Session::Down | Session::Over) | Err(_) => return,
        };
        let took_part = take_part(&shared, format!("{base}-{session}"), &mut sessions).await;
        // Without a connection to the others, keep every lane that the broker activates.
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

/// Runs until the connection of the lanes changes, or this connection is lost.
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
                // Announce again, even without a change.
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

/// The routing key of the group. A name that is too long was rejected when the group was created.
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

/// The number of other subscribers of the first lane.
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
