//! Topology changes and server checks, for `relevo topology` and `relevo doctor`.

use async_nats::jetstream::context::CreateStreamErrorKind;
use async_nats::jetstream::{ErrorCode, stream};
use async_trait::async_trait;
use relevo_core::administer::{Administer, Expectations, Piece, State};
use relevo_core::failure::Failure;
use relevo_core::operate::{Finding, Severity};

use crate::classify::{Error, api};
use crate::config::Config;
use crate::consumer;
use crate::examine;
use crate::link;
use crate::snapshot::{Snapshot, context};

/// Creates the configured topology and checks the server.
pub struct NatsAdmin {
    config: Config,
}

impl NatsAdmin {
    /// Validates the configuration and its topology. It sends no request to the server.
    pub fn new(config: Config) -> Result<Self, Error> {
        config.validate()?;
        config.topology.check()?;
        Ok(Self { config })
    }

    async fn seen(&self, addresses: &[String]) -> Result<Snapshot, Error> {
        let client = link::connect(&self.config).await?;
        let topology = &self.config.topology;
        let looked_at = |stream: &stream::Config| {
            topology.groups.iter().any(|group| group.stream == stream.name)
                || topology.streams.iter().any(|wanted| wanted.name == stream.name)
                || examine::reaches(&self.config, addresses, stream)
        };
        Snapshot::read(&client, &self.config, looked_at).await
    }

    async fn applied(&self) -> Result<Vec<Piece>, Error> {
        let seen = self.seen(&[]).await?;
        let before = self.config.topology.compared(&seen);
        let differs = |piece: &Piece| matches!(piece.state, State::Differs(_));
        let missing = |piece: &Piece| piece.state == State::Missing;
        if before.iter().any(differs) || !before.iter().any(missing) {
            return Ok(before);
        }
        self.make_streams(&seen).await?;
        for group in &self.config.topology.groups {
            consumer::declare(&self.config, group).await?;
        }
        // An old server accepts settings that it does not know, so the result is read back.
        let mut after = self.config.topology.compared(&self.seen(&[]).await?);
        for (piece, before) in after.iter_mut().zip(&before) {
            if missing(before) && piece.state == State::Same {
                piece.state = State::Made;
            }
        }
        Ok(after)
    }

    async fn make_streams(&self, seen: &Snapshot) -> Result<(), Error> {
        let client = link::connect(&self.config).await?;
        let context = context(&client, &self.config);
        let is_new = |name: &str| !seen.streams.contains_key(name);
        for stream in self.config.topology.streams.iter().filter(|stream| is_new(&stream.name)) {
            match context.create_stream(stream.config(seen.version)).await {
                Ok(_) => {}
                // Another process created it first with other settings: the comparison that follows reports them.
                Err(error) if is_taken(&error.kind()) => {}
                Err(error) => return Err(api("making a stream", error)),
            }
        }
        Ok(())
    }
}

fn not_looked_at(error: &Error) -> Finding {
    Finding {
        severity: Severity::Note,
        subject: "not-looked-at".to_owned(),
        seen: format!("streams and consumers were not looked at: {error} without an answer"),
        fix: Some(
            "give this login the right to publish to `$JS.API.STREAM.LIST` and `$JS.API.CONSUMER.LIST.*`, and to \
             subscribe to `_INBOX.>`"
                .to_owned(),
        ),
    }
}

fn is_taken(kind: &CreateStreamErrorKind) -> bool {
    matches!(kind, CreateStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NAME_EXIST)
}

#[async_trait]
impl Administer for NatsAdmin {
    async fn plan(&self) -> Result<Vec<Piece>, Failure> {
        Ok(self.config.topology.compared(&self.seen(&[]).await?))
    }

    async fn apply(&self) -> Result<Vec<Piece>, Failure> {
        Ok(self.applied().await?)
    }

    async fn examine(&self, expectations: &Expectations) -> Result<Vec<Finding>, Failure> {
        let seen = match self.seen(&expectations.addresses).await {
            Ok(seen) => seen,
            // The connection works, but the API does not respond. Usually a permission is missing, which the server
            // does not report.
            Err(error @ Error::Api { .. }) => return Ok(vec![not_looked_at(&error)]),
            Err(error) => return Err(error.into()),
        };
        let sync = examine::Sync::ask(&self.config, &seen).await;
        Ok(examine::examine(&self.config, expectations, &seen, &sync))
    }
}
