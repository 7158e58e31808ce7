//! Behind a pooler in transaction mode, where the next transaction may have another session.

use serde_json::json;
use ticketflow::desk::{self, Listing};
use tokio::task::JoinSet;

use crate::world::{ANA, CARLA, World};
use crate::{changes, people};

#[tokio::test]
async fn behind_a_pooler_tickets_walk_to_their_end_and_people_are_added() {
    let world = World::pooled().await;
    changes::a_ticket_walks_to_its_end(&world).await;
    people::an_admin_adds_people_whose_token_is_told_once(&world).await;
}

#[tokio::test]
async fn behind_a_pooler_many_read_and_write_at_once_on_few_sessions() {
    let world = World::pooled().await;
    let seen = world.opened(ANA, "No light").await;
    // Another process, whose statements would have the same names if they had any.
    let other = desk::open(&world.database).await.unwrap();
    let (mut calls, mut others) = (JoinSet::new(), JoinSet::new());
    for number in 0..20 {
        let comment = json!({ "body": format!("{number}") });
        calls.spawn(world.post(ANA, &format!("{}/comments", seen.path()), &comment).send());
        calls.spawn(world.get(CARLA, "/api/tickets?q=light").send());
        let other = other.clone();
        others.spawn(async move { other.people(&Listing::default()).await });
    }
    for reply in calls.join_all().await {
        assert!(reply.status.is_success(), "{}", reply.text);
    }
    for people in others.join_all().await {
        assert_eq!(people.unwrap().len(), 5);
    }
    let stored = world.get(ANA, &seen.path()).send().await;
    assert_eq!(stored.json["version"], 21);
}
