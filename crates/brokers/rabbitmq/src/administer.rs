//! Topology changes and broker checks, for `relevo topology` and `relevo doctor`.

use async_trait::async_trait;
use relevo_core::broker::admin::{BrokerAdmin, ExamineContext, TopologyItem, TopologyStatus};
use relevo_core::failure::Failure;
use relevo_core::finding::Finding;

use crate::classify::Error;
use crate::config::Config;
use crate::examine;
use crate::management::ManagementClient;
use crate::metrics::Remembered;
use crate::topology::{Declarations, TopologyConnection, TopologyPart};

/// Creates the configured topology and checks the broker.
pub struct Admin {
    pub(crate) config: Config,
    pub(crate) declarations: Declarations,
    pub(crate) management: Option<ManagementClient>,
    pub(crate) remembered: Remembered,
}

impl Admin {
    /// Validates the configuration and its topology. It sends no request to the broker.
    pub fn new(config: Config) -> Result<Self, Error> {
        config.validate()?;
        config.topology.validate().map_err(|wrong| Error::Config(wrong.to_string()))?;
        let management = ManagementClient::new(&config)?;
        if management.is_none() && !config.topology.policies.is_empty() {
            return Err(Error::Config("policies need a `management_url`".to_owned()));
        }
        let declared = config.topology.declarations();
        Ok(Self { config, declarations: declared, management, remembered: Remembered::default() })
    }

    async fn try_plan(&self) -> Result<Vec<TopologyItem>, Error> {
        if let Some(management) = &self.management {
            let seen = management.server_state().await?;
            return Ok(self.declarations.parts().iter().map(|part| part.compare(&seen)).collect());
        }
        let maker = TopologyConnection::open(&self.config).await?;
        let pieces = self.existing_items(&maker).await;
        maker.close().await;
        pieces
    }

    /// The plan without the management API: it shows only whether exchanges and queues exist.
    async fn existing_items(&self, maker: &TopologyConnection) -> Result<Vec<TopologyItem>, Error> {
        let mut pieces = Vec::new();
        for part in self.declarations.parts() {
            let there = match part {
                TopologyPart::Exchange(exchange) => Some(maker.has_exchange(&exchange.name).await?),
                TopologyPart::Queue(queue) => Some(maker.has_queue(&queue.name).await?),
                // AMQP has no request for these.
                TopologyPart::Flag(_) | TopologyPart::Policy(_) | TopologyPart::Binding(_) => None,
            };
            let (state, doubt) = match there {
                Some(false) => (TopologyStatus::Missing, ""),
                Some(true) => (
                    TopologyStatus::Unknown,
                    " (it is there; its settings cannot be compared without the management API)",
                ),
                None => (TopologyStatus::Unknown, " (it cannot be seen without the management API)"),
            };
            pieces.push(TopologyItem { name: format!("{}{doubt}", part.name()), status: state });
        }
        Ok(pieces)
    }

    async fn try_apply(&self) -> Result<Vec<TopologyItem>, Error> {
        let before = self.try_plan().await?;
        if before.iter().any(|piece| matches!(piece.status, TopologyStatus::Different(_))) {
            return Ok(before);
        }
        let all_there = !before.iter().any(|piece| piece.status == TopologyStatus::Missing);
        if all_there && self.management.is_some() {
            return Ok(before);
        }
        let maker = TopologyConnection::open(&self.config).await?;
        let made = self.create_missing(&maker, &before).await;
        maker.close().await;
        made?;
        // Read back the result instead of trusting the confirmation.
        let mut after = self.try_plan().await?;
        for ((part, piece), before) in self.declarations.parts().iter().zip(&mut after).zip(&before) {
            let state = match (&before.status, &piece.status) {
                (TopologyStatus::Missing, TopologyStatus::Unchanged | TopologyStatus::Unknown) => {
                    TopologyStatus::Created
                }
                // The broker compared the repeated declaration and accepted it.
                (TopologyStatus::Unknown, TopologyStatus::Unknown) if part.is_declared() => TopologyStatus::Unchanged,
                _ => continue,
            };
            *piece = TopologyItem { name: part.name(), status: state };
        }
        Ok(after)
    }

    /// Creates missing parts. Without the management API, existing parts are declared again first: if one differs, the
    /// broker refuses it and nothing is created. A binding that cannot be read is always declared; an existing one does
    /// not change.
    async fn create_missing(&self, maker: &TopologyConnection, before: &[TopologyItem]) -> Result<(), Error> {
        let parts = self.declarations.parts();
        let with_state = || parts.iter().zip(before).map(|(part, piece)| (part, &piece.status));
        for (part, _) in with_state().filter(|(_, state)| **state == TopologyStatus::Unknown) {
            match part {
                TopologyPart::Exchange(exchange) => maker.declare_exchange(exchange).await?,
                TopologyPart::Queue(queue) => maker.declare_queue(queue).await?,
                TopologyPart::Flag(_) | TopologyPart::Policy(_) | TopologyPart::Binding(_) => {}
            }
        }
        for (part, state) in with_state() {
            match part {
                TopologyPart::Binding(binding)
                    if matches!(state, TopologyStatus::Missing | TopologyStatus::Unknown) =>
                {
                    maker.declare_binding(binding).await?;
                }
                _ if *state != TopologyStatus::Missing => {}
                TopologyPart::Exchange(exchange) => maker.declare_exchange(exchange).await?,
                TopologyPart::Queue(queue) => maker.declare_queue(queue).await?,
                TopologyPart::Policy(policy) => {
                    let management = self.management.as_ref().expect("policies are refused without a management URL");
                    management.create_policy(policy).await?;
                }
                TopologyPart::Flag(_) | TopologyPart::Binding(_) => {}
            }
        }
        Ok(())
    }

    async fn try_examine(&self, expectations: &ExamineContext) -> Result<Vec<Finding>, Error> {
        match &self.management {
            Some(management) => {
                let seen = management.server_state().await?;
                Ok(examine::with_management(&self.config, expectations, &seen))
            }
            None => Ok(examine::without_management(&self.config)),
        }
    }
}

#[async_trait]
impl BrokerAdmin for Admin {
    async fn plan(&self) -> Result<Vec<TopologyItem>, Failure> {
        Ok(self.try_plan().await?)
    }

    async fn apply(&self) -> Result<Vec<TopologyItem>, Failure> {
        Ok(self.try_apply().await?)
    }

    async fn examine(&self, expectations: &ExamineContext) -> Result<Vec<Finding>, Failure> {
        Ok(self.try_examine(expectations).await?)
    }
}
