//! Consumers on real stores and brokers. Each message has exactly one effect if processes are killed or suspended,
//! connections are cut, or messages are delivered twice.
//!
//! One suite, expanded to one test per case and per pair of store and broker.

#[path = "consumers/age.rs"]
mod age;
#[path = "consumers/backends.rs"]
mod backends;
#[path = "consumers/behaviour.rs"]
mod behaviour;
#[path = "consumers/calls.rs"]
mod calls;
#[path = "consumers/copies.rs"]
mod copies;
#[path = "consumers/hanging.rs"]
mod hanging;
#[path = "consumers/harness.rs"]
mod harness;
#[path = "consumers/killed.rs"]
mod killed;
#[path = "consumers/metrics.rs"]
mod metrics;
#[path = "consumers/outages.rs"]
mod outages;
#[path = "consumers/poison.rs"]
mod poison;
#[path = "consumers/process.rs"]
mod process;
#[path = "consumers/retries.rs"]
mod retries;
#[path = "consumers/shared.rs"]
mod shared;
#[path = "consumers/stopping.rs"]
mod stopping;
#[path = "consumers/suspended.rs"]
mod suspended;

macro_rules! suite {
    ($store:ident, $broker:ident) => {
        cases! { $store, $broker;
            killed::a_message_whose_process_died_before_its_handler_is_handled_by_another,
            killed::a_message_whose_process_died_in_its_handler_has_no_effect,
            killed::a_committed_message_without_acknowledgement_is_a_duplicate,
            killed::processes_killed_at_any_moment_lose_nothing,
            shared::the_same_message_on_two_workers_at_once_has_one_effect,
            shared::a_lane_that_moves_during_handling_keeps_its_order,
            shared::members_that_come_and_go_keep_the_order,
            poison::poison_in_the_middle_of_a_batch_is_a_dead_letter_and_the_others_are_applied_once,
            poison::two_redrives_at_once_have_one_effect_and_the_key_keeps_its_order,
            hanging::a_lane_with_a_hanging_handler_continues_at_another_member,
            retries::attempts_of_the_retry_table_survive_their_process,
            copies::a_dead_letter_is_copied_to_a_queue_of_the_broker,
            outages::nothing_is_acknowledged_while_the_store_is_unreachable,
            outages::repeated_store_outages_lose_nothing,
            outages::repeated_broker_outages_lose_nothing,
            outages::a_killed_and_restarted_broker_loses_nothing,
            suspended::a_process_suspended_before_its_handler_repeats_nothing,
            suspended::a_process_suspended_in_its_handler_commits_nothing_after_it_lost_its_lane,
            suspended::a_process_suspended_before_its_acknowledgement_keeps_its_one_effect,
            stopping::messages_of_a_stopped_member_continue_at_once,
            calls::a_call_whose_process_died_is_made_again_under_the_same_id,
            age::a_message_delivered_after_it_was_pruned_is_a_dead_letter,
            metrics::metrics_report_handled_messages_and_no_lag,
        }
    };
}

macro_rules! cases {
    ($store:ident, $broker:ident; $($theme:ident::$case:ident,)+) => {
        $(
            #[tokio::test]
            async fn $case() {
                let backends = crate::backends::Backends { store: crate::backends::StoreKind::$store, broker: crate::backends::BrokerKind::$broker };
                crate::$theme::$case(backends).await;
            }
        )+
    };
}

mod postgres_embedded {
    suite!(Postgres, Embedded);
}

mod postgres_rabbitmq {
    suite!(Postgres, RabbitMq);
    // Other brokers have no delayed retries.
    cases! { Postgres, RabbitMq;
        retries::attempts_of_the_broker_survive_their_process,
        retries::attempts_of_the_broker_are_no_deliveries,
    }
}

mod postgres_nats {
    suite!(Postgres, Nats);
}

mod sqlite_embedded {
    suite!(Sqlite, Embedded);
}
