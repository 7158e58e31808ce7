//! The faults that a run injects.

use std::time::Duration;

use anyhow::Result;
use tokio::time::Instant;

use crate::consumers::HEARTBEAT_TTL;
use crate::process::Process;
use crate::relays::{CALL_TIMEOUT, LEASE, PUBLISH_TIMEOUT};
use crate::report::ProcessFaultCounts;
use crate::run::Run;
use relevo_core::random::SplitMix64;

/// A fault of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerFault {
    /// Killed with SIGKILL, and restarted.
    Kill,
    /// Suspended for longer than the timeout of a call, then resumed.
    Suspend,
    /// All connections are closed. New connections are accepted.
    Disconnect,
}

/// A fault of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProcessFault {
    /// Killed with SIGKILL.
    Kill,
    /// Suspended for longer than its lease, then resumed.
    Suspend,
    /// Stopped with SIGTERM.
    Stop,
}

/// A fault and its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Relay(ProcessFault),
    Consumer(ProcessFault),
    Database(ServerFault),
    Broker(ServerFault),
}

const ALL_FAULTS: [Fault; 12] = [
    Fault::Relay(ProcessFault::Kill),
    Fault::Consumer(ProcessFault::Kill),
    Fault::Broker(ServerFault::Disconnect),
    Fault::Relay(ProcessFault::Suspend),
    Fault::Consumer(ProcessFault::Suspend),
    Fault::Broker(ServerFault::Kill),
    Fault::Database(ServerFault::Kill),
    Fault::Consumer(ProcessFault::Stop),
    Fault::Broker(ServerFault::Suspend),
    Fault::Database(ServerFault::Disconnect),
    Fault::Relay(ProcessFault::Stop),
    Fault::Database(ServerFault::Suspend),
];

impl Fault {
    /// Chooses a fault at random: often one of a process, rarely one with a slow recovery.
    fn random(random: &mut SplitMix64) -> Self {
        let process_fault = match random.below(5) {
            0..=1 => ProcessFault::Kill,
            2..=3 => ProcessFault::Suspend,
            _ => ProcessFault::Stop,
        };
        let fault = match random.below(6) {
            0..=3 => ServerFault::Disconnect,
            4 => ServerFault::Suspend,
            _ => ServerFault::Kill,
        };
        match random.below(18) {
            0..=4 => Self::Relay(process_fault),
            5..=9 => Self::Consumer(process_fault),
            10..=11 => Self::Database(ServerFault::Kill),
            12 => Self::Database(fault),
            _ => Self::Broker(fault),
        }
    }
}

impl Run {
    /// Injects one fault: first each kind once, then random ones. A fault without a possible target is skipped.
    pub(crate) async fn fault(&mut self, round: usize) -> Result<()> {
        let fault = match ALL_FAULTS.get(round) {
            // The errors of broken consumers show when the consumers die.
            _ if self.broken_consumers => {
                Fault::Consumer(if round.is_multiple_of(2) { ProcessFault::Kill } else { ProcessFault::Suspend })
            }
            Some(fault) => *fault,
            None => Fault::random(&mut self.random),
        };
        match fault {
            Fault::Relay(process_fault) => {
                inject_process_fault(
                    &mut self.relays,
                    process_fault,
                    LEASE,
                    &mut self.fault_counts.relays,
                    &mut self.random,
                )
                .await?;
            }
            Fault::Consumer(process_fault) => {
                let of = &mut self.fault_counts.consumers;
                inject_process_fault(&mut self.consumers, process_fault, HEARTBEAT_TTL, of, &mut self.random).await?;
            }
            Fault::Database(fault) => {
                if let Some(server) = &self.server {
                    server.fault(fault, CALL_TIMEOUT.mul_f64(1.5), &mut self.random).await;
                    self.fault_counts.database.count(fault);
                }
            }
            Fault::Broker(fault) => {
                if self.broker.fault(fault, PUBLISH_TIMEOUT.mul_f64(1.5), &mut self.random).await {
                    self.fault_counts.broker.count(fault);
                }
            }
        }
        Ok(())
    }
}

/// Injects a fault into one of the processes, if any is in a suitable state. `silence_max` is how long others wait for
/// a silent process.
async fn inject_process_fault(
    processes: &mut [Process],
    process_fault: ProcessFault,
    silence_max: Duration,
    counts: &mut ProcessFaultCounts,
    random: &mut SplitMix64,
) -> Result<()> {
    let is_possible = |process: &Process| {
        if process_fault == ProcessFault::Kill { !process.has_ended() } else { process.is_running() }
    };
    let mut possible: Vec<&mut Process> = processes.iter_mut().filter(|process| is_possible(process)).collect();
    if possible.is_empty() {
        return Ok(());
    }
    let process = possible.swap_remove(random.below(u32::try_from(possible.len())?) as usize);
    match process_fault {
        ProcessFault::Kill => {
            process.kill9().await?;
            counts.killed += 1;
        }
        ProcessFault::Suspend => {
            process.freeze(Instant::now() + silence_max.mul_f64(1.3))?;
            counts.suspended += 1;
        }
        ProcessFault::Stop => {
            process.leave().await?;
            counts.stopped += 1;
        }
    }
    Ok(())
}
