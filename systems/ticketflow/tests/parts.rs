//! `TicketFlow` on PostgreSQL, RabbitMQ and a mail server, all real, and what happens when each of them is not there.

#[path = "parts/again.rs"]
mod again;
#[path = "parts/answers.rs"]
mod answers;
#[path = "parts/broker.rs"]
mod broker;
#[path = "parts/copies.rs"]
mod copies;
#[path = "parts/doubts.rs"]
mod doubts;
#[path = "parts/health.rs"]
mod health;
#[path = "parts/http.rs"]
mod http;
#[path = "parts/ladder.rs"]
mod ladder;
#[path = "parts/outage.rs"]
mod outage;
#[path = "parts/post.rs"]
mod post;
#[path = "parts/secure.rs"]
mod secure;
#[path = "parts/stage.rs"]
mod stage;
#[path = "parts/workers.rs"]
mod workers;
