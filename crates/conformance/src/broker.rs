//! Conformance suites for every broker.
//!
//! The `tests/conformance.rs` of a broker has a harness and up to three lines. The second is for brokers with
//! consumers, the third for servers that can be made to fail:
//!
//! ```text
//! mod harness; // a broker of its own for each case: impl BrokerHarness, impl ConsumerHarness
//! relevo_conformance::broker_suite!(harness::start);
//! relevo_conformance::consumer_suite!(harness::start);
//! relevo_conformance::broker_fault_suite!(harness::start);
//! ```

pub mod acknowledgements;
pub mod contents;
pub mod deliveries;
pub mod faults;
pub mod groups;
pub mod harness;
pub mod lag;
pub mod publishing;

/// Creates one test per publishing case. `$start` names an async function without arguments that returns a
/// `BrokerHarness`. The calling crate needs tokio with `macros` and `rt`.
#[macro_export]
macro_rules! broker_suite {
    ($start:path) => {
        $crate::broker_cases! { $start;
            publishing::what_is_confirmed_survives_a_crash,
            publishing::each_message_has_one_outcome,
            publishing::messages_of_a_key_keep_their_order,
            publishing::a_repeat_has_the_same_id_and_bytes,
            publishing::the_same_message_at_two_addresses_is_no_repeat,
            publishing::an_oversized_message_is_poison_and_others_pass,
            publishing::what_follows_a_refused_message_of_its_key_is_fenced_or_passes,
            publishing::a_message_as_large_as_allowed_passes,
            publishing::a_dropped_call_tears_no_message,
            publishing::two_publishers_lose_nothing,
            publishing::an_empty_batch_is_nothing,
            contents::empty_and_binary_payloads_arrive_unchanged,
            contents::every_attribute_and_header_arrives,
            contents::large_headers_arrive,
            contents::keys_and_headers_may_be_any_text,
        }
    };
}

/// Creates one test per fault of a real server. `$start` names an async function without arguments that returns a
/// `FaultHarness`.
#[macro_export]
macro_rules! broker_fault_suite {
    ($start:path) => {
        $crate::broker_cases! { $start;
            faults::a_server_that_is_stopped_and_continued_loses_nothing,
            faults::a_server_that_is_killed_and_restarted_loses_nothing,
            faults::a_connection_cut_in_the_middle_of_a_batch_loses_nothing,
            faults::an_unreachable_server_is_an_outage,
            faults::a_confirm_that_is_lost_is_unknown_and_the_repeat_is_the_same,
            faults::a_slow_way_to_the_server_loses_nothing,
            faults::a_full_queue_or_stream_throttles_and_loses_nothing,
            faults::a_server_short_of_memory_loses_nothing,
            faults::a_server_short_of_disk_loses_nothing,
        }
    };
}

/// Creates one test per consuming case. `$start` names an async function without arguments that returns a
/// `ConsumerHarness`.
#[macro_export]
macro_rules! consumer_suite {
    ($start:path) => {
        $crate::broker_cases! { $start;
            groups::each_group_gets_everything,
            groups::a_group_gets_only_its_addresses,
            groups::members_of_a_group_share,
            groups::a_member_that_comes_later_gets_its_share,
            groups::a_key_comes_in_order_whoever_takes_it,
            groups::what_a_dead_consumer_held_comes_again_as_a_repeat,
            groups::a_consumer_that_lost_its_lanes_settles_nothing,
            groups::an_orderly_end_gives_everything_back_at_once,
            groups::a_closed_consumer_receives_nothing,
            deliveries::a_waiting_consumer_is_woken,
            deliveries::a_delivery_says_where_it_came_from,
            deliveries::undecodable_bytes_arrive_with_their_bytes,
            deliveries::no_more_than_asked_for_comes_at_once,
            deliveries::the_prefetch_bounds_a_lane,
            deliveries::a_paused_lane_leaves_the_others_flowing,
            deliveries::a_cancelled_receive_loses_nothing,
            deliveries::two_receivers_of_one_consumer_share,
            acknowledgements::what_was_acknowledged_never_comes_again,
            acknowledgements::what_was_not_acknowledged_comes_again_after_a_crash,
            acknowledgements::acknowledgements_need_no_order,
            acknowledgements::each_acknowledgement_has_its_own_outcome,
            lag::nothing_waits_in_a_new_group,
            lag::what_nobody_received_waits_in_its_lane,
            lag::what_is_out_does_not_wait,
        }
    };
}

/// Expansion of [`broker_suite`] and [`consumer_suite`].
#[doc(hidden)]
#[macro_export]
macro_rules! broker_cases {
    ($start:path; $($theme:ident::$case:ident,)+) => {
        $(
            #[tokio::test]
            async fn $case() {
                let mut harness = $start().await;
                $crate::broker::$theme::$case(&mut harness).await;
            }
        )+
    };
}
