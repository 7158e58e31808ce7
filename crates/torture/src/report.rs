//! What a run did and found, for people.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::harms::Blow;
use crate::oracle::{Findings, Judgement};

/// What was done to processes of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Killed with -9.
    pub killed: u32,
    /// Stopped for longer than others wait for them, and continued.
    pub frozen: u32,
    /// Asked to leave.
    pub left: u32,
}

/// What was done to a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Struck {
    /// Killed with -9.
    pub killed: u32,
    /// Stopped for longer than a call may take.
    pub frozen: u32,
    /// All connections to it cut.
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

/// What was done on purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deeds {
    /// To relays.
    pub relays: Ended,
    /// To consumers.
    pub consumers: Ended,
    /// To the database.
    pub database: Struck,
    /// To the broker.
    pub broker: Struck,
}

impl Deeds {
    /// All of them together.
    pub fn all(&self) -> u32 {
        let Self { relays, consumers, database, broker } = self;
        let ended = [relays, consumers].map(|Ended { killed, frozen, left }| killed + frozen + left);
        let struck = [database, broker].map(|Struck { killed, frozen, cut }| killed + frozen + cut);
        ended.iter().chain(&struck).sum()
    }
}

/// A whole run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Which store.
    pub store: &'static str,
    /// Which broker.
    pub broker: &'static str,
    /// What chose everything.
    pub seed: u64,
    /// How long producers wrote.
    pub wrote_for: Duration,
    /// Until the last message had arrived, and its effects had happened.
    pub drained_in: Duration,
    /// What was done.
    pub deeds: Deeds,
    /// Transactions that rolled back, vanished, or whose end their producer never heard of.
    pub unhappy: [u64; 3],
    /// What was found at the broker.
    pub judgement: Judgement,
    /// What was found of each consumer; none if there were none on stage.
    pub findings: Vec<Findings>,
    /// Where the logs of all processes are, if they tell of something.
    pub logs: Option<PathBuf>,
}

impl Report {
    /// Whether every promise held.
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
