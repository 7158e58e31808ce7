//! The consumers of a run: `ledger` processes, whose effects are rows in the database under test.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::process::Process;

/// Number of lanes that keys are hashed into.
pub(crate) const LANES: u16 = 4;
/// Short, so that a run suspends consumers for longer than this several times.
pub(crate) const HEARTBEAT_TTL: Duration = Duration::from_secs(2);
/// One message in N fails twice before it succeeds.
const FAILS_ONE_IN: u32 = 25;
/// One message in N is poison until the handlers of its consumer are fixed.
const POISON_ONE_IN: u32 = 40;

/// A consumer whose members are processes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    /// The name of the consumer, and of its queue, stream consumer or group.
    pub(crate) name: &'static str,
    /// Whether it keeps the order of each key.
    pub(crate) ordered: bool,
    members: usize,
    /// Maximum number of first deliveries in one transaction.
    batch: usize,
}

/// In a run with broken consumers, the inbox of this consumer is emptied. The other consumers acknowledge before they
/// commit.
pub(crate) const FORGETFUL_CONSUMER: &str = "ordered";

impl Group {
    /// Without order, all members share one queue.
    pub(crate) fn lanes(self) -> Option<u16> {
        self.ordered.then_some(LANES)
    }
}

/// The consumers of a run.
pub(crate) const GROUPS: [Group; 2] = [
    Group { name: "ordered", ordered: true, members: 3, batch: 8 },
    Group { name: "unordered", ordered: false, members: 2, batch: 1 },
];

/// Starts the members of a group. `broker` names the source of their messages.
pub(crate) fn start(
    ledger: &Path,
    directory: &Path,
    group: Group,
    database: &str,
    broker: &str,
    broken_consumers: bool,
) -> Result<Vec<Process>> {
    let member = |number: usize| {
        let name = format!("{}-{number}", group.name);
        let mut arguments: Vec<String> = Vec::new();
        let mut add = |name: &str, value: String| arguments.extend([format!("--{name}"), value]);
        add("store", database.to_owned());
        add("broker", broker.to_owned());
        add("consumer", group.name.to_owned());
        add("member", name.clone());
        add("order", if group.ordered { "key" } else { "none" }.to_owned());
        if let Some(lanes) = group.lanes() {
            add("lanes", lanes.to_string());
        }
        add("batch", group.batch.to_string());
        add("heartbeat-ttl-ms", HEARTBEAT_TTL.as_millis().to_string());
        add("retry-one-in", FAILS_ONE_IN.to_string());
        add("poison-one-in", POISON_ONE_IN.to_string());
        if broken_consumers {
            // The operator deletes the inbox of the forgetful one.
            let mistake = if group.name == FORGETFUL_CONSUMER { "late" } else { "early" };
            arguments.push(format!("--ack-mistake={mistake}"));
        }
        Process::start(name, directory, ledger, arguments)
    };
    (0..group.members).map(member).collect()
}

/// The binary `ledger` in the directory of another binary: one build creates both.
pub fn ledger_beside(program: &Path) -> Result<PathBuf> {
    let ledger = program.with_file_name("ledger");
    ensure!(
        ledger.exists(),
        "`{}` does not exist; hint: `cargo build -p relevo-torture` or `cargo test --workspace` builds it",
        ledger.display()
    );
    Ok(ledger)
}
