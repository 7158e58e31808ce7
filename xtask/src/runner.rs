//! Runs other programs so that a signal ends them too, and lets this one clean up behind them.

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
    /// The process group of the program that runs now.
    group: Option<u32>,
}

impl Runner {
    pub(crate) fn new() -> Result<Self> {
        let state = Arc::new(Mutex::new(State::default()));
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot listen for signals")?;
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for signal in signals.forever() {
                let mut state = lock(&shared);
                // Asked once, a program may finish in good order; asked again, it must go.
                let how = if state.signal.is_none() { "TERM" } else { "KILL" };
                state.signal = u8::try_from(signal).ok();
                if let Some(group) = state.group {
                    end_group(group, how);
                }
            }
        });
        Ok(Self { state })
    }

    /// The signal that asked this program to end, if one did.
    pub(crate) fn signal(&self) -> Option<u8> {
        lock(&self.state).signal
    }

    /// Fails once a signal has asked this program to end.
    pub(crate) fn check(&self) -> Result<()> {
        match self.signal() {
            Some(signal) => bail!("ended by signal {signal}"),
            None => Ok(()),
        }
    }

    /// Runs a program to its end and fails if it does.
    pub(crate) fn run(&self, command: &mut Command) -> Result<()> {
        if self.succeeds(command)? {
            return Ok(());
        }
        bail!("`{}` failed", shown(command))
    }

    /// Runs a program to its end: whether it succeeded.
    pub(crate) fn succeeds(&self, command: &mut Command) -> Result<bool> {
        self.with(command, |_| Ok(()))
    }

    /// Runs a program to its end, `meanwhile` something reads its output: whether it succeeded.
    pub(crate) fn with(&self, command: &mut Command, meanwhile: impl FnOnce(&mut Child) -> Result<()>) -> Result<bool> {
        self.check()?;
        // A group of its own, so that all it starts can be ended, and so that a terminal's Ctrl-C comes by way of here.
        command.process_group(0).stdin(Stdio::null());
        let mut child = command.spawn().with_context(|| format!("cannot run `{}`", shown(command)))?;
        self.attach(child.id());
        let read = meanwhile(&mut child);
        let status = child.wait();
        lock(&self.state).group = None;
        self.check()?;
        read?;
        Ok(status?.success())
    }

    /// Ends the program that runs now, with all that it started; whoever runs it is told that it failed.
    pub(crate) fn end_what_runs(&self) {
        if let Some(group) = lock(&self.state).group {
            end_group(group, "KILL");
        }
    }

    fn attach(&self, group: u32) {
        let mut state = lock(&self.state);
        state.group = Some(group);
        // The signal may have come between the last look and the start.
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
    // It may be gone already, which is what was wanted.
    Command::new("sh").args(["-c", &script]).stderr(Stdio::null()).status().ok();
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
