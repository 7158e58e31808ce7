//! Runs of the real consumer runtime, and proof that the oracles detect a broken one.

use relevo_sim::inbox::{Mutant, run};

/// The number of runs with the real consumers. `cargo xtask sim` does many more.
const SEEDS: u64 = 24;

/// Seeds that once broke a promise:
/// - 1650: a member that was counted as dead lost track of a lane that it still owned
/// - 727: a member that had lost its lane counted an attempt that was never recorded
/// - 8855: a member that had waited to be alone made a call while another member had claimed the queue
const REGRESSION_SEEDS: [u64; 3] = [1650, 727, 8855];

/// Each mutant must be detected within this number of runs.
const CAUGHT_WITHIN: u64 = 60;

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

#[test]
fn regression_seeds_pass() {
    every_promise_holds(REGRESSION_SEEDS.into_iter());
}

#[test]
fn a_seed_replays_exactly() {
    for seed in 0..4 {
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
fn acknowledging_before_the_commit_is_caught() {
    is_caught(Mutant::AcknowledgeFirst);
}

#[test]
fn handling_a_duplicate_is_caught() {
    is_caught(Mutant::HandleAgain);
}

#[test]
fn calling_without_a_claim_is_caught() {
    is_caught(Mutant::IgnoreCalls);
}

#[test]
fn handling_under_a_lost_lane_is_caught() {
    is_caught(Mutant::IgnoreLanes);
}

#[test]
fn working_on_a_queue_under_a_lost_claim_is_caught() {
    is_caught(Mutant::IgnoreClaims);
}

#[test]
fn emptying_a_queue_without_a_recheck_is_caught() {
    is_caught(Mutant::DeleteUnchecked);
}

#[test]
fn redriving_twice_is_caught() {
    is_caught(Mutant::RedriveAgain);
}

#[test]
fn overtaking_a_retry_queue_is_caught() {
    is_caught(Mutant::Overtake);
}

#[test]
fn counting_an_outage_as_an_attempt_is_caught() {
    is_caught(Mutant::CountOutages);
}

#[test]
fn counting_deliveries_as_attempts_is_caught() {
    is_caught(Mutant::CountDeliveries);
}

#[test]
fn a_dead_letter_in_a_second_transaction_is_caught() {
    is_caught(Mutant::SplitDeadLetter);
}

#[test]
fn a_dead_letter_with_other_bytes_is_caught() {
    is_caught(Mutant::CutBytes);
}

#[test]
fn acknowledging_a_message_during_the_call_of_another_member_is_caught() {
    is_caught(Mutant::TrustCallers);
}

#[test]
fn handling_a_key_out_of_order_is_caught() {
    is_caught(Mutant::KeysAtOnce);
}

#[test]
fn calling_under_a_fresh_id_is_caught() {
    is_caught(Mutant::FreshIds);
}
