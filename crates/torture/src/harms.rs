//! The faults that a run injects.

use std::time::Duration;

use anyhow::Result;
use tokio::time::Instant;

use crate::consumers::BEAT_LASTS;
use crate::process::Process;
use crate::relays::{CALL_DEADLINE, LEASE, PUBLISH_DEADLINE};
use crate::report::Ended;
use crate::stage::Stage;
use relevo_core::random::SplitMix64;

/// A fault of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blow {
    /// Killed with SIGKILL, and restarted.
    Kill,
    /// Suspended for longer than the deadline of a call, then resumed.
    Freeze,
    /// All connections are cut. New connections are accepted.
    Cut,
}

/// A fault of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    /// Killed with SIGKILL.
    Kill,
    /// Suspended for longer than its lease, then resumed.
    Freeze,
    /// Stopped with SIGTERM.
    Leave,
}

/// A fault and its target.
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
    /// Chooses a fault at random: often one of a process, rarely one with a slow recovery.
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
    /// Injects one fault: first each kind once, then random ones. A fault without a possible target is skipped.
    pub(crate) async fn harm(&mut self, round: usize) -> Result<()> {
        let harm = match EACH.get(round) {
            // The errors of careless consumers show when the consumers die.
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

/// Injects a fault into one of the processes, if any is in a suitable state. `lasts` is how long others wait for a
/// silent process.
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
