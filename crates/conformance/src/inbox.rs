//! The conformance suite for every inbox.
//!
//! The tests of a store have a harness and one line, in their own module:
//!
//! ```text
//! mod harness; // a database of its own for each case: impl inbox::Harness
//! relevo_conformance::inbox_suite!(harness::start);
//! ```

pub mod busy;
pub mod calls;
pub mod claims;
pub mod dead;
pub mod harness;
pub mod lanes;
pub mod once;
pub mod orders;
pub mod pruning;
pub mod queues;
pub mod redrive;
pub mod replays;
mod stage;
pub mod traces;

use std::time::Duration;

pub use harness::{Capabilities, Handling, Harness, KEEPING};

/// Runs a case with a time limit, so that an endless wait for another transaction fails.
#[doc(hidden)]
pub async fn soon(case: impl Future<Output = ()>) {
    tokio::time::timeout(Duration::from_mins(2), case).await.expect("every wait has a bound");
}

/// Creates one test per case. `$start` names an async function without arguments that returns an `inbox::Harness`. The
/// calling crate needs tokio with `macros` and `rt`.
#[macro_export]
macro_rules! inbox_suite {
    ($start:path) => {
        $crate::inbox_cases! { $start;
            once::a_new_message_is_handled_once,
            once::what_rolled_back_did_not_happen,
            once::a_dropped_transaction_did_not_happen,
            once::a_commit_that_begins_the_next_is_a_commit,
            once::effect_emitted_message_and_entry_are_one,
            once::each_consumer_handles_a_message_once,
            once::each_replay_handles_a_message_once,
            once::a_skipped_message_counts_as_skipped,
            once::answers_come_in_the_order_asked,
            once::the_same_message_twice_in_a_batch_is_handled_once,
            once::a_large_batch_is_one_transaction,
            once::an_empty_batch_is_a_transaction,
            busy::a_duplicate_of_a_message_in_an_open_transaction_is_busy,
            busy::a_duplicate_that_waits_learns_the_verdict,
            busy::a_duplicate_that_waits_handles_what_rolled_back,
            busy::a_wait_that_was_cancelled_leaves_nothing,
            busy::other_messages_pass_an_open_transaction,
            busy::a_batch_with_a_busy_message_changes_nothing,
            busy::overlapping_batches_handle_each_message_once,
            calls::a_claimed_message_is_called_by_one,
            calls::two_claims_at_once_give_one,
            calls::a_late_caller_cannot_commit,
            calls::a_call_whose_time_is_over_is_handled_inside,
            calls::an_expired_claim_that_nobody_took_commits,
            calls::a_result_that_rolled_back_leaves_the_claim,
            calls::a_message_in_a_call_is_not_handled_beside_it,
            calls::a_call_may_end_as_skipped,
            calls::a_claim_behind_a_waiting_queue_waits_too,
            calls::only_the_caller_sets_its_call_back,
            calls::a_call_whose_time_is_over_can_be_set_back,
            calls::starts_are_counted_across_processes,
            calls::a_start_changes_nothing_of_what_is_not_open,
            calls::what_ended_in_peace_counts_from_zero,
            calls::the_end_of_a_late_call_leaves_the_next_one_alone,
            lanes::a_lane_is_one_members,
            lanes::members_that_take_at_once_share,
            lanes::each_consumer_has_its_own_lanes,
            lanes::a_member_that_did_not_beat_takes_nothing,
            lanes::whoever_lost_its_lane_changes_nothing,
            lanes::a_lane_is_held_by_owner_and_epoch,
            lanes::a_lane_does_not_move_under_an_open_transaction,
            lanes::a_lane_does_not_move_under_a_result,
            lanes::an_owner_that_nobody_followed_goes_on,
            lanes::a_heartbeat_never_waits_for_a_handler,
            lanes::what_is_given_back_is_free_at_once,
            lanes::a_member_that_was_counted_as_dead_is_told,
            queues::a_retried_message_is_due_after_its_pause,
            queues::what_ended_meanwhile_is_not_set_back,
            queues::a_started_message_can_be_set_back,
            queues::later_messages_wait_behind_in_order,
            queues::what_rolled_back_does_not_wait,
            queues::a_message_set_back_into_a_queue_goes_behind,
            queues::each_consumer_has_its_own_queues,
            queues::the_queue_that_waited_longest_comes_first,
            queues::two_members_claim_different_queues,
            queues::a_message_that_fails_again_keeps_its_place,
            queues::what_was_not_tried_keeps_its_count_of_starts,
            queues::a_call_that_was_not_made_keeps_its_count_of_starts,
            queues::a_deferred_live_message_is_not_tried_before_its_time,
            queues::attempts_belong_to_the_first_message,
            queues::a_queue_is_handled_from_its_front,
            queues::a_waiting_message_may_be_skipped,
            queues::what_is_released_is_due_at_once,
            queues::an_empty_queue_that_nobody_released_is_released_later,
            claims::an_expired_claim_is_anothers,
            claims::an_expired_claim_begins_nothing,
            claims::a_claim_does_not_move_under_an_open_transaction,
            claims::a_message_appended_while_its_queue_is_out_keeps_its_place,
            claims::messages_are_appended_beside_a_handler,
            claims::a_release_waits_for_an_append_that_is_open,
            claims::a_setback_waits_for_an_append_that_is_open,
            claims::a_queue_emptied_while_messages_arrive_loses_and_inverts_nothing,
            dead::a_dead_letter_keeps_everything,
            dead::bytes_survive_the_retry_table_and_a_redrive,
            dead::a_queue_that_continues_waits_for_nobody,
            dead::a_held_queue_waits_for_a_person,
            dead::a_waiting_message_is_given_up_and_its_queue_goes_on,
            dead::what_follows_a_dead_message_counts_from_zero,
            dead::a_waiting_message_is_given_up_and_its_queue_waits,
            dead::an_archived_letter_frees_its_queue,
            dead::an_archived_letter_without_successors_frees_its_queue,
            dead::another_letter_does_not_free_a_held_queue,
            dead::a_queue_held_by_two_letters_waits_for_both,
            dead::a_dry_run_only_counts,
            dead::letters_are_found_by_what_is_known_of_them,
            redrive::a_redriven_message_goes_before_its_successors,
            redrive::a_duplicate_of_a_redriven_message_is_a_repeat,
            redrive::a_second_redrive_reopens_nothing,
            redrive::two_redrives_at_once_reopen_once,
            redrive::a_letter_is_redriven_or_archived,
            redrive::several_redriven_messages_keep_their_order,
            redrive::a_redriven_message_goes_before_what_is_retried,
            redrive::a_message_redriven_before_a_claimed_queue_is_not_overtaken,
            redrive::a_redrive_takes_no_queue_from_its_worker,
            redrive::a_redriven_letter_does_not_free_a_queue_held_by_another,
            redrive::a_redriven_message_that_dies_again_reopens_its_letter,
            redrive::a_redriven_message_that_fails_waits_again,
            redrive::a_redriven_message_that_waits_keeps_its_place,
            redrive::a_redrive_touches_only_what_it_names,
            redrive::a_rate_spreads_what_is_redriven,
            redrive::a_rate_spreads_what_is_redriven_of_one_key,
            redrive::a_rate_goes_on_with_the_first_of_several_that_held_a_key,
            redrive::a_redrive_beside_an_open_append_loses_nothing,
            replays::replays_are_numbered_for_each_consumer,
            replays::fed_messages_are_handled_once_more,
            replays::what_was_fed_before_is_not_fed_again,
            replays::fed_messages_go_behind_what_waits,
            replays::a_replay_that_read_everything_is_finished,
            replays::a_stopped_replay_takes_out_what_was_not_begun,
            replays::a_stopped_replay_leaves_what_was_begun,
            replays::a_replay_stops_by_itself_after_too_many_dead_letters,
            replays::of_two_readers_at_one_place_one_feeds,
            replays::a_resumed_replay_feeds_what_was_taken_out,
            replays::what_could_be_handled_now_is_counted,
            traces::a_trace_says_where_a_message_came_from,
            traces::nothing_is_traced_unless_asked_for,
            traces::repeats_are_counted,
            traces::what_rolled_back_is_not_traced,
            traces::a_trace_follows_its_message,
            traces::a_call_is_traced_by_its_result,
            traces::each_consumer_and_replay_is_traced_apart,
            traces::what_is_known_is_told_without_traces,
            pruning::only_what_is_done_or_skipped_is_forgotten,
            pruning::what_is_young_is_kept,
            pruning::pruning_goes_in_batches,
            pruning::only_letters_that_were_dealt_with_are_forgotten,
            pruning::old_traces_are_forgotten,
            pruning::members_that_are_long_dead_are_forgotten,
            pruning::how_long_it_remembers_is_shown,
            orders::a_paused_consumer_hears_of_it,
            orders::a_lane_is_paused_alone,
            orders::a_breaker_is_forced,
            orders::a_lane_that_moves_stays_paused,
            orders::an_order_to_nobody_is_refused,
            orders::a_consumer_is_shown_as_its_members_tell,
            orders::what_waits_is_counted_and_shown,
            orders::a_consumer_that_nobody_works_for_is_forgotten,
            orders::a_consumer_with_a_living_member_is_not_forgotten,
            orders::a_consumer_is_not_forgotten_under_an_open_transaction,
            orders::what_a_forgotten_consumer_left_is_there_when_it_comes_back,
        }
    };
}

/// Expansion of [`inbox_suite`].
#[doc(hidden)]
#[macro_export]
macro_rules! inbox_cases {
    ($start:path; $($theme:ident::$case:ident,)+) => {
        $(
            #[tokio::test]
            async fn $case() {
                let mut harness = $start().await;
                $crate::inbox::soon($crate::inbox::$theme::$case(&mut harness)).await;
            }
        )+
    };
}
