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
pub mod deliveries;
pub mod envelopes;
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
            publishing::a_confirmed_message_survives_a_crash,
            publishing::each_message_has_one_outcome,
            publishing::messages_of_a_key_keep_their_order,
            publishing::a_repeat_has_the_same_id_and_bytes,
            publishing::the_same_message_at_two_addresses_is_no_duplicate,
            publishing::an_oversized_message_is_poison_and_others_are_published,
            publishing::a_message_after_a_rejected_one_of_its_key_is_fenced_or_published,
            publishing::a_message_of_the_maximum_size_is_published,
            publishing::a_cancelled_call_truncates_no_message,
            publishing::two_publishers_lose_nothing,
            publishing::an_empty_batch_publishes_nothing,
            envelopes::empty_and_binary_payloads_arrive_unchanged,
            envelopes::every_attribute_and_header_arrives,
            envelopes::large_headers_arrive,
            envelopes::keys_and_headers_may_be_any_text,
        }
    };
}

/// Creates one test per fault of a real server. `$start` names an async function without arguments that returns a
/// `FaultHarness`.
#[macro_export]
macro_rules! broker_fault_suite {
    ($start:path) => {
        $crate::broker_cases! { $start;
            faults::a_server_that_is_suspended_loses_nothing,
            faults::a_server_that_is_killed_and_restarted_loses_nothing,
            faults::a_connection_cut_in_the_middle_of_a_batch_loses_nothing,
            faults::an_unreachable_server_is_an_outage,
            faults::a_lost_confirm_is_unknown_and_the_repeat_has_the_same_id,
            faults::a_slow_connection_loses_nothing,
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
            groups::each_group_gets_every_message,
            groups::a_group_receives_only_its_addresses,
            groups::members_of_a_group_share_its_lanes,
            groups::a_member_that_joins_later_gets_its_share,
            groups::a_key_is_delivered_in_order_across_members,
            groups::a_delivery_of_a_dead_consumer_is_redelivered,
            groups::a_consumer_that_lost_its_lanes_acknowledges_nothing,
            groups::closing_a_consumer_releases_its_lanes_at_once,
            groups::a_closed_consumer_receives_nothing,
            deliveries::a_waiting_consumer_is_woken,
            deliveries::a_delivery_has_its_address_lane_and_offset,
            deliveries::an_undecodable_message_arrives_with_its_bytes,
            deliveries::receive_returns_at_most_its_limit,
            deliveries::the_prefetch_limits_a_lane,
            deliveries::a_paused_lane_does_not_stop_the_others,
            deliveries::a_cancelled_receive_loses_nothing,
            deliveries::concurrent_receives_share_the_deliveries_of_a_consumer,
            acknowledgements::an_acknowledged_message_is_never_redelivered,
            acknowledgements::an_unacknowledged_message_is_redelivered_after_a_crash,
            acknowledgements::acknowledgements_need_no_order,
            acknowledgements::each_acknowledgement_has_its_own_outcome,
            lag::a_new_group_has_no_lag,
            lag::an_unreceived_message_is_lag_of_its_lane,
            lag::an_outstanding_delivery_is_no_lag,
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
