//! Lane assignment among the consumers of a group.
//!
//! The broker activates the first subscriber of a lane; the others wait. Each member therefore subscribes to every
//! lane, so that a standby can take over any lane at once. Members announce themselves to each other, and compute the
//! same owner of each lane from the same member list. A member that does not own a lane subscribes again, and so queues
//! after the owner. This affects only the balance: the broker guarantees one active consumer at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::options::{BasicConsumeOptions, BasicPublishOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{BasicProperties, Channel};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::{ConsumerInner, LaneConnection};
use crate::classify::Error;
use crate::connection::Reconnect;

/// Every virtual host has this exchange, and it routes only to bindings with exactly this key.
const EXCHANGE: &str = "amq.direct";
/// The announcement interval. After three missed announcements a member counts as dead.
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(1);

/// The announcement of a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct MemberAnnouncement {
    id: String,
    /// All members that it knows, including itself.
    #[serde(rename = "view")]
    members: BTreeSet<String>,
    /// It has released every lane that belongs to another of these members.
    settled: bool,
    /// It leaves the group.
    #[serde(rename = "bye")]
    leaving: bool,
}

/// What a member decides for a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaneDecision {
    /// It owns the lane.
    Keep,
    /// Another member owns the lane and does not know it yet.
    Wait,
    /// Another member owns the lane.
    Release,
}

struct PeerMember {
    announcement: MemberAnnouncement,
    received_at: Instant,
}

/// What a member knows about its group.
struct MemberTable {
    own_id: String,
    peers: BTreeMap<String, PeerMember>,
}

impl MemberTable {
    fn members(&self) -> BTreeSet<String> {
        self.peers.keys().chain([&self.own_id]).cloned().collect()
    }

    /// A hash of the member list.
    fn members_hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.members().hash(&mut hasher);
        hasher.finish()
    }

    /// The owner of a lane.
    fn owner(&self, lane: usize) -> String {
        let members = self.members();
        members.iter().nth(lane % members.len()).expect("this member is in the list").clone()
    }

    /// The decision for a lane.
    fn decide(&self, lane: usize) -> LaneDecision {
        match self.peers.get(&self.owner(lane)) {
            None => LaneDecision::Keep,
            // With a different list it might release the lane too, and then queue after us.
            Some(owner) if owner.announcement.members != self.members() => LaneDecision::Wait,
            Some(_) => LaneDecision::Release,
        }
    }

    /// Records an announcement.
    fn record(&mut self, announcement: MemberAnnouncement, now: Instant) {
        if announcement.leaving {
            self.peers.remove(&announcement.id);
        } else if announcement.id != self.own_id {
            self.peers.insert(announcement.id.clone(), PeerMember { announcement, received_at: now });
        }
    }

    /// Removes members without recent announcements.
    fn expire(&mut self, now: Instant) {
        self.peers.retain(|_, peer| now - peer.received_at < 3 * ANNOUNCE_INTERVAL);
    }

    /// Whether there are at least `others` other members, and all have the same list and have released the lanes of
    /// others.
    fn is_agreed(&self, others: usize) -> bool {
        let members = self.members();
        self.peers.len() >= others
            && self.peers.values().all(|peer| peer.announcement.members == members && peer.announcement.settled)
    }
}

/// Takes part in the group while the consumer exists.
pub(crate) async fn run(inner: Arc<ConsumerInner>) {
    let name = format!("{} (members of {})", inner.options.name, inner.queue.name);
    let base = format!("{:016x}", fastrand::u64(..));
    let mut lanes = inner.lane_connection.subscribe();
    loop {
        // A member without its lanes does not count. After a reconnect its subscriptions are the last ones, as for a
        // new member.
        let number = match lanes.wait_for(|lanes| *lanes != LaneConnection::Down).await.map(|lanes| *lanes) {
            Ok(LaneConnection::Up(number)) => number,
            Ok(LaneConnection::Down | LaneConnection::Closed) | Err(_) => return,
        };
        let own_id = format!("{base}-{number}");
        let mut connections = Reconnect::new(&inner.config, &name);
        while *lanes.borrow() == LaneConnection::Up(number) {
            let attempt = tokio::select! {
                biased;
                _ = lanes.changed() => break,
                attempt = connections.next() => attempt,
            };
            let ended = match attempt {
                Ok(connection) => join_group(&inner, &connection, &own_id, &mut lanes).await,
                Err(error) => Err(error),
            };
            // Without a connection to the others, keep every lane that the broker activates.
            inner.apply_assignment(0, |_| LaneDecision::Keep);
            if let Err(error) = ended {
                let queue = &inner.queue.name;
                tracing::warn!(queue, %error, "cannot share the lanes with other consumers, will retry");
                inner.joined.send_replace(true);
            }
        }
    }
}

