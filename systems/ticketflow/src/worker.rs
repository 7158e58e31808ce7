//! The worker: two consumers of the same events. One sends e-mails, the other counts figures.
//!
//! Any number of workers may run. They share the e-mails. One of them at a time counts the figures, in the order of each ticket's
//! events; if it stops, another one continues.

mod books;
mod figures;
mod heart;
mod notify;
mod postgres;
mod sqlite;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use relevo::core::AfterDead;
use relevo::core::inbox::retry_policy::HandlerRetryPolicy;
use relevo::core::inbox::{Inbox, InboxRetention};
use relevo::core::retry::RetryPolicy;
use relevo::inbox::{
    Config as Consumer, ConsumerRuntime, ConsumerStatus, DeadLetterCopy, Handlers, MessageOrder, RetryStorage,
};
use relevo::stores::{postgres as pg, sqlite as lite};
use sqlx::postgres::PgConnectOptions;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::books::Books;
use self::figures::Count;
use self::heart::Heart;
use self::notify::Notify;
use crate::config::{self, Config, Database};
use crate::desk;
use crate::flow::{Broker, METRICS, NOTIFICATIONS, dead_queue};
use crate::mail::{self, Sender};

/// The maximum number of durable retries of an e-mail with the embedded broker. With RabbitMQ it is the number of retry queues.
const TRIES_MAX: u32 = 10;

/// The time that a handler may take beyond the mail server's timeouts.
const MARGIN: Duration = Duration::from_secs(5);

/// A worker that is not running yet.
pub struct Worker {
    parts: JoinSet<Result<()>>,
    begin: CancellationToken,
    stop: CancellationToken,
    stats: Vec<Arc<ConsumerStatus>>,
    heart: Heart,
}

impl Worker {
    /// Opens inboxes and queues. `name` identifies this process for operators.
    pub async fn open(config: &Config, broker: &Broker, name: &str) -> Result<Self> {
        let keeping = InboxRetention::default();
        match &config.database {
            Database::Postgres(url) => {
                let options: PgConnectOptions = url.expose().parse().context("the URL of the database is wrong")?;
                let handlers_max = u32::try_from(2 * config.worker.concurrency)?;
                let inbox =
                    pg::inbox::Config { handler_connections_max: handlers_max, ..pg::inbox::Config::new(options) };
                let notifications = pg::inbox::Inbox::open(&inbox, NOTIFICATIONS, keeping).await?;
                let metrics = notifications.for_consumer(METRICS, keeping);
                Self::with(config, broker, name, notifications, metrics).await
            }
            Database::Sqlite(path) => {
                let inbox = lite::inbox::Config::new(path);
                let notifications = lite::inbox::Inbox::open(&inbox, NOTIFICATIONS, keeping).await?;
                let metrics = notifications.for_consumer(METRICS, keeping);
                Self::with(config, broker, name, notifications, metrics).await
            }
        }
    }

    async fn with<I>(config: &Config, broker: &Broker, name: &str, notifications: I, metrics: I) -> Result<Self>
    where
        I: Inbox,
        I::Transaction: Books,
    {
        let heart = Heart::new(config.worker.heartbeat);
        let recipients = desk::recipients(&config.database).await?;
        let post = mail::open(&config.mail, config.worker.patience(), &recipients).await?;
        let notify = Notify::new(post, Sender::new(&config.letters)?, heart.pulse());
        let notifications = ConsumerRuntime::new(
            Arc::new(notifications),
            broker.consumer(NOTIFICATIONS, name).await?,
            Handlers::new().call_handler("ticket.*", notify),
            of_emails(config, broker, name),
        );
        let metrics = ConsumerRuntime::new(
            Arc::new(metrics),
            broker.consumer(METRICS, name).await?,
            Handlers::new().handler("ticket.*", Count::new(heart.pulse())),
            of_figures(broker, name),
        );
        let stats = vec![notifications.status(), metrics.status()];
        let (begin, stop) = (CancellationToken::new(), CancellationToken::new());
        let mut parts = JoinSet::new();
        for runtime in [notifications, metrics] {
            let (begin, stop) = (begin.clone(), stop.clone());
            parts.spawn(async move {
                begin.cancelled().await;
                Ok(runtime.run(stop).await?)
            });
        }
        Ok(Self { parts, begin, stop, stats, heart })
    }

