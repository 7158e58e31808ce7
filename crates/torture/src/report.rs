//! The printed report of a run.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::harms::Blow;
use crate::oracle::{Findings, Judgement};

/// Faults of the processes of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Number of kills with SIGKILL.
    pub killed: u32,
    /// Number of times that a process was suspended for longer than others wait for it.
    pub frozen: u32,
    /// Number of stops with SIGTERM.
    pub left: u32,
}

/// Faults of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Struck {
    /// Number of kills with SIGKILL.
    pub killed: u32,
    /// Number of times that the server was suspended for longer than the deadline of a call.
    pub frozen: u32,
    /// Number of times that all connections were cut.
    pub cut: u32,
}

impl Struck {
    pub(crate) fn count(&mut self, blow: Blow) {
        match blow {
            Blow::Kill => self.killed += 1,
            Blow::Freeze => self.frozen += 1,
            Blow::Cut => self.cut += 1,
        }
    }
}

/// The injected faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deeds {
    /// Faults of relays.
    pub relays: Ended,
    /// Faults of consumers.
    pub consumers: Ended,
    /// Faults of the database.
    pub database: Struck,
    /// Faults of the broker.
    pub broker: Struck,
}

impl Deeds {
    /// The total number of faults.
    pub fn all(&self) -> u32 {
        let Self { relays, consumers, database, broker } = self;
        let ended = [relays, consumers].map(|Ended { killed, frozen, left }| killed + frozen + left);
        let struck = [database, broker].map(|Struck { killed, frozen, cut }| killed + frozen + cut);
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
    pub deeds: Deeds,
    /// Transactions that rolled back, lost their connection, or had an unknown result.
    pub unhappy: [u64; 3],
    /// The result for the broker.
    pub judgement: Judgement,
    /// The results for the consumers. Empty if the run had none.
    pub findings: Vec<Findings>,
    /// The directory with the logs of all processes, if there is a problem.
    pub logs: Option<PathBuf>,
}

impl Report {
    /// Whether all guarantees held.
    pub fn is_sound(&self) -> bool {
        self.judgement.is_sound() && self.findings.iter().all(Findings::is_sound)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { store, broker, seed, wrote_for, drained_in, deeds, unhappy, judgement, findings, logs } = self;
        let [rolled_back, vanished, unknown] = unhappy;
        writeln!(
            f,
            "torture of {store} to {broker}, seed {seed}: {wrote_for:.0?} of writing, {drained_in:.1?} until all was over"
        )?;
        let mut head = "done";
        for (who, Ended { killed, frozen, left }) in [("relays", deeds.relays), ("consumers", deeds.consumers)] {
            if killed + frozen + left > 0 {
                writeln!(
                    f,
                    "  {head:<9} {killed} {who} killed, {frozen} stopped past their lease, {left} asked to leave"
                )?;
                head = "";
            }
        }
        for (who, Struck { killed, frozen, cut }) in [("database", deeds.database), ("broker", deeds.broker)] {
            if killed + frozen + cut > 0 {
                writeln!(f, "  {head:<9} {who} killed {killed} times, stopped {frozen} times, cut off {cut} times")?;
                head = "";
            }
        }
        writeln!(
            f,
            "  written   {} committed, {rolled_back} rolled back, {vanished} vanished, {unknown} of unknown end",
            judgement.committed
        )?;
        writeln!(f, "  arrived   {}, of which {} repeats", judgement.arrived, judgement.repeats)?;
        for (name, offenders) in judgement.offences() {
            writeln!(f, "  {name:<9} {}", told(offenders))?;
        }
        for found in findings {
            let Findings { consumer, effects, redriven, marks, .. } = found;
            writeln!(f, "  {consumer}: {effects} effects, {redriven} dead letters redriven, {marks} marks looked at")?;
            for (name, offenders) in found.offences() {
                writeln!(f, "    {name:<10} {}", told(offenders))?;
            }
        }
        logs.iter().try_for_each(|logs| writeln!(f, "  logs      {}", logs.display()))
    }
}

fn told(offenders: &[String]) -> String {
    if offenders.is_empty() { "none".to_owned() } else { offenders.join(", ") }
}
