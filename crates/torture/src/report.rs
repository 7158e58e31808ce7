//! The printed report of a run.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::faults::ServerFault;
use crate::oracle::{BrokerFindings, ConsumerFindings};

/// Faults of the processes of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessFaultCounts {
    /// Number of kills with SIGKILL.
    pub killed: u32,
    /// Number of times that a process was suspended for longer than its lease.
    pub suspended: u32,
    /// Number of stops with SIGTERM.
    pub stopped: u32,
}

/// Faults of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerFaultCounts {
    /// Number of kills with SIGKILL.
    pub killed: u32,
    /// Number of times that the server was suspended for longer than the timeout of a call.
    pub suspended: u32,
    /// Number of times that all connections were closed.
    pub disconnected: u32,
}

impl ServerFaultCounts {
    pub(crate) fn count(&mut self, fault: ServerFault) {
        match fault {
            ServerFault::Kill => self.killed += 1,
            ServerFault::Suspend => self.suspended += 1,
            ServerFault::Disconnect => self.disconnected += 1,
        }
    }
}

/// The injected faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Faults of relays.
    pub relays: ProcessFaultCounts,
    /// Faults of consumers.
    pub consumers: ProcessFaultCounts,
    /// Faults of the database.
    pub database: ServerFaultCounts,
    /// Faults of the broker.
    pub broker: ServerFaultCounts,
}

impl FaultCounts {
    /// The total number of faults.
    pub fn all(&self) -> u32 {
        let Self { relays, consumers, database, broker } = self;
        let ended =
            [relays, consumers].map(|ProcessFaultCounts { killed, suspended, stopped }| killed + suspended + stopped);
        let struck = [database, broker]
            .map(|ServerFaultCounts { killed, suspended, disconnected }| killed + suspended + disconnected);
        ended.iter().chain(&struck).sum()
    }
}

/// The report of a whole run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The store.
    pub store: &'static str,
    /// The broker.
    pub broker: &'static str,
    /// The seed of all random choices.
    pub seed: u64,
    /// How long producers wrote.
    pub wrote_for: Duration,
    /// How long it then took until the last message had arrived and its effects had happened.
    pub drained_in: Duration,
    /// The injected faults.
    pub fault_counts: FaultCounts,
    /// Transactions that rolled back, lost their connection, or had an unknown result.
    pub not_committed: [u64; 3],
    /// The result for the broker.
    pub broker_findings: BrokerFindings,
    /// The results for the consumers. Empty if the run had none.
    pub consumer_findings: Vec<ConsumerFindings>,
    /// The directory with the logs of all processes, if there is a problem.
    pub logs: Option<PathBuf>,
}

impl Report {
    /// Whether all guarantees held.
    pub fn is_sound(&self) -> bool {
        self.broker_findings.is_sound() && self.consumer_findings.iter().all(ConsumerFindings::is_sound)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            store,
            broker,
            seed,
            wrote_for,
            drained_in,
            fault_counts,
            not_committed,
            broker_findings,
            consumer_findings,
            logs,
        } = self;
        let [rolled_back, disconnected, unknown] = not_committed;
        writeln!(
            f,
            "torture of {store} to {broker}, seed {seed}: {wrote_for:.0?} of writing, {drained_in:.1?} until all messages were handled"
        )?;
        let mut head = "faults";
        for (target, ProcessFaultCounts { killed, suspended, stopped }) in
            [("relays", fault_counts.relays), ("consumers", fault_counts.consumers)]
        {
            if killed + suspended + stopped > 0 {
                writeln!(
                    f,
                    "  {head:<12} {killed} {target} killed, {suspended} suspended past their lease, {stopped} stopped"
                )?;
                head = "";
            }
        }
        for (target, ServerFaultCounts { killed, suspended, disconnected }) in
            [("database", fault_counts.database), ("broker", fault_counts.broker)]
        {
            if killed + suspended + disconnected > 0 {
                writeln!(
                    f,
                    "  {head:<12} {target} killed {killed} times, suspended {suspended} times, disconnected {disconnected} times"
                )?;
                head = "";
            }
        }
        writeln!(
            f,
            "  written      {} committed, {rolled_back} rolled back, {disconnected} disconnected, {unknown} with an unknown result",
            broker_findings.committed
        )?;
        writeln!(f, "  arrived      {}, of which {} repeats", broker_findings.arrived, broker_findings.repeats)?;
        for (name, violations) in broker_findings.violations() {
            writeln!(f, "  {name:<12} {}", join_or_none(violations))?;
        }
        for found in consumer_findings {
            let ConsumerFindings { consumer, effects, redriven, marks, .. } = found;
            writeln!(
                f,
                "  {consumer}: {effects} effects, {redriven} dead letters redriven, {marks} lane marks checked"
            )?;
            for (name, violations) in found.violations() {
                writeln!(f, "    {name:<12} {}", join_or_none(violations))?;
            }
        }
        logs.iter().try_for_each(|logs| writeln!(f, "  logs         {}", logs.display()))
    }
}

fn join_or_none(violations: &[String]) -> String {
    if violations.is_empty() { "none".to_owned() } else { violations.join(", ") }
}