    /// The statistics of its consumers. They stay valid after the worker has ended.
    pub fn stats(&self) -> Vec<Arc<ConsumerStatus>> {
        self.stats.clone()
    }

    /// Handles events until `stop` is cancelled. If a consumer fails permanently, the other stops too, and the error is returned.
    pub async fn run(mut self, stop: CancellationToken) -> Result<()> {
        self.begin.cancel();
        let (heart, stats) = (self.heart, self.stats);
        self.parts.spawn(heart.beat(stats, self.stop.clone()));
        let mut ended = Ok(());
        loop {
            tokio::select! {
                () = stop.cancelled(), if !self.stop.is_cancelled() => self.stop.cancel(),
                part = self.parts.join_next() => match part {
                    None => return ended,
                    Some(part) => {
                        self.stop.cancel();
                        ended = ended.and(part.context("a consumer panicked").and_then(|part| part));
                    }
                },
            }
        }
    }
}

/// E-mails: in any order, with the mail server called outside of any transaction, and long delays in the broker's retry queues.
fn of_emails(config: &Config, broker: &Broker, name: &str) -> Consumer {
    let ladder = match &config.broker {
        config::Broker::Embedded(_) => None,
        config::Broker::RabbitMq { ladder, .. } => Some(ladder),
    };
    let tries = |more: usize| u32::try_from(1 + config.worker.retries.len() + more).unwrap_or(TRIES_MAX);
    let ladder = ladder.filter(|rungs| !rungs.is_empty());
    let durable = match ladder {
        // A message waits in one retry queue after the other, and is dead-lettered after the last.
        Some(rungs) => RetryPolicy { attempts_max: tries(rungs.len()), ..RetryPolicy::with_delays(rungs.clone()) },
        None => RetryPolicy { attempts_max: TRIES_MAX, ..HandlerRetryPolicy::default().durable },
    };
    // The handler classifies a mail server that hangs.
    let deadline = mail::longest(&config.mail, config.worker.patience()) + MARGIN;
    Consumer {
        order: MessageOrder::None { concurrency: config.worker.concurrency },
        handler_timeout: deadline,
        // An interrupted e-mail may have been accepted, and would be sent again.
        shutdown_grace: deadline,
        retry_storage: if ladder.is_some() { RetryStorage::Broker } else { RetryStorage::Inbox },
        retry: HandlerRetryPolicy { in_memory: config.worker.retries.clone(), durable },
        ..shared(NOTIFICATIONS, broker, name)
    }
}

/// Figures: each ticket's events in order. An event that cannot be counted does not block the ticket: the next one has its state.
fn of_figures(broker: &Broker, name: &str) -> Consumer {
    Consumer {
        // One transaction at a time. All opened tickets update the same row of the day, so concurrent transactions would only wait for
        // it, and two that update several agents in different orders would deadlock.
        order: MessageOrder::ByKey { concurrency: 1 },
        after_dead: AfterDead::Continue,
        batch_max: 50,
        ..shared(METRICS, broker, name)
    }
}

fn shared(queue: &str, broker: &Broker, name: &str) -> Consumer {
    let dead_letter_to = match broker {
        // The store has the dead letters. A copy makes them visible in RabbitMQ too.
        Broker::RabbitMq { .. } => {
            Some(DeadLetterCopy { broker: broker.publisher(), address: format!("/{}", dead_queue(queue)).into() })
        }
        Broker::Embedded(_) => None,
    };
    Consumer { member_name: name.to_owned(), dead_letter_copy: dead_letter_to, ..Consumer::default() }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::config::{Mail, Secret};

    #[tokio::test]
    async fn an_email_that_is_being_sent_is_finished_at_a_shutdown() {
        let folder = std::env::temp_dir().join(format!("ticketflow-worker-{}", Uuid::new_v4()));
        let mut config = Config::embedded(&folder);
        config.mail = Mail::Smtp { url: Secret::new("smtp://mail"), ca_file: None };
        config.make_folders().unwrap();
        let broker = Broker::open(&config.broker).await.unwrap();
        let emails = of_emails(&config, &broker, "a test");
        assert!(
            emails.shutdown_grace >= mail::longest(&config.mail, config.worker.patience()),
            "{:?}",
            emails.shutdown_grace
        );
        assert_eq!(emails.shutdown_grace, emails.handler_timeout);
        broker.close().await;
        std::fs::remove_dir_all(folder).unwrap();
    }
}
