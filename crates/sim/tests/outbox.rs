//! Runs of the real relay, and proof that the oracles detect a broken one.

use relevo_sim::outbox::{Mutant, run};

/// The number of runs with the real relay. `cargo xtask sim` does many more.
const SEEDS: u64 = 160;

/// Each mutant must be detected within this number of runs.
const CAUGHT_WITHIN: u64 = 100;

fn every_promise_holds(seeds: impl Iterator<Item = u64>) {
    for seed in seeds {
        let verdict = run(seed, None);
        let violations: Vec<String> = verdict.violations.iter().map(ToString::to_string).collect();
        assert!(violations.is_empty(), "seed {seed}: {violations:#?}");
    }
}

fn is_caught(mutant: Mutant) {
    let is_caught =
        |seed: &u64| run(*seed, Some(mutant)).violations.iter().any(|found| found.promise == mutant.breaks());
    let caught = (0..CAUGHT_WITHIN).find(is_caught);
    assert!(
        caught.is_some(),
        "{} breaks {}, but none of {CAUGHT_WITHIN} runs shows it",
        mutant.as_str(),
        mutant.breaks()
    );
}

#[test]
fn every_promise_holds_in_even_seeds() {
    every_promise_holds((0..SEEDS).step_by(2));
}

#[test]
fn every_promise_holds_in_odd_seeds() {
    every_promise_holds((1..SEEDS).step_by(2));
}

/// In seeds 22 and 34 a broken connection ends several calls at once.
#[test]
fn a_seed_replays_exactly() {
    for seed in (0..20).chain([22, 34]) {
        let (first, second) = (run(seed, None), run(seed, None));
        assert_eq!(first.fingerprint, second.fingerprint, "seed {seed}");
        assert_eq!(first.events, second.events, "seed {seed}");
    }
}

#[test]
fn different_seeds_give_different_runs() {
    assert_ne!(run(1, None).fingerprint, run(2, None).fingerprint);
}

#[test]
fn a_floor_carried_across_windows_is_caught() {
    is_caught(Mutant::CarryFloor);
}

#[test]
fn settling_before_the_confirmation_is_caught() {
    is_caught(Mutant::SettleBeforeConfirm);
}

#[test]
fn settling_under_a_lost_lease_is_caught() {
    is_caught(Mutant::IgnoreEpoch);
}

#[test]
fn overtaking_a_parked_key_is_caught() {
    is_caught(Mutant::OvertakeParked);
}

#[test]
fn counting_an_outage_as_an_attempt_is_caught() {
    is_caught(Mutant::CountOutages);
}

#[test]
fn sending_a_key_out_of_order_is_caught() {
    is_caught(Mutant::ReorderKey);
}
