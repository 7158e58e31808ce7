//! Runs other programs. A signal to this program also ends them, and this program then cleans up.

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};

use anyhow::{Context as _, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

pub(crate) struct Runner {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    signal: Option<u8>,
    /// The process groups of the running programs.
    groups: BTreeSet<u32>,
}

impl Runner {
    pub(crate) fn new() -> Result<Self> {
        let state = Arc::new(Mutex::new(State::default()));
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot listen for signals")?;
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for signal in signals.forever() {
                let mut state = lock(&shared);
                // The first signal lets programs shut down cleanly, the second kills them.
                let how = if state.signal.is_none() { "TERM" } else { "KILL" };
                state.signal = u8::try_from(signal).ok();
                for group in &state.groups {
                    end_group(*group, how);
                }
            }
        });
        Ok(Self { state })
    }

    /// The signal that this program received, if any.
    pub(crate) fn signal(&self) -> Option<u8> {
        lock(&self.state).signal
    }

    /// Fails after a signal.
    pub(crate) fn check(&self) -> Result<()> {
        match self.signal() {
            Some(signal) => bail!("ended by signal {signal}"),
            None => Ok(()),
        }
    }

    /// Runs a program to its end. Returns an error if it fails.
    pub(crate) fn run(&self, command: &mut Command) -> Result<()> {
        if self.succeeds(command)? {
            return Ok(());
        }
        bail!("`{}` failed", shown(command))
    }

    /// Runs a program to its end. Returns whether it succeeded.
    pub(crate) fn succeeds(&self, command: &mut Command) -> Result<bool> {
        self.with(command, |_| Ok(()))
    }

    /// Runs a program to its end while `meanwhile` reads its output. Returns whether it succeeded.
    pub(crate) fn with(&self, command: &mut Command, meanwhile: impl FnOnce(&mut Child) -> Result<()>) -> Result<bool> {
        self.check()?;
        // The program gets its own process group, so that all its processes can be killed. Ctrl-C in a terminal then
        // reaches only this program.
        command.process_group(0).stdin(Stdio::null());
        let mut child = command.spawn().with_context(|| format!("cannot run `{}`", shown(command)))?;
        self.attach(child.id());
        let read = meanwhile(&mut child);
        let status = child.wait();
        lock(&self.state).groups.remove(&child.id());
        self.check()?;
        read?;
        Ok(status?.success())
    }

    /// Kills a running program and its child processes. The caller of that program gets a failure.
    pub(crate) fn kill(&self, group: u32) {
        if lock(&self.state).groups.contains(&group) {
            end_group(group, "KILL");
        }
    }

    fn attach(&self, group: u32) {
        let mut state = lock(&self.state);
        state.groups.insert(group);
        // The signal may have arrived between the last check and the start.
        if state.signal.is_some() {
            end_group(group, "TERM");
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().expect("no holder panics")
}

fn end_group(group: u32, signal: &str) {
    let script = format!("kill -s {signal} -- -{group}");
    // The group may have ended already.
    Command::new("sh").args(["-c", &script]).stderr(Stdio::null()).status().ok();
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
