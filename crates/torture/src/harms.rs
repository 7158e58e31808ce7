//! What is done to those on stage.

use std::time::Duration;

use anyhow::Result;
use tokio::time::Instant;

use crate::consumers::BEAT_LASTS;
use crate::process::Process;
use crate::relays::{CALL_DEADLINE, LEASE, PUBLISH_DEADLINE};
use crate::report::Ended;
use crate::stage::Stage;
use relevo_core::random::SplitMix64;

/// What is done to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blow {
    /// Killed with -9, and started again.
    Kill,
    /// Stopped for longer than a call may take, and continued.
    Freeze,
    /// Every connection is cut; new ones are welcome.
    Cut,
}

/// What is done to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    /// Killed with -9.
    Kill,
    /// Stopped for longer than its lease lasts, and continued.
    Freeze,
    /// Asked to leave.
    Leave,
}

/// What is done, and to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    Relay(Deed),
    Consumer(Deed),
    Database(Blow),
    Broker(Blow),
}

const EACH: [Harm; 12] = [
    Harm::Relay(Deed::Kill),
    Harm::Consumer(Deed::Kill),
    Harm::Broker(Blow::Cut),
    Harm::Relay(Deed::Freeze),
    Harm::Consumer(Deed::Freeze),
    Harm::Broker(Blow::Kill),
    Harm::Database(Blow::Kill),
    Harm::Consumer(Deed::Leave),
    Harm::Broker(Blow::Freeze),
    Harm::Database(Blow::Cut),
    Harm::Relay(Deed::Leave),
    Harm::Database(Blow::Freeze),
];

impl Harm {
    /// Whatever chance says: often to processes, seldom what takes long to mend.
    fn by_chance(random: &mut SplitMix64) -> Self {
        let deed = match random.below(5) {
            0..=1 => Deed::Kill,
            2..=3 => Deed::Freeze,
            _ => Deed::Leave,
        };
        let blow = match random.below(6) {
            0..=3 => Blow::Cut,
            4 => Blow::Freeze,
            _ => Blow::Kill,
        };
        match random.below(18) {
            0..=4 => Self::Relay(deed),
            5..=9 => Self::Consumer(deed),
            10..=11 => Self::Database(Blow::Kill),
            12 => Self::Database(blow),
            _ => Self::Broker(blow),
        }
    }
}

impl Stage {
    /// Does one harm: at first one of each kind, then whatever chance says. Some have nobody to be done to.
    pub(crate) async fn harm(&mut self, round: usize) -> Result<()> {
        let harm = match EACH.get(round) {
            // What careless consumers get wrong shows when they die.
            _ if self.careless => Harm::Consumer(if round.is_multiple_of(2) { Deed::Kill } else { Deed::Freeze }),
            Some(harm) => *harm,
            None => Harm::by_chance(&mut self.random),
        };
        match harm {
            Harm::Relay(deed) => {
                harm_one(&mut self.relays, deed, LEASE, &mut self.deeds.relays, &mut self.random).await?;
            }
            Harm::Consumer(deed) => {
                let of = &mut self.deeds.consumers;
                harm_one(&mut self.consumers, deed, BEAT_LASTS, of, &mut self.random).await?;
            }
            Harm::Database(blow) => {
                if let Some(server) = &self.server {
                    server.blow(blow, CALL_DEADLINE.mul_f64(1.5), &mut self.random).await;
                    self.deeds.database.count(blow);
                }
            }
            Harm::Broker(blow) => {
                if self.broker.blow(blow, PUBLISH_DEADLINE.mul_f64(1.5), &mut self.random).await {
                    self.deeds.broker.count(blow);
                }
            }
        }
        Ok(())
    }
}

/// Does it to one of them, if there is any that it can be done to. `lasts` is how long others wait for who is silent.
async fn harm_one(
    processes: &mut [Process],
    deed: Deed,
    lasts: Duration,
    ended: &mut Ended,
    random: &mut SplitMix64,
) -> Result<()> {
    let at_hand = |process: &Process| if deed == Deed::Kill { !process.is_gone() } else { process.is_awake() };
    let mut possible: Vec<&mut Process> = processes.iter_mut().filter(|process| at_hand(process)).collect();
    if possible.is_empty() {
        return Ok(());
    }
    let process = possible.swap_remove(random.below(u32::try_from(possible.len())?) as usize);
    match deed {
        Deed::Kill => {
            process.kill9().await?;
            ended.killed += 1;
        }
        Deed::Freeze => {
            process.freeze(Instant::now() + lasts.mul_f64(1.3))?;
            ended.frozen += 1;
        }
        Deed::Leave => {
            process.leave().await?;
            ended.left += 1;
        }
    }
    Ok(())
}