impl ConsumerInner {
    /// Applies the assignment. Returns whether this member has released every lane of others.
    pub(crate) fn apply_assignment(&self, members_hash: u64, decide: impl Fn(usize) -> LaneDecision) -> bool {
        let mut table = self.lane_table();
        table.members_hash = members_hash;
        let mut settled = true;
        for lane in 0..self.queues.len() {
            let is_released = table.released_at[lane] == members_hash;
            let is_leaving = match decide(lane) {
                LaneDecision::Keep => false,
                LaneDecision::Wait => {
                    settled &= is_released;
                    false
                }
                LaneDecision::Release => {
                    // Until it is subscribed again, the release may not be complete.
                    settled &= is_released && table.lanes[lane].channel.is_some();
                    !is_released
                }
            };
            if std::mem::replace(&mut table.lanes[lane].handing_over, is_leaving) != is_leaving {
                self.lane_wakers[lane].notify_one();
            }
        }
        drop(table);
        self.changed.notify_waiters();
        settled
    }
}

/// Runs until the connection of the lanes changes, or this connection is lost.
async fn join_group(
    inner: &ConsumerInner,
    connection: &lapin::Connection,
    own_id: &str,
    lanes: &mut watch::Receiver<LaneConnection>,
) -> Result<(), Error> {
    let limit = inner.config.connect_timeout;
    let opened =
        timeout(limit, subscribe_announcements(inner, connection)).await.map_err(|_| Error::NoResponse(limit))?;
    let (channel, mut announcements) = opened.map_err(Error::from_channel_error)?;
    let mut table = MemberTable { own_id: own_id.to_owned(), peers: BTreeMap::new() };
    let mut tick = interval(ANNOUNCE_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last: Option<MemberAnnouncement> = None;
    loop {
        let settled = inner.apply_assignment(table.members_hash(), |lane| table.decide(lane));
        let current =
            MemberAnnouncement { id: table.own_id.clone(), members: table.members(), settled, leaving: false };
        if last.as_ref() != Some(&current) {
            announce(inner, &channel, &current).await?;
            last = Some(current);
        }
        if !*inner.joined.borrow() && table.is_agreed(count_peers(inner, &channel).await?) {
            inner.joined.send_replace(true);
        }
        tokio::select! {
            changed = lanes.changed() => {
                let leaving = MemberAnnouncement { leaving: true, ..last.expect("it was announced above") };
                announce(inner, &channel, &leaving).await?;
                timeout(limit, connection.close(200, "OK".into())).await.ok();
                return changed.map_err(|_| Error::Closed);
            }
            () = inner.lanes_moved.notified() => {}
            _ = tick.tick() => {
                table.expire(Instant::now());
                // Announce again, even without a change.
                last = None;
            }
            received = announcements.next() => {
                let delivery = received.ok_or(Error::Closed)?.map_err(Error::from_channel_error)?;
                if let Ok(announcement) = serde_json::from_slice::<MemberAnnouncement>(&delivery.data) {
                    let is_new = announcement.id != table.own_id && !table.peers.contains_key(&announcement.id);
                    table.record(announcement, Instant::now());
                    if is_new {
                        last = None;
                    }
                }
            }
        }
    }
}

async fn subscribe_announcements(
    inner: &ConsumerInner,
    connection: &lapin::Connection,
) -> Result<(Channel, lapin::Consumer), lapin::Error> {
    let channel = connection.create_channel().await?;
    let options = QueueDeclareOptions { exclusive: true, auto_delete: true, ..QueueDeclareOptions::default() };
    let queue = channel.queue_declare("".into(), options, FieldTable::default()).await?;
    let (name, bind) = (queue.name().clone(), QueueBindOptions::default());
    channel.queue_bind(name.clone(), EXCHANGE.into(), announcement_key(inner), bind, FieldTable::default()).await?;
    let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
    let announcements = channel.basic_consume(name, "".into(), options, FieldTable::default()).await?;
    Ok((channel, announcements))
}

/// The routing key of the group. A name that is too long was rejected when the group was created.
fn announcement_key(inner: &ConsumerInner) -> ShortString {
    inner.queue.members_key().as_str().into()
}

async fn announce(inner: &ConsumerInner, channel: &Channel, announcement: &MemberAnnouncement) -> Result<(), Error> {
    let text = serde_json::to_vec(announcement).expect("strings and booleans are JSON");
    let options = BasicPublishOptions::default();
    let sent =
        channel.basic_publish(EXCHANGE.into(), announcement_key(inner), options, &text, BasicProperties::default());
    let limit = inner.config.connect_timeout;
    timeout(limit, sent).await.map_err(|_| Error::NoResponse(limit))?.map_err(Error::from_channel_error)?;
    Ok(())
}

/// The number of other subscribers of the first lane.
async fn count_peers(inner: &ConsumerInner, channel: &Channel) -> Result<usize, Error> {
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let declared = channel.queue_declare(inner.queues[0].as_str().into(), options, FieldTable::default());
    let limit = inner.config.connect_timeout;
    let queue =
        timeout(limit, declared).await.map_err(|_| Error::NoResponse(limit))?.map_err(Error::from_channel_error)?;
    Ok(queue.consumer_count().saturating_sub(1) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announcement(id: &str, members: &[&str]) -> MemberAnnouncement {
        MemberAnnouncement {
            id: id.to_owned(),
            members: members.iter().map(|&id| id.to_owned()).collect(),
            settled: true,
            leaving: false,
        }
    }

    fn table(own_id: &str, announcements: &[MemberAnnouncement]) -> MemberTable {
        let mut table = MemberTable { own_id: own_id.to_owned(), peers: BTreeMap::new() };
        for announcement in announcements {
            table.record(announcement.clone(), Instant::now());
        }
        table
    }

    #[test]
    fn members_with_the_same_list_agree_on_every_owner() {
        let all = ["a", "b", "c"];
        let tables = all.map(|own_id| table(own_id, &all.map(|id| announcement(id, &all))));
        for lane in 0..12 {
            let owners: Vec<&str> = tables
                .iter()
                .filter(|table| table.decide(lane) == LaneDecision::Keep)
                .map(|table| table.own_id.as_str())
                .collect();
            assert_eq!(owners, [all[lane % 3]], "lane {lane}");
        }
        assert!(tables.iter().all(|table| table.is_agreed(2)));
    }

    #[test]
    fn no_lane_is_released_to_an_owner_with_a_different_list() {
        let table = table("b", &[announcement("a", &["a"])]);
        assert_eq!((table.decide(0), table.decide(1)), (LaneDecision::Wait, LaneDecision::Keep));
        assert!(!table.is_agreed(1));
    }

    #[test]
    fn a_member_that_leaves_or_stops_announcing_owns_no_lane() {
        let mut table = table("b", &[announcement("a", &["a", "b"]), announcement("c", &["b", "c"])]);
        table.record(MemberAnnouncement { leaving: true, ..announcement("a", &["a", "b"]) }, Instant::now());
        assert_eq!((table.decide(0), table.decide(1)), (LaneDecision::Keep, LaneDecision::Release));
        table.expire(Instant::now() + 3 * ANNOUNCE_INTERVAL);
        assert_eq!((table.decide(0), table.decide(1)), (LaneDecision::Keep, LaneDecision::Keep));
    }
}
