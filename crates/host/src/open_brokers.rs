//! The open brokers of a process.

use std::sync::Arc;
use std::time::Duration;

use relevo_core::{Broker, BrokerAdapter, Failure};
use tokio::sync::OnceCell;

/// The open brokers of a process. Destinations with the same broker and the same settings share one.
#[derive(Default)]
pub struct OpenBrokers(Vec<SharedBroker>);

struct SharedBroker {
    adapter: Arc<dyn BrokerAdapter>,
    /// The shortest of all its destinations.
    publish_timeout: Duration,
    broker: OnceCell<Arc<dyn Broker>>,
}

impl OpenBrokers {
    /// Adds the broker of a destination with its publish timeout. It is opened by the first [`open`](Self::open).
    pub fn add(&mut self, adapter: &Arc<dyn BrokerAdapter>, publish_timeout: Duration) {
        if let Some(shared) = self.0.iter_mut().find(|shared| shared.adapter.is_same_broker(&**adapter)) {
            shared.publish_timeout = shared.publish_timeout.min(publish_timeout);
            return;
        }
        self.0.push(SharedBroker { adapter: Arc::clone(adapter), publish_timeout, broker: OnceCell::new() });
    }

    /// Returns the open broker. Concurrent callers wait for the first one; after a failure the next caller tries again.
    ///
    /// # Panics
    ///
    /// If the broker was not [added](Self::add).
    pub async fn open(&self, adapter: &dyn BrokerAdapter) -> Result<Arc<dyn Broker>, Failure> {
        let shared = self.0.iter().find(|shared| shared.adapter.is_same_broker(adapter));
        let shared = shared.expect("brokers are added before they are opened");
        let open = || shared.adapter.open(shared.publish_timeout);
        shared.broker.get_or_try_init(open).await.cloned()
    }

    /// Closes all open brokers.
    pub async fn close(&self) {
        for broker in self.0.iter().filter_map(|shared| shared.broker.get()) {
            broker.close().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use relevo_broker_embedded::Config;
    use relevo_core::AdapterConfig as _;

    use super::*;

    #[tokio::test]
    async fn destinations_with_the_same_settings_share_one_broker() {
        let path = std::env::temp_dir().join(format!("relevo-open-brokers-{}.db", std::process::id()));
        let adapter = || Config::new(&path).adapter().expect("a valid configuration");
        let mut brokers = OpenBrokers::default();
        brokers.add(&adapter(), Duration::from_secs(8));
        brokers.add(&adapter(), Duration::from_secs(4));
        let first = brokers.open(&*adapter()).await.expect("a new file");
        let second = brokers.open(&*adapter()).await.expect("the same file");
        assert!(Arc::ptr_eq(&first, &second));
        assert_eq!((brokers.0.len(), brokers.0[0].publish_timeout), (1, Duration::from_secs(4)));
        brokers.close().await;
        for suffix in ["", "-wal", "-shm"] {
            std::fs::remove_file(format!("{}{suffix}", path.display())).ok();
        }
    }
}
