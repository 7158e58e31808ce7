//! The conformance suite for every inbox.
//!
//! The tests of a store have a harness and one line, in their own module:
//!
//! ```text
//! mod harness; // a database of its own for each case: impl inbox::Harness
//! relevo_conformance::inbox_suite!(harness::start);
//! ```

pub mod contention;
pub mod controls;
pub mod dead_letters;
pub mod entering;
pub mod external_calls;
pub mod harness;
pub mod lanes;
pub mod pruning;
pub mod queue_claims;
pub mod redrive;
pub mod replays;
pub mod retry_queues;
mod steps;

use std::time::Duration;

pub use harness::{Capabilities, HandlerTransaction, Harness, RETENTION};

/// Runs a case with a time limit, so that an endless wait for another transaction fails.
#[doc(hidden)]
pub async fn within_deadline(case: impl Future<Output = ()>) {
    tokio::time::timeout(Duration::from_mins(2), case).await.expect("every wait has a time limit");
}

/// Creates one test per case. `$start` names an async function without arguments that returns an `inbox::Harness`. The
/// calling crate needs tokio with `macros` and `rt`.
#[macro_export]
macro_rules! inbox_suite {
    ($start:path) => {
        $crate::inbox_cases! { $start;
            entering::a_new_message_is_handled_once,
            entering::a_rollback_leaves_no_inbox_row,
            entering::a_dropped_transaction_leaves_no_inbox_row,
            entering::commit_and_begin_commits_the_first_transaction,
            entering::effect_emitted_message_and_inbox_row_commit_together,
            entering::a_handler_chooses_ids_and_cancels_scheduled_messages,
            entering::each_consumer_handles_a_message_once,
            entering::each_replay_handles_a_message_once,
            entering::a_skipped_message_counts_as_skipped,
            entering::outcomes_are_in_the_order_of_the_request,
            entering::the_same_message_twice_in_a_batch_is_handled_once,
            entering::a_large_batch_is_one_transaction,
            entering::an_empty_batch_is_a_transaction,
            contention::a_duplicate_of_a_message_in_an_open_transaction_is_busy,
            contention::one_of_two_transactions_of_a_message_is_committed,
            contention::a_waiting_duplicate_gets_the_outcome,
            contention::a_waiting_duplicate_is_handled_after_a_rollback,
            contention::a_cancelled_wait_leaves_nothing,
            contention::other_messages_are_handled_during_an_open_transaction,
            contention::a_batch_with_a_busy_message_changes_nothing,
            contention::overlapping_batches_handle_each_message_once,
            external_calls::a_claimed_message_is_called_once,
            external_calls::concurrent_claims_of_a_message_succeed_once,
            external_calls::a_fenced_caller_cannot_commit,
            external_calls::an_expired_call_can_be_handled_in_a_transaction,
            external_calls::an_expired_claim_that_was_not_taken_over_commits,
            external_calls::a_rolled_back_result_keeps_the_claim,
            external_calls::a_message_in_a_call_is_not_handled_in_a_transaction,
            external_calls::a_call_may_end_as_skipped,
            external_calls::a_claim_behind_a_retry_queue_is_queued,
            external_calls::only_the_caller_records_the_failure_of_its_call,
            external_calls::an_expired_call_can_be_recorded_as_failed,
            external_calls::starts_are_counted_across_members,
            external_calls::recording_a_start_changes_only_started_messages,
            external_calls::ending_an_attempt_resets_its_starts,
            external_calls::ending_a_late_call_does_not_affect_the_next_one,
            lanes::a_lane_belongs_to_one_member,
            lanes::concurrent_members_share_the_lanes,
            lanes::each_consumer_has_its_own_lanes,
            lanes::a_member_without_a_heartbeat_acquires_no_lane,
            lanes::a_fenced_member_changes_nothing,
            lanes::a_lane_lease_needs_owner_and_epoch,
            lanes::a_lane_does_not_move_under_an_open_transaction,
            lanes::a_lane_does_not_move_while_a_result_is_committed,
            lanes::an_expired_owner_without_a_successor_continues,
            lanes::a_heartbeat_never_waits_for_a_handler,
            lanes::a_released_lane_is_free_at_once,
            lanes::a_heartbeat_reply_reports_the_expiry,
            retry_queues::a_retried_message_is_due_after_its_delay,
            retry_queues::a_finished_message_is_not_recorded_as_failed,
            retry_queues::a_started_message_can_be_recorded_as_failed,
            retry_queues::later_messages_are_queued_behind_in_order,
            retry_queues::a_message_queued_behind_others_keeps_its_attempts,
            retry_queues::a_rolled_back_message_is_not_queued,
            retry_queues::a_failed_message_is_queued_behind_earlier_ones,
            retry_queues::each_consumer_has_its_own_queues,
            retry_queues::the_longest_waiting_queue_is_claimed_first,
            retry_queues::two_members_claim_different_queues,
            retry_queues::a_message_that_fails_again_stays_first,
            retry_queues::a_postponed_message_keeps_its_starts,
            retry_queues::a_postponed_call_keeps_its_starts,
            retry_queues::a_deferred_live_message_is_not_tried_before_its_time,
            retry_queues::attempts_belong_to_the_first_message,
            retry_queues::a_queue_is_handled_from_its_front,
            retry_queues::a_queued_message_can_be_skipped,
            retry_queues::a_released_queue_is_due_at_once,
            retry_queues::an_empty_unreleased_queue_is_released_by_the_next_claim,
            queue_claims::an_expired_claim_can_be_taken_over,
            queue_claims::an_expired_claim_begins_no_transaction,
            queue_claims::a_claim_does_not_move_under_an_open_transaction,
            queue_claims::a_message_appended_to_a_claimed_queue_keeps_its_order,
            queue_claims::messages_are_appended_while_a_handler_runs,
            queue_claims::a_release_waits_for_an_open_append,
            queue_claims::recording_a_failure_waits_for_an_open_append,
            queue_claims::a_queue_emptied_while_messages_arrive_loses_and_reorders_nothing,
            dead_letters::a_dead_letter_keeps_every_field,
            dead_letters::bytes_survive_a_retry_queue_and_a_redrive,
            dead_letters::a_queue_that_continues_is_not_blocked,
            dead_letters::a_blocked_queue_waits_for_an_operator,
            dead_letters::a_queued_message_is_dead_lettered_and_its_queue_continues,
            dead_letters::the_successor_of_a_dead_message_starts_with_no_attempts,
            dead_letters::a_queued_message_is_dead_lettered_and_its_queue_is_blocked,
            dead_letters::a_discarded_dead_letter_frees_its_queue,
            dead_letters::a_discarded_dead_letter_without_successors_frees_its_queue,
            dead_letters::a_blocked_queue_is_not_freed_by_another_dead_letter,
            dead_letters::a_queue_blocked_by_two_dead_letters_waits_for_both,
            dead_letters::a_dry_run_only_counts,
            dead_letters::dead_letters_are_found_by_every_filter,
            redrive::a_redriven_message_goes_before_its_successors,
            redrive::a_duplicate_of_a_redriven_message_is_recognised,
            redrive::a_second_redrive_changes_nothing,
            redrive::concurrent_redrives_reopen_once,
            redrive::a_dead_letter_is_redriven_or_discarded,
            redrive::several_redriven_messages_keep_their_order,
            redrive::a_redriven_message_goes_before_retried_messages,
            redrive::a_message_redriven_before_a_claimed_queue_is_not_overtaken,
            redrive::a_redrive_does_not_take_a_claimed_queue,
            redrive::a_redrive_does_not_free_a_queue_blocked_by_another_dead_letter,
            redrive::a_redriven_message_that_fails_again_reopens_its_dead_letter,
            redrive::a_redriven_message_that_fails_is_retried,
            redrive::a_redriven_message_that_waits_keeps_its_order,
            redrive::a_redrive_affects_only_matching_dead_letters,
            redrive::a_rate_spreads_redriven_messages,
            redrive::a_rate_spreads_redriven_messages_of_one_key,
            redrive::a_rate_begins_with_the_first_of_several_messages_of_a_key,
            redrive::a_redrive_during_an_open_append_loses_nothing,
            replays::replays_are_numbered_for_each_consumer,
            replays::replayed_messages_are_handled_once_more,
            replays::an_enqueued_message_is_not_enqueued_again,
            replays::replayed_messages_are_queued_behind_waiting_ones,
            replays::a_replay_at_the_end_of_its_source_is_finished,
            replays::a_stopped_replay_removes_unstarted_messages,
            replays::a_stopped_replay_keeps_started_messages,
            replays::a_replay_stops_after_too_many_dead_letters,
            replays::concurrent_runners_at_one_cursor_enqueue_once,
            replays::a_resumed_replay_enqueues_removed_messages,
            replays::messages_that_are_ready_are_counted,
            pruning::only_done_and_skipped_messages_are_pruned,
            pruning::recent_messages_are_not_pruned,
            pruning::pruning_works_in_batches,
            pruning::only_redriven_and_discarded_dead_letters_are_pruned,
            pruning::long_expired_members_are_pruned,
            pruning::the_done_retention_is_shown,
            controls::a_heartbeat_reply_reports_the_pause,
            controls::pausing_a_lane_pauses_no_other,
            controls::a_breaker_override_reaches_the_members,
            controls::a_lane_that_moves_stays_paused,
            controls::a_control_for_an_unknown_consumer_is_rejected,
            controls::a_consumer_is_shown_as_its_members_report,
            controls::queued_messages_are_counted_and_shown,
            controls::a_consumer_without_members_is_removed,
            controls::a_consumer_with_a_live_member_is_not_removed,
            controls::a_consumer_is_not_removed_during_an_open_transaction,
            controls::a_returning_consumer_finds_its_queued_messages,
            controls::a_message_is_found_by_its_inbox_rows,
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
                $crate::inbox::within_deadline($crate::inbox::$theme::$case(&mut harness)).await;
            }
        )+
    };
}
