//! Consumers on real stores and brokers. Each message has exactly one effect, whatever is killed, suspended, cut or
//! delivered twice.
//!
//! One suite, expanded to one test per case and per pair of store and broker.

#[path = "consumers/age.rs"]
mod age;
#[path = "consumers/calls.rs"]
mod calls;
#[path = "consumers/conduct.rs"]
mod conduct;
#[path = "consumers/copies.rs"]
mod copies;
#[path = "consumers/cut.rs"]
mod cut;
#[path = "consumers/frozen.rs"]
mod frozen;
#[path = "consumers/hanging.rs"]
mod hanging;
#[path = "consumers/killed.rs"]
mod killed;
#[path = "consumers/on.rs"]
mod on;
#[path = "consumers/poison.rs"]
mod poison;
#[path = "consumers/process.rs"]
mod process;
#[path = "consumers/retries.rs"]
mod retries;
#[path = "consumers/shared.rs"]
mod shared;
#[path = "consumers/stage.rs"]
mod stage;
#[path = "consumers/stopping.rs"]
mod stopping;
#[path = "consumers/told.rs"]
mod told;

macro_rules! suite {
    ($store:ident, $broker:ident) => {
        cases! { $store, $broker;
            killed::what_died_before_its_handler_is_handled_by_another,
            killed::what_died_in_its_handler_did_not_happen,
            killed::what_was_committed_and_not_acknowledged_is_a_repeat,
            killed::processes_killed_at_any_moment_cost_nothing,
            shared::the_same_message_on_two_workers_at_once_has_one_effect,
            shared::a_lane_that_moves_during_handling_keeps_its_order,
            shared::members_that_come_and_go_keep_the_order,
            poison::poison_in_the_middle_of_a_batch_is_a_dead_letter_and_the_others_are_applied_once,
            poison::two_redrives_at_once_have_one_effect_and_the_key_keeps_its_order,
            hanging::a_handler_that_never_returns_lets_its_lane_go_on_elsewhere,
            retries::attempts_of_the_retry_table_survive_their_process,
            copies::a_dead_letter_is_copied_to_a_queue_of_the_broker,
            cut::while_the_store_is_away_nothing_is_acknowledged,
            cut::a_store_cut_off_again_and_again_costs_nothing,
            cut::a_broker_cut_off_again_and_again_costs_nothing,
            cut::a_broker_killed_and_restarted_costs_nothing,
            frozen::a_process_frozen_before_its_handler_handles_nothing_that_another_did,
            frozen::a_process_frozen_in_its_handler_commits_nothing_after_another_took_its_lane,
            frozen::a_process_frozen_before_its_acknowledgement_keeps_its_one_effect,
            stopping::what_a_stopped_member_had_goes_on_at_once,
            calls::a_call_whose_process_died_is_made_again_under_the_same_id,
            age::a_message_that_comes_after_it_was_forgotten_is_a_dead_letter,
            told::a_process_tells_what_it_handled_and_that_nothing_waits,
        }
    };
}

macro_rules! cases {
    ($store:ident, $broker:ident; $($theme:ident::$case:ident,)+) => {
        $(
            #[tokio::test]
            async fn $case() {
                let on = crate::on::On { store: crate::on::Kept::$store, broker: crate::on::By::$broker };
                crate::$theme::$case(on).await;
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
