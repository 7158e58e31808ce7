//! What a run did and found, for people.

use std::fmt;
use std::time::Duration;

use crate::oracle::Judgement;

/// What was done on purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deeds {
    /// Relays killed with -9.
    pub killed: u32,
    /// Relays stopped past their lease, and continued.
    pub frozen: u32,
    /// Relays that were asked to leave.
    pub left: u32,
    /// Times that the database was killed with -9.
    pub database_killed: u32,
    /// Times that the broker was killed with -9.
    pub broker_killed: u32,
    /// Times that the broker was stopped for longer than a publish may take.
    pub broker_frozen: u32,
    /// Times that all connections to the broker were cut.
    pub connections_cut: u32,
}

impl Deeds {
    /// All of them together.
    pub fn all(&self) -> u32 {
        let Self { killed, frozen, left, database_killed, broker_killed, broker_frozen, connections_cut } = self;
        killed + frozen + left + database_killed + broker_killed + broker_frozen + connections_cut
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
    /// Until the last message had arrived.
    pub drained_in: Duration,
    /// What was done.
    pub deeds: Deeds,
    /// Transactions that rolled back, vanished, or whose end their producer never heard of.
    pub unhappy: [u64; 3],
    /// What was found.
    pub judgement: Judgement,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { store, broker, seed, wrote_for, drained_in, deeds, unhappy, judgement } = self;
        let [rolled_back, vanished, unknown] = unhappy;
        writeln!(
            f,
            "torture of {store} to {broker}, seed {seed}: {wrote_for:.0?} of writing, {drained_in:.1?} until all arrived"
        )?;
        writeln!(
            f,
            "  done      {} relays killed, {} stopped past their lease, {} asked to leave, database killed {} times",
            deeds.killed, deeds.frozen, deeds.left, deeds.database_killed
        )?;
        writeln!(
            f,
            "            broker killed {} times, stopped {} times, all connections to it cut {} times",
            deeds.broker_killed, deeds.broker_frozen, deeds.connections_cut
        )?;
        writeln!(
            f,
            "  written   {} committed, {rolled_back} rolled back, {vanished} vanished, {unknown} of unknown end",
            judgement.committed
        )?;
        writeln!(f, "  arrived   {}, of which {} repeats", judgement.arrived, judgement.repeats)?;
        for (name, offenders) in
            [("lost", &judgement.lost), ("ghosts", &judgement.ghosts), ("inverted", &judgement.inverted)]
        {
            let told = if offenders.is_empty() { "none".to_owned() } else { offenders.join(", ") };
            writeln!(f, "  {name:<9} {told}")?;
        }
        Ok(())
    }
}
