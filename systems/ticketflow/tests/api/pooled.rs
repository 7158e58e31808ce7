//! Behind a pooler in transaction mode, where the next transaction may have another session.

use std::time::Instant;

use serde_json::json;
use ticketflow::desk::{self, DeskError, Listing};
use tokio::task::JoinSet;

use crate::world::{ANA, CARLA, PATIENCE, World};
use crate::{changes, people};

#[tokio::test]
async fn behind_a_pooler_tickets_are_closed_and_people_are_added() {
    let world = World::pooled().await;
    changes::a_ticket_is_closed_step_by_step(&world).await;
    people::an_admin_adds_people_whose_token_is_shown_once(&world).await;
}

#[tokio::test]
async fn behind_a_pooler_many_requests_share_few_sessions() {
    let world = World::pooled().await;
    let seen = world.opened(ANA, "No light").await;
    // Another process, whose statements would have the same names if they had any.
    let other = desk::open(&world.database).await.unwrap();
    let path = format!("{}/comments", seen.path());
    let comment = |number: i32| {
        let call = world.post(ANA, &path, &json!({ "body": format!("{number}") }));
        call.with("idempotency-key", &format!("comment-{number}"))
    };
    let list = || world.get(CARLA, "/api/tickets?q=light");
    let (mut comments, mut lists, mut others) = (JoinSet::new(), JoinSet::new(), JoinSet::new());
    for number in 0..20 {
        let call = comment(number).send();
        comments.spawn(async move { (number, call.await) });
        lists.spawn(list().send());
        let other = other.clone();
        others.spawn(async move {
            let end = Instant::now() + PATIENCE;
            loop {
                let people = other.people(&Listing::default()).await;
                if !matches!(people, Err(DeskError::Away(_))) || Instant::now() > end {
                    return people;
                }
            }
        });
    }
    for (number, reply) in comments.join_all().await {
        let reply = reply.or_again(|| comment(number)).await;
        assert!(reply.status.is_success(), "{}", reply.text);
    }
    for reply in lists.join_all().await {
        let reply = reply.or_again(list).await;
        assert!(reply.status.is_success(), "{}", reply.text);
    }
    for people in others.join_all().await {
        assert_eq!(people.unwrap().len(), 5);
    }
    let stored = world.get(ANA, &seen.path()).send().await;
    assert_eq!(stored.json["version"], 21);
}
