//! The conformance suite for every outbox store.
//!
//! The `tests/conformance.rs` of a store has a harness and one line:
//!
//! ```text
//! mod harness; // an outbox of its own for each case: impl Harness
//! relevo_conformance::outbox_suite!(harness::start);
//! ```

pub mod addresses;
pub mod crash;
pub mod dead_letters;
pub mod destinations;
pub mod duplicate_ids;
pub mod harness;
pub mod interleaved;
pub mod leases;
pub mod main_calls;
pub mod owners;
pub mod parking;
pub mod resharding;
pub mod retention;
pub mod retries;
pub mod scheduled;
mod test_relay;
pub mod windows;

pub use harness::Harness;

/// Creates one test per case. `$start` names an async function without arguments that returns a `Harness`. If most
/// cases share a server, `$crashable` names one whose server may be killed. The calling crate needs tokio with `macros`
/// and `rt`.
#[macro_export]
macro_rules! outbox_suite {
    ($start:path) => {
        $crate::outbox_suite!($start, $start);
    };
    ($start:path, $crashable:path) => {
        $crate::outbox_cases! { $crashable;
            crash::an_unsettled_message_is_read_again_after_a_crash,
            crash::an_uncommitted_message_is_lost_in_a_crash,
            crash::parked_keys_and_dead_letters_survive_a_crash,
        }
        $crate::outbox_cases! { $start;
            windows::a_rolled_back_message_is_never_read,
            windows::a_message_undone_by_a_savepoint_is_never_read,
            windows::a_long_transaction_is_read_once_when_it_commits,
            windows::a_late_commit_of_the_youngest_transaction_is_read,
            windows::a_skipped_transaction_is_read_completely,
            windows::the_same_window_read_twice_gives_the_same_page,
            windows::a_position_within_a_window_survives_newer_ticks_and_sessions,
            windows::a_page_can_end_among_late_messages,
            windows::an_idle_outbox_gives_empty_pages,
            windows::every_shard_reads_its_own_keys,
            windows::a_lagging_shard_jumps_to_the_newest_tick,
            windows::a_window_limit_stops_new_windows,
            windows::a_page_ends_at_its_byte_limit,
            interleaved::interleaved_writers_lose_repeat_and_reorder_nothing,
            interleaved::interleaved_writers_and_moving_shards_lose_and_repeat_nothing,
            leases::shards_are_shared_evenly,
            leases::an_owner_that_leaves_frees_its_shards_at_once,
            leases::releasing_frees_every_lease_of_the_owner,
            leases::a_lease_is_taken_over_only_after_it_expired,
            leases::an_expired_lease_that_was_not_taken_over_is_renewed,
            leases::a_released_shard_is_free_for_others,
            leases::a_disabled_destination_leases_nothing,
            leases::an_unknown_destination_is_rejected,
            owners::the_old_owner_can_settle_nothing,
            owners::the_old_owner_can_settle_no_parked_key,
            owners::the_new_owner_begins_where_the_old_one_settled,
            owners::an_expired_lease_that_was_not_taken_over_still_settles,
            owners::a_lost_shard_does_not_affect_a_held_one,
            parking::a_failed_message_and_its_successors_wait_in_order,
            parking::a_message_behind_a_removed_head_is_read_again,
            parking::a_reread_message_does_not_affect_other_shards,
            parking::a_new_head_of_a_parked_key_waits_behind_the_old_one,
            parking::any_key_and_any_error_can_be_parked,
            parking::a_parked_key_does_not_delay_other_keys,
            parking::a_new_owner_learns_the_parked_keys,
            retries::a_retry_is_due_only_after_its_delay,
            retries::the_longest_waiting_key_is_retried_first,
            retries::published_messages_are_removed_and_the_rest_stays,
            retries::a_key_is_unparked_when_its_queue_is_empty,
            retries::a_message_appended_during_a_retry_keeps_its_order,
            retries::attempts_belong_to_the_first_message,
            retries::a_quarantined_message_is_sent_alone,
            addresses::a_held_address_is_probed_by_one_key_and_released_for_all,
            addresses::a_failed_probe_holds_the_address_longer,
            addresses::a_message_for_a_held_address_does_not_delay_its_probe,
            addresses::a_key_that_meets_a_held_address_does_not_delay_its_probe,
            addresses::other_addresses_of_the_destination_are_not_held,
            dead_letters::a_dead_letter_keeps_the_original_bytes,
            dead_letters::a_held_key_waits_for_an_operator,
            dead_letters::a_key_that_continues_is_not_parked,
            dead_letters::a_redriven_message_goes_before_its_successors,
            dead_letters::several_redriven_messages_keep_their_order,
            dead_letters::a_dry_run_changes_nothing,
            dead_letters::a_second_redrive_marks_nothing,
            dead_letters::a_discarded_dead_letter_frees_its_key,
            dead_letters::a_discarded_dead_letter_without_successors_frees_its_key,
            dead_letters::a_redriven_message_that_fails_again_reopens_its_dead_letter,
            dead_letters::dead_letters_are_found_by_every_filter,
            dead_letters::a_parked_batch_can_dead_letter_its_message_and_continue,
            resharding::parked_keys_move_to_their_new_owner,
            resharding::resharding_loses_and_reorders_nothing,
            resharding::an_owner_with_a_newer_window_does_not_stop_resharding,
            resharding::a_lease_from_before_resharding_settles_nothing,
            destinations::each_destination_has_its_own_progress,
            destinations::only_a_new_destination_is_added_and_only_an_existing_one_is_changed,
            destinations::the_settings_are_replaced,
            destinations::a_destination_starts_now_or_with_the_oldest_message,
            destinations::parked_keys_and_dead_letters_belong_to_one_destination,
            scheduled::scheduled_messages_enter_when_due_in_the_order_of_their_times,
            scheduled::a_scheduled_message_gets_its_order_when_it_enters_the_log,
            scheduled::the_age_of_a_scheduled_message_counts_from_its_entry_into_the_log,
            scheduled::a_cancelled_message_is_never_read,
            scheduled::a_scheduled_message_that_rolled_back_is_never_read,
            duplicate_ids::a_duplicate_id_is_rejected_or_ignored,
            duplicate_ids::an_id_of_a_rolled_back_transaction_can_be_reused,
            retention::old_settled_messages_are_dropped,
            retention::very_old_settled_messages_are_dropped_one_by_one,
            retention::unsettled_messages_are_never_dropped,
            retention::a_late_commit_is_never_dropped_unread,
            retention::a_stopped_destination_delays_retention,
            retention::a_partly_read_window_is_not_dropped,
            retention::an_unsettled_window_can_be_read_to_its_end,
        }
    };
}

/// Expansion of [`outbox_suite`].
#[doc(hidden)]
#[macro_export]
macro_rules! outbox_cases {
    ($start:path; $($theme:ident::$case:ident,)+) => {
        $(
            #[tokio::test]
            async fn $case() {
                let mut harness = $start().await;
                $crate::outbox::$theme::$case(&mut harness).await;
            }
        )+
    };
}
