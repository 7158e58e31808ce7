//! What is done to those on stage.

use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, sleep};

use crate::far::Blow;
use crate::process::Process;
use crate::relays::{LEASE, PUBLISH_DEADLINE};
use crate::stage::Stage;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    Kill,
    Freeze,
    Leave,
    Database,
    Broker(Blow),
}

const EACH: [Harm; 7] = [
    Harm::Kill,
    Harm::Broker(Blow::Cut),
    Harm::Freeze,
    Harm::Broker(Blow::Kill),
    Harm::Database,
    Harm::Broker(Blow::Freeze),
    Harm::Leave,
];

impl Stage {
    /// Does one harm: at first one of each kind, then whatever chance says.
    pub(crate) async fn harm(&mut self, round: usize) -> Result<()> {
        let harm = EACH.get(round).copied().unwrap_or_else(|| match self.random.below(18) {
            0..=3 => Harm::Kill,
            4..=7 => Harm::Freeze,
            8..=9 => Harm::Leave,
            10..=11 => Harm::Database,
            12..=15 => Harm::Broker(Blow::Cut),
            16 => Harm::Broker(Blow::Freeze),
            _ => Harm::Broker(Blow::Kill),
        });
        match harm {
            Harm::Database => self.harm_database().await,
            Harm::Broker(blow) => self.harm_broker(blow).await,
            Harm::Kill | Harm::Freeze | Harm::Leave => return self.harm_relay(harm).await,
        }
        Ok(())
    }

    async fn harm_database(&mut self) {
        let Some(server) = &self.server else { return };
        server.kill9().await;
        sleep(Duration::from_millis(self.random.below(500).into())).await;
        server.start_again().await;
        self.deeds.database_killed += 1;
    }

    async fn harm_broker(&mut self, blow: Blow) {
        if !self.broker.blow(blow, PUBLISH_DEADLINE.mul_f64(1.5), &mut self.random).await {
            return;
        }
        match blow {
            Blow::Kill => self.deeds.broker_killed += 1,
            Blow::Freeze => self.deeds.broker_frozen += 1,
            Blow::Cut => self.deeds.connections_cut += 1,
        }
    }

    async fn harm_relay(&mut self, harm: Harm) -> Result<()> {
        let at_hand = |relay: &Process| if harm == Harm::Kill { !relay.is_gone() } else { relay.is_awake() };
        let possible: Vec<usize> = (0..self.relays.len()).filter(|at| at_hand(&self.relays[*at])).collect();
        if possible.is_empty() {
            return Ok(());
        }
        let relay = &mut self.relays[possible[self.random.below(u32::try_from(possible.len())?) as usize]];
        match harm {
            Harm::Kill => {
                relay.kill9().await?;
                self.deeds.killed += 1;
            }
            Harm::Freeze => {
                relay.freeze(Instant::now() + LEASE.mul_f64(1.3))?;
                self.deeds.frozen += 1;
            }
            Harm::Leave | Harm::Database | Harm::Broker(_) => {
                relay.leave().await?;
                self.deeds.left += 1;
            }
        }
        Ok(())
    }
}
