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
        let mutant = find_mutant(mutant, &outbox::Mutant::ALL, outbox::Mutant::as_str)?;
        failed += run_seeds("outbox", &arguments, |seed| outbox::run(seed, mutant));
    }
    if arguments.world != Some(World::Outbox) {
        let mutant = find_mutant(mutant, &inbox::Mutant::ALL, inbox::Mutant::as_str)?;
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
    let mut totals = Totals::default();
    for seed in from..from.saturating_add(seeds) {
        let result = run(seed);
        totals.add(&result);
        if arguments.events {
            print_events(&result, |_| true, usize::MAX);
        }
        if !result.violations.is_empty() {
            print_violations(world, &result);
            if !arguments.keep_going {
                break;
            }
        }
    }
    print_summary(world, &totals, begin.elapsed());
    totals.failed
}

fn find_mutant<M: Copy>(name: Option<&str>, all: &[M], name_of: impl Fn(M) -> &'static str) -> Result<Option<M>> {
    let Some(name) = name else { return Ok(None) };
    let names: Vec<&str> = all.iter().map(|mutant| name_of(*mutant)).collect();
    let known = all.iter().find(|mutant| name_of(**mutant) == name);
    known.copied().map(Some).with_context(|| format!("unknown mutant `{name}`; known mutants: {}", names.join(", ")))
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
    fn add<E: SimEvent>(&mut self, result: &RunResult<E>) {
        self.runs += 1;
        self.failed += u64::from(!result.violations.is_empty());
        self.messages += result.messages();
        self.faults += result.faults();
        self.virtual_time += result.virtual_time();
        self.fingerprint = self.fingerprint.rotate_left(1) ^ result.fingerprint;
    }
}

#[expect(clippy::print_stdout, reason = "the summary is this program's output")]
fn print_summary(world: &str, totals: &Totals, took: Duration) {
    let Totals { runs, failed, messages, faults, virtual_time, fingerprint } = totals;
    let runs_per_minute = u128::from(*runs) * 60_000 / took.as_millis().max(1);
    let hours = virtual_time.as_secs() / 3600;
    println!(
        "{world}: {runs} runs, {failed} failed, {messages} messages, {faults} faults, {hours} h of virtual time, {runs_per_minute} runs per minute, \
         fingerprint {fingerprint:016x}"
    );
}

#[expect(clippy::print_stdout, reason = "violations are this program's output")]
fn print_violations<E: SimEvent>(world: &str, result: &RunResult<E>) {
    println!("{world}, seed {}", result.seed);
    for violation in &result.violations {
        println!("  {violation}");
    }
    let Some(key) = result.violations.iter().find_map(|violation| violation.key.clone()) else { return };
    println!("  the last events of key {key}:");
    print_events(result, |name| name == &*key, 40);
}

#[expect(clippy::print_stdout, reason = "the events of a run are this program's output")]
fn print_events<E: SimEvent>(result: &RunResult<E>, matches: impl Fn(&str) -> bool, last: usize) {
    let relevant = result.events.iter().filter(|(_, event)| match event.name() {
        Some(name) => matches(&name.key),
        None => last == usize::MAX || event.is_lifecycle(),
    });
    let relevant: Vec<_> = relevant.collect();
    for (at, event) in &relevant[relevant.len().saturating_sub(last)..] {
        println!("  {:>10.3} s  {event}", at.as_secs_f64());
    }
}
