//! Topology changes and broker checks, for `relevo topology` and `relevo doctor`.

use async_trait::async_trait;
use relevo_core::administer::{Administer, Expectations, Piece, State};
use relevo_core::failure::Failure;
use relevo_core::operate::Finding;

use crate::classify::Error;
use crate::config::Config;
use crate::examine;
use crate::management::Management;
use crate::topology::{Declared, Maker, Part};
use crate::vitals::Remembered;

/// Creates the configured topology and checks the broker.
pub struct RabbitAdmin {
    pub(crate) config: Config,
    pub(crate) declared: Declared,
    pub(crate) management: Option<Management>,
    pub(crate) remembered: Remembered,
}

impl RabbitAdmin {
    /// Validates the configuration and its topology. It sends no request to the broker.
    pub fn new(config: Config) -> Result<Self, Error> {
        config.check()?;
        config.topology.check().map_err(|wrong| Error::Config(wrong.to_string()))?;
        let management = Management::new(&config)?;
        if management.is_none() && !config.topology.policies.is_empty() {
            return Err(Error::Config("policies need a `management_url`".to_owned()));
        }
        let declared = config.topology.declared();
        Ok(Self { config, declared, management, remembered: Remembered::default() })
    }

    async fn planned(&self) -> Result<Vec<Piece>, Error> {
        if let Some(management) = &self.management {
            let seen = management.snapshot().await?;
            return Ok(self.declared.parts().iter().map(|part| part.compared(&seen)).collect());
        }
        let maker = Maker::open(&self.config).await?;
        let pieces = self.found(&maker).await;
        maker.close().await;
        pieces
    }

    /// The plan without the management API: it shows only whether exchanges and queues exist.
    async fn found(&self, maker: &Maker) -> Result<Vec<Piece>, Error> {
        let mut pieces = Vec::new();
        for part in self.declared.parts() {
            let there = match part {
                Part::Exchange(exchange) => Some(maker.has_exchange(&exchange.name).await?),
                Part::Queue(queue) => Some(maker.has_queue(&queue.name).await?),
                // AMQP has no request for these.
                Part::Flag(_) | Part::Policy(_) | Part::Binding(_) => None,
            };
            let (state, doubt) = match there {
                Some(false) => (State::Missing, ""),
                Some(true) => {
                    (State::Unseen, " (it is there; its settings cannot be compared without the management API)")
                }
                None => (State::Unseen, " (it cannot be seen without the management API)"),
            };
            pieces.push(Piece { name: format!("{}{doubt}", part.name()), state });
        }
        Ok(pieces)
    }

    async fn applied(&self) -> Result<Vec<Piece>, Error> {
        let before = self.planned().await?;
        if before.iter().any(|piece| matches!(piece.state, State::Differs(_))) {
            return Ok(before);
        }
        let all_there = !before.iter().any(|piece| piece.state == State::Missing);
        if all_there && self.management.is_some() {
            return Ok(before);
        }
        let maker = Maker::open(&self.config).await?;
        let made = self.make(&maker, &before).await;
        maker.close().await;
        made?;
        // Read back the result instead of trusting the confirmation.
        let mut after = self.planned().await?;
        for ((part, piece), before) in self.declared.parts().iter().zip(&mut after).zip(&before) {
            let state = match (&before.state, &piece.state) {
                (State::Missing, State::Same | State::Unseen) => State::Made,
                // The broker compared the repeated declaration and accepted it.
                (State::Unseen, State::Unseen) if part.is_declared() => State::Same,
                _ => continue,
            };
            *piece = Piece { name: part.name(), state };
        }
        Ok(after)
    }

    /// Creates missing parts. Without the management API, existing parts are declared again first: if one differs, the
    /// broker refuses it and nothing is created. A binding that cannot be read is always declared; an existing one does
    /// not change.
    async fn make(&self, maker: &Maker, before: &[Piece]) -> Result<(), Error> {
        let parts = self.declared.parts();
        let with_state = || parts.iter().zip(before).map(|(part, piece)| (part, &piece.state));
        for (part, _) in with_state().filter(|(_, state)| **state == State::Unseen) {
            match part {
                Part::Exchange(exchange) => maker.exchange(exchange).await?,
                Part::Queue(queue) => maker.queue(queue).await?,
                Part::Flag(_) | Part::Policy(_) | Part::Binding(_) => {}
            }
        }
        for (part, state) in with_state() {
            match part {
                Part::Binding(binding) if matches!(state, State::Missing | State::Unseen) => {
                    maker.binding(binding).await?;
                }
                _ if *state != State::Missing => {}
                Part::Exchange(exchange) => maker.exchange(exchange).await?,
                Part::Queue(queue) => maker.queue(queue).await?,
                Part::Policy(policy) => {
                    let management = self.management.as_ref().expect("policies are refused without a management URL");
                    management.make_policy(policy).await?;
                }
                Part::Flag(_) | Part::Binding(_) => {}
            }
        }
        Ok(())
    }

    async fn examined(&self, expectations: &Expectations) -> Result<Vec<Finding>, Error> {
        match &self.management {
            Some(management) => {
                let seen = management.snapshot().await?;
                Ok(examine::with_management(&self.config, expectations, &seen))
            }
            None => Ok(examine::without_management(&self.config)),
        }
    }
}

#[async_trait]
impl Administer for RabbitAdmin {
    async fn plan(&self) -> Result<Vec<Piece>, Failure> {
        Ok(self.planned().await?)
    }

    async fn apply(&self) -> Result<Vec<Piece>, Failure> {
        Ok(self.applied().await?)
    }

    async fn examine(&self, expectations: &Expectations) -> Result<Vec<Finding>, Failure> {
        Ok(self.examined(expectations).await?)
    }
}
