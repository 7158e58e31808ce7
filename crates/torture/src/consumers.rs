//! The consumers of a run: `ledger` processes, whose effects are rows in the database under test.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::process::Process;

/// Number of lanes that keys are hashed into.
pub(crate) const LANES: u16 = 4;
/// Short, so that a run suspends consumers for longer than this several times.
pub(crate) const BEAT_LASTS: Duration = Duration::from_secs(2);
/// One message in N fails twice before it succeeds.
const FAILS_ONE_IN: u32 = 25;
/// One message in N is poison until its consumer is cured.
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

/// In a careless run, this consumer's inbox is emptied. The other consumers acknowledge before they commit.
pub(crate) const FORGETS: &str = "ordered";

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
    careless: bool,
) -> Result<Vec<Process>> {
    let member = |number: usize| {
        let name = format!("{}-{number}", group.name);
        let mut arguments: Vec<String> = Vec::new();
        let mut say = |name: &str, value: String| arguments.extend([format!("--{name}"), value]);
        say("store", database.to_owned());
        say("broker", broker.to_owned());
        say("consumer", group.name.to_owned());
        say("member", name.clone());
        say("order", if group.ordered { "key" } else { "none" }.to_owned());
        if let Some(lanes) = group.lanes() {
            say("lanes", lanes.to_string());
        }
        say("batch", group.batch.to_string());
        say("beat-lasts-ms", BEAT_LASTS.as_millis().to_string());
        say("retry-one-in", FAILS_ONE_IN.to_string());
        say("poison-one-in", POISON_ONE_IN.to_string());
        arguments.push("--trace".to_owned());
        if careless && group.name != FORGETS {
            arguments.push("--acknowledge-early".to_owned());
        }
        Process::start(name, directory, ledger, arguments)
    };
    (0..group.members).map(member).collect()
}

/// The binary `ledger` in the directory of another binary: one build puts both there.
pub fn ledger_beside(program: &Path) -> Result<PathBuf> {
    let ledger = program.with_file_name("ledger");
    ensure!(
        ledger.exists(),
        "`{}` is not there; hint: `cargo build -p relevo-torture` makes it, and so does `cargo test --workspace`",
        ledger.display()
    );
    Ok(ledger)
}
