//! The conformance suite of replay sources.

use async_trait::async_trait;
use relevo_broker_embedded::{BrokerFile, Config, ConsumerOptions, Error, Group};
use relevo_conformance::replay::Harness;
use relevo_conformance::replay::harness::{publications, receive};
use relevo_core::broker::OutcomeReceiver;
use relevo_core::replay_source::ReplaySource;
use relevo_core::{Broker as _, Delivery, Draft, MessageId};

use crate::directory::Directory;

struct Embedded {
    directory: Directory,
    published: u64,
}

async fn start() -> Embedded {
    let harness = Embedded { directory: Directory::new(), published: 0 };
    let group = Group { lanes: 8, ..Group::new("billing", ["orders.*"]) };
    harness.open().await.declare_group(&group).await.expect("a group");
    harness
}

impl Embedded {
    async fn open(&self) -> BrokerFile {
        let config = Config::new(self.directory.path().join("broker.db"));
        BrokerFile::open(config).await.expect("the file can be opened")
    }
}

#[async_trait]
impl Harness for Embedded {
    async fn source(&self) -> Box<dyn ReplaySource> {
        Box::new(self.open().await.replay_log("billing").await.expect("a group"))
    }

    async fn publish(&mut self, drafts: Vec<Draft>) -> Vec<MessageId> {
        let batch = publications(drafts, self.published + 1);
        self.published += batch.len() as u64;
        let reports = OutcomeReceiver::default();
        self.open().await.publish(&batch, &reports.sender(1)).await;
        assert!(reports.take().iter().all(|(_, _, outcome)| outcome.is_ok()));
        batch.iter().map(|publication| publication.message.id).collect()
    }

    async fn received(&self) -> Option<Vec<Delivery>> {
        let count = usize::try_from(self.published).expect("a small number");
        let consumer = self.open().await.consumer("billing", ConsumerOptions::default()).await.expect("a consumer");
        Some(receive(&consumer, count).await)
    }
}

relevo_conformance::replay_suite!(start);

#[tokio::test]
async fn a_log_is_read_as_an_existing_group_sees_it() {
    let mut harness = start().await;
    harness
        .publish(vec![Draft::json("bills", "b-1", "Made", "{}"), Draft::json("orders.eu", "k", "Placed", "{}")])
        .await;
    let source = harness.source().await;
    assert_eq!(
        source.count(&relevo_core::replay_source::ReplayFilter::default()).await.expect("a file"),
        1,
        "its addresses"
    );
    assert!(matches!(harness.open().await.replay_log("unknown").await, Err(Error::GroupNotFound(_))));
}
