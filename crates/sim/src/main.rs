//! Runs seeds of the simulation and reports broken promises.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use relevo_sim::history::SimEvent;
use relevo_sim::{RunResult, inbox, outbox};

/// Simulates relays and consumers: one seed, or many.
#[derive(Debug, Parser)]
struct Arguments {
    /// Replay this seed.
    #[arg(long)]
    seed: Option<u64>,
    /// Number of seeds to run.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// First seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Run only this world. Default: both.
    #[arg(long)]
    world: Option<World>,
    /// Continue after failures and count them.
    #[arg(long)]
    keep_going: bool,
    /// Print all events.
    #[arg(long)]
    events: bool,
    /// Run a relay or a consumer with this fault.
    #[arg(long, requires = "world")]
    mutant: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum World {
    /// Writers, relays, a broker.
    Outbox,
    /// A broker, consumers, inboxes.
    Inbox,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let mutant = arguments.mutant.as_deref();
    let mut failed = 0;
    if arguments.world != Some(World::Inbox) {
        let mutant = find_mutant(mutant, &outbox::Mutant::ALL, outbox::Mutant::name)?;
        failed += run_seeds("outbox", &arguments, |seed| outbox::run(seed, mutant));
    }
    if arguments.world != Some(World::Outbox) {
        let mutant = find_mutant(mutant, &inbox::Mutant::ALL, inbox::Mutant::name)?;
        failed += run_seeds("inbox", &arguments, |seed| inbox::run(seed, mutant));
    }
    if failed > 0 {
        bail!("{failed} runs broke a promise");
    }
    Ok(())
}

/// Runs the seeds of one world. Returns how many broke a promise.
fn run_seeds<E: SimEvent>(world: &str, arguments: &Arguments, run: impl Fn(u64) -> RunResult<E>) -> u64 {
    let (from, seeds) = arguments.seed.map_or((arguments.from, arguments.seeds), |seed| (seed, 1));
    let begin = Instant::now();
    let mut sums = Totals::default();
    for seed in from..from.saturating_add(seeds) {
        let verdict = run(seed);
        sums.add(&verdict);
        if arguments.events {
            print_events(&verdict, |_| true, usize::MAX);
        }
        if !verdict.violations.is_empty() {
            print_violations(world, &verdict);
            if !arguments.keep_going {
                break;
            }
        }
    }
    print_summary(world, &sums, begin.elapsed());
    sums.failed
}

fn find_mutant<M: Copy>(wanted: Option<&str>, all: &[M], name: impl Fn(M) -> &'static str) -> Result<Option<M>> {
    let Some(wanted) = wanted else { return Ok(None) };
    let names: Vec<&str> = all.iter().map(|mutant| name(*mutant)).collect();
    let known = all.iter().find(|mutant| name(**mutant) == wanted);
    known.copied().map(Some).with_context(|| format!("there is no mutant `{wanted}`; there are {}", names.join(", ")))
}

#[derive(Default)]
struct Totals {
    runs: u64,
    failed: u64,
    messages: usize,
    faults: usize,
    virtual_time: Duration,
    /// A hash over all runs. It stays equal if a change does not alter any run.
    fingerprint: u64,
}

impl Totals {
    fn add<E: SimEvent>(&mut self, verdict: &RunResult<E>) {
        self.runs += 1;
        self.failed += u64::from(!verdict.violations.is_empty());
        self.messages += verdict.messages();
        self.faults += verdict.faults();
        self.virtual_time += verdict.virtual_time();
        self.fingerprint = self.fingerprint.rotate_left(1) ^ verdict.fingerprint;
    }
}

#[expect(clippy::print_stdout, reason = "the summary is this program's output")]
fn print_summary(world: &str, sums: &Totals, took: Duration) {
    let Totals { runs, failed, messages, faults, virtual_time: lasted, fingerprint } = sums;
    let a_minute = u128::from(*runs) * 60_000 / took.as_millis().max(1);
    let hours = lasted.as_secs() / 3600;
    println!(
        "{world}: {runs} runs, {failed} failed, {messages} messages, {faults} faults, {hours} h of virtual time, {a_minute} runs a minute, \
         fingerprint {fingerprint:016x}"
    );
}

#[expect(clippy::print_stdout, reason = "what broke is this program's output")]
fn print_violations<E: SimEvent>(world: &str, verdict: &RunResult<E>) {
    println!("{world}, seed {}", verdict.seed);
    for violation in &verdict.violations {
        println!("  {violation}");
    }
    let Some(key) = verdict.violations.iter().find_map(|violation| violation.key.clone()) else { return };
    println!("  the last of key {key}:");
    print_events(verdict, |name| name == &*key, 40);
}

#[expect(clippy::print_stdout, reason = "the story of a run is this program's output")]
fn print_events<E: SimEvent>(verdict: &RunResult<E>, wanted: impl Fn(&str) -> bool, last: usize) {
    let relevant = verdict.events.iter().filter(|(_, event)| match event.name() {
        Some(name) => wanted(&name.key),
        None => last == usize::MAX || event.is_lifecycle(),
    });
    let relevant: Vec<_> = relevant.collect();
    for (at, event) in &relevant[relevant.len().saturating_sub(last)..] {
        println!("  {:>10.3} s  {event}", at.as_secs_f64());
    }
}
