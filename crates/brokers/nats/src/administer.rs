//! Topology changes and server checks, for `relevo topology` and `relevo doctor`.

use async_nats::jetstream::context::CreateStreamErrorKind;
use async_nats::jetstream::{ErrorCode, stream};
use async_trait::async_trait;
use relevo_core::broker::admin::{BrokerAdmin, ExamineContext, TopologyItem, TopologyStatus};
use relevo_core::failure::Failure;
use relevo_core::finding::{Finding, Severity};

use crate::classify::{Error, api};
use crate::config::Config;
use crate::connection;
use crate::consume;
use crate::examine;
use crate::server_state::{ServerState, context};

/// Creates the configured topology and checks the server.
pub struct Admin {
    config: Config,
}

impl Admin {
    /// Validates the configuration and its topology. It sends no request to the server.
    pub fn new(config: Config) -> Result<Self, Error> {
        config.validate()?;
        config.topology.validate()?;
        Ok(Self { config })
    }

    async fn server_state(&self, addresses: &[String]) -> Result<ServerState, Error> {
        let client = connection::connect(&self.config).await?;
        let topology = &self.config.topology;
        let looked_at = |stream: &stream::Config| {
            topology.groups.iter().any(|group| group.stream == stream.name)
                || topology.streams.iter().any(|wanted| wanted.name == stream.name)
                || examine::is_published_to(&self.config, addresses, stream)
        };
        ServerState::read(&client, &self.config, looked_at).await
    }

    async fn try_apply(&self) -> Result<Vec<TopologyItem>, Error> {
        let seen = self.server_state(&[]).await?;
        let before = self.config.topology.compare(&seen);
        let differs = |piece: &TopologyItem| matches!(piece.status, TopologyStatus::Different(_));
        let missing = |piece: &TopologyItem| piece.status == TopologyStatus::Missing;
        if before.iter().any(differs) || !before.iter().any(missing) {
            return Ok(before);
        }
        self.create_streams(&seen).await?;
        for group in &self.config.topology.groups {
            consume::declare_group(&self.config, group).await?;
        }
        // An old server accepts settings that it does not know, so the result is read back.
        let mut after = self.config.topology.compare(&self.server_state(&[]).await?);
        for (piece, before) in after.iter_mut().zip(&before) {
            if missing(before) && piece.status == TopologyStatus::Unchanged {
                piece.status = TopologyStatus::Created;
            }
        }
        Ok(after)
    }

    async fn create_streams(&self, seen: &ServerState) -> Result<(), Error> {
        let client = connection::connect(&self.config).await?;
        let context = context(&client, &self.config);
        let is_new = |name: &str| !seen.streams.contains_key(name);
        for stream in self.config.topology.streams.iter().filter(|stream| is_new(&stream.name)) {
            match context.create_stream(stream.config(seen.version)).await {
                Ok(_) => {}
                // Another process created it first with other settings: the comparison that follows reports them.
                Err(error) if already_exists(&error.kind()) => {}
                Err(error) => return Err(api("making a stream", error)),
            }
        }
        Ok(())
    }
}

fn not_examined(error: &Error) -> Finding {
    Finding {
        severity: Severity::Note,
        subject: "not-looked-at".to_owned(),
        detail: format!("streams and consumers were not looked at: {error} without an answer"),
        fix: Some(
            "give this login the right to publish to `$JS.API.STREAM.LIST` and `$JS.API.CONSUMER.LIST.*`, and to \
             subscribe to `_INBOX.>`"
                .to_owned(),
        ),
    }
}

fn already_exists(kind: &CreateStreamErrorKind) -> bool {
    matches!(kind, CreateStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NAME_EXIST)
}

#[async_trait]
impl BrokerAdmin for Admin {
    async fn plan(&self) -> Result<Vec<TopologyItem>, Failure> {
        Ok(self.config.topology.compare(&self.server_state(&[]).await?))
    }

    async fn apply(&self) -> Result<Vec<TopologyItem>, Failure> {
        Ok(self.try_apply().await?)
    }

    async fn examine(&self, expectations: &ExamineContext) -> Result<Vec<Finding>, Failure> {
        let seen = match self.server_state(&expectations.addresses).await {
            Ok(seen) => seen,
            // The connection works, but the API does not respond. Usually a permission is missing, which the server
            // does not report.
            Err(error @ Error::Api { .. }) => return Ok(vec![not_examined(&error)]),
            Err(error) => return Err(error.into()),
        };
        let sync = examine::FlushInterval::query(&self.config, &seen).await;
        Ok(examine::examine(&self.config, expectations, &seen, &sync))
    }
}
