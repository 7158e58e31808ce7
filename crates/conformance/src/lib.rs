//! Conformance suites for every store, every inbox and every broker.
//!
//! The `tests/conformance.rs` of a store has a harness and one line:
//!
//! ```text
//! mod harness; // an outbox of its own for each case: impl StoreHarness
//! relevo_conformance::store_suite!(harness::start);
//! ```
//!
//! Each case is a function in this crate, named as a sentence, and becomes one test in the crate of the store.

pub mod addresses;
pub mod broker;
pub mod crash;
pub mod dead_letters;
pub mod destinations;
pub mod harness;
pub mod ids;
pub mod inbox;
pub mod interleaved;
pub mod leases;
pub mod owners;
pub mod parking;
pub mod regroup;
mod relay;
pub mod replay;
pub mod retention;
pub mod runs;
pub mod scheduled;
pub mod windows;

/// Creates one test per case. `$start` names an async function without arguments that returns a `StoreHarness`. If most
/// cases share a server, `$mortal` names one whose server may be killed. The calling crate needs tokio with `macros`
/// and `rt`.
#[macro_export]
macro_rules! store_suite {
    ($start:path) => {
        $crate::store_suite!($start, $start);
    };
    ($start:path, $mortal:path) => {
        $crate::store_cases! { $mortal;
            crash::what_was_not_settled_is_read_again_after_a_crash,
            crash::what_was_not_committed_is_lost_in_a_crash,
            crash::parked_keys_and_dead_letters_survive_a_crash,
        }
        $crate::store_cases! { $start;
            windows::what_rolled_back_is_never_read,
            windows::what_a_savepoint_undid_is_never_read,
            windows::a_long_transaction_is_read_once_when_it_commits,
            windows::a_late_commit_of_the_youngest_transaction_is_read,
            windows::a_transaction_that_goes_on_after_it_was_skipped_is_read_whole,
            windows::the_same_window_read_twice_gives_the_same_page,
            windows::a_place_in_mid_window_survives_newer_ticks_and_sessions,
            windows::a_page_may_end_in_the_middle_of_late_messages,
            windows::an_idle_outbox_gives_empty_pages,
            windows::every_shard_reads_its_own_keys,
            windows::a_lagging_shard_jumps_to_the_newest_tick,
            windows::a_ceiling_stops_new_windows,
            windows::a_page_ends_when_it_has_enough_bytes,
            interleaved::interleaved_writers_lose_repeat_and_invert_nothing,
            interleaved::interleaved_writers_and_moving_shards_lose_and_repeat_nothing,
            leases::shards_are_shared_evenly,
            leases::an_owner_that_leaves_frees_its_shards_at_once,
            leases::releasing_frees_every_lease_of_the_owner,
            leases::a_lease_is_taken_after_it_expired_and_not_before,
            leases::an_expired_lease_that_nobody_took_is_renewed,
            leases::what_is_given_back_is_free_for_others,
            leases::a_destination_that_is_off_leases_nothing,
            leases::a_destination_that_does_not_exist_is_refused,
            owners::the_old_owner_can_settle_nothing,
            owners::the_old_owner_can_carry_out_and_advance_nothing,
            owners::the_new_owner_begins_where_the_old_one_settled,
            owners::an_expired_lease_that_nobody_took_still_settles,
            owners::a_lost_shard_beside_a_held_one_is_settled_apart,
            parking::a_failed_message_and_its_successors_wait_in_order,
            parking::a_message_behind_a_head_that_is_gone_is_passed,
            parking::a_passed_message_leaves_other_shards_alone,
            parking::a_new_head_of_a_parked_key_waits_behind_the_old_one,
            parking::any_key_and_any_error_can_be_parked,
            parking::other_keys_flow_past_a_parked_one,
            parking::a_new_owner_is_told_which_keys_wait,
            runs::a_retry_is_due_after_its_pause_and_not_before,
            runs::the_run_that_waited_longest_comes_first,
            runs::what_was_delivered_goes_and_the_rest_stays,
            runs::a_key_is_unparked_when_its_queue_is_empty,
            runs::a_message_appended_while_the_run_was_out_keeps_its_place,
            runs::attempts_belong_to_the_first_message,
            runs::a_quarantined_message_goes_alone,
            addresses::a_held_address_is_probed_by_one_key_and_released_for_all,
            addresses::a_failed_probe_holds_the_address_longer,
            addresses::a_message_for_a_held_address_does_not_put_its_probe_off,
            addresses::a_key_that_meets_a_held_address_does_not_put_its_probe_off,
            addresses::other_addresses_of_the_destination_flow,
            dead_letters::a_dead_letter_keeps_the_original_bytes,
            dead_letters::a_held_key_waits_for_a_person,
            dead_letters::a_key_that_continues_waits_for_nobody,
            dead_letters::a_redriven_message_goes_before_its_successors,
            dead_letters::several_redriven_messages_keep_their_order,
            dead_letters::a_dry_run_changes_nothing,
            dead_letters::a_second_redrive_marks_nothing,
            dead_letters::a_discarded_letter_frees_its_key,
            dead_letters::a_discarded_letter_without_successors_frees_its_key,
            dead_letters::a_redriven_message_that_fails_again_reopens_its_letter,
            dead_letters::letters_are_found_by_id_key_and_route,
            dead_letters::a_run_can_bury_its_message_and_go_on,
            regroup::parked_keys_find_their_new_owner,
            regroup::regrouping_loses_and_inverts_nothing,
            regroup::an_owner_that_went_further_does_not_stop_regrouping,
            regroup::a_lease_from_before_settles_nothing,
            destinations::each_destination_has_its_own_progress,
            destinations::a_destination_starts_now_or_with_the_oldest,
            destinations::parked_keys_and_dead_letters_belong_to_one_destination,
            scheduled::scheduled_messages_enter_when_due_in_the_order_of_their_times,
            scheduled::a_scheduled_message_takes_its_place_when_it_enters,
            scheduled::a_scheduled_message_is_as_old_as_its_place_in_the_log,
            scheduled::a_cancelled_message_is_never_read,
            scheduled::a_scheduled_message_that_rolled_back_is_never_read,
            ids::a_repeated_id_is_refused_or_ignored,
            ids::an_id_that_rolled_back_can_be_used,
            retention::what_is_old_and_settled_is_dropped,
            retention::what_is_far_too_old_does_not_wait_for_others,
            retention::what_is_not_settled_is_never_dropped,
            retention::a_late_commit_is_never_dropped_unread,
            retention::a_stopped_destination_holds_retention_back,
            retention::a_message_in_mid_window_is_not_dropped,
        }
    };
}

/// Expansion of [`store_suite`].
#[doc(hidden)]
#[macro_export]
macro_rules! store_cases {
    ($start:path; $($theme:ident::$case:ident,)+) => {
        $(
            #[tokio::test]
            async fn $case() {
                let mut harness = $start().await;
                $crate::$theme::$case(&mut harness).await;
            }
        )+
    };
}
