//! The consumers on stage: `ledger`, whose every effect is a row in the tortured database.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::process::Process;

/// Into how many lanes keys are hashed.
pub(crate) const LANES: u16 = 4;
/// Short, so that a consumer is stopped past it several times in a run.
pub(crate) const BEAT_LASTS: Duration = Duration::from_secs(2);
/// One message in so many fails twice before it passes.
const FAILS_ONE_IN: u32 = 25;
/// One message in so many is poison until its consumer is cured.
const POISON_ONE_IN: u32 = 40;

/// A consumer, with members that are processes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    /// The consumer's name, and that of its queue, stream consumer or group.
    pub(crate) name: &'static str,
    /// Whether it keeps the order of each key.
    pub(crate) ordered: bool,
    members: usize,
    /// First deliveries of one transaction at most.
    batch: usize,
}

/// The one that a careless run lets forget what it did; the others acknowledge before they commit.
pub(crate) const FORGETS: &str = "ordered";

impl Group {
    /// Without order a queue is shared by all members.
    pub(crate) fn lanes(self) -> Option<u16> {
        self.ordered.then_some(LANES)
    }
}

/// Who consumes.
pub(crate) const GROUPS: [Group; 2] = [
    Group { name: "ordered", ordered: true, members: 3, batch: 8 },
    Group { name: "unordered", ordered: false, members: 2, batch: 1 },
];

/// Starts the members of a group. `broker` says where a group's messages are.
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

/// The binary `ledger` in the directory of another one: one build puts all of them there.
pub fn ledger_beside(program: &Path) -> Result<PathBuf> {
    let ledger = program.with_file_name("ledger");
    ensure!(
        ledger.exists(),
        "`{}` is not there; hint: `cargo build -p relevo-torture` makes it, and so does `cargo test --workspace`",
        ledger.display()
    );
    Ok(ledger)
}
