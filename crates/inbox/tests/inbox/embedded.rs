//! The runtime on the embedded broker.

use std::sync::Arc;
use std::time::Duration;

use relevo_broker_embedded::{BrokerFile, Config as BrokerConfig, ConsumerOptions, Group};
use relevo_core::broker::OutcomeReceiver;
use relevo_core::inbox::InboxRetention;
use relevo_core::{Broker as _, Draft, MessageId, Publication};
use relevo_inbox::{Config, ConsumerRuntime, MessageOrder};
use relevo_store_memory::{Config as StoreConfig, Database};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::harness::{Action, scripted, transaction_handlers};

const MESSAGES: u32 = 200;

fn publication(number: u32) -> Publication {
    let draft = Draft::json("orders", &format!("k{}", number % 10), "OrderPlaced", number.to_string());
    let message = draft.into_message(MessageId::v7(u64::from(number), [7; 10]), jiff::Timestamp::now());
    Publication {
        message: Arc::new(message),
        address: "orders".into(),
        headers: Arc::default(),
        seq: i64::from(number),
        epoch: 1,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_members_share_lanes_and_apply_each_message_once_in_key_order() {
    let folder = std::env::temp_dir().join(format!("relevo-inbox-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let broker = BrokerFile::open(BrokerConfig::new(folder.join("broker.db"))).await.unwrap();
    broker.declare_group(&Group::new("billing", ["orders"])).await.unwrap();
    let batch: Vec<Publication> = (0..MESSAGES).map(publication).collect();
    let reports = OutcomeReceiver::default();
    broker.publish(&batch, &reports.sender(0)).await;
    assert!(reports.take().into_iter().all(|(_, _, outcome)| outcome.is_ok()));

    let outbox = Database::new(StoreConfig::default());
    let (stop, mut processes) = (CancellationToken::new(), JoinSet::new());
    for name in ["one", "two"] {
        let consumer = broker.consumer("billing", ConsumerOptions::default()).await.unwrap();
        let config = Config {
            member_name: name.to_owned(),
            order: MessageOrder::ByKey { concurrency: 4 },
            batch_max: 10,
            ..Config::default()
        };
        let inbox = Arc::new(outbox.inbox("billing", InboxRetention::default()));
        let runtime =
            ConsumerRuntime::new(inbox, Arc::new(consumer), transaction_handlers(&scripted(|_| Action::Done)), config);
        processes.spawn(runtime.run(stop.clone()));
    }
    let all = async {
        while outbox.effects().len() < MESSAGES as usize {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), all).await.expect("all are handled");
    stop.cancel();
    while let Some(ended) = processes.join_next().await {
        ended.unwrap().unwrap();
    }
    let ledger = outbox.effects();
    assert_eq!(ledger.len(), MESSAGES as usize);
    for key in 0..10 {
        let of = ledger.iter().filter_map(|line| line.strip_prefix(&format!("k{key}:")));
        let numbers: Vec<u32> = of.map(|number| number.parse().unwrap()).collect();
        assert!(numbers.is_sorted_by(|one, other| one < other), "{key}: {numbers:?}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
