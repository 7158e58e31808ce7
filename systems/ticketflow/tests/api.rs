//! The API, on SQLite and on PostgreSQL: the same cases.
#![expect(clippy::unwrap_used, reason = "cases are functions of their own, run by a test for each database")]

#[path = "api/place.rs"]
mod place;
#[path = "api/world.rs"]
mod world;

#[path = "api/changes.rs"]
mod changes;
#[path = "api/figures.rs"]
mod figures;
#[path = "api/outage.rs"]
mod outage;
#[path = "api/people.rs"]
mod people;
#[path = "api/pooled.rs"]
mod pooled;
#[path = "api/pruning.rs"]
mod pruning;
#[path = "api/races.rs"]
mod races;
#[path = "api/reading.rs"]
mod reading;
#[path = "api/refusals.rs"]
mod refusals;
#[path = "api/repeats.rs"]
mod repeats;

/// One test a case and database.
macro_rules! on_both {
    ($($area:ident: $($case:ident)+;)+) => {
        mod sqlite {
            use super::world::World;

            $($(#[tokio::test]
            async fn $case() {
                super::$area::$case(&World::sqlite().await).await;
            })+)+
        }

        mod postgres {
            use super::world::World;

            $($(#[tokio::test]
            async fn $case() {
                super::$area::$case(&World::postgres().await).await;
            })+)+
        }
    };
}

on_both! {
    changes:
        a_ticket_is_opened_and_read_and_its_event_is_emitted
        a_ticket_is_closed_step_by_step
        a_requester_closes_or_reopens_a_resolved_ticket
        a_closed_ticket_is_neither_assigned_nor_commented
        an_assignee_is_an_agent_or_none
        of_two_changes_at_once_one_is_stale
        events_of_a_ticket_are_in_the_order_of_its_versions;
    refusals:
        every_invalid_field_is_reported_and_nothing_is_stored
        bodies_that_cannot_be_read_are_rejected
        a_stale_or_missing_version_is_rejected
        forbidden_transitions_name_the_allowed_ones
        a_request_without_a_token_is_rejected
        unknown_paths_methods_and_ids_are_problems
        a_requester_sees_nothing_of_others
        markup_is_text;
    repeats:
        a_repeat_gets_the_same_response_and_changes_nothing
        a_key_is_one_persons_and_one_requests
        a_key_is_of_the_version_that_was_seen
        two_repeats_at_once_have_one_effect
        an_old_key_is_forgotten
        a_change_that_fails_late_leaves_nothing;
    reading:
        a_cursor_returns_all_while_others_open_more
        filters_hold_together
        the_description_names_every_route
        the_owners_views_answer
        dispatched_is_what_the_broker_has
        the_newest_lines_of_a_long_history_are_returned
        published_events_are_retained_for_thirty_days
        emails_and_figures_are_returned
        every_response_has_the_security_headers;
    figures:
        a_redriven_event_adds_what_is_missing
        days_are_returned_whole_and_in_one_order;
    pruning:
        old_rows_are_deleted_in_batches
        a_service_deletes_rows_older_than_the_retention;
    people:
        an_admin_adds_people_whose_token_is_shown_once
        a_new_token_replaces_the_old_one
        a_new_token_enables_a_disabled_person_again
        only_admins_manage_people
        tokens_are_given_and_people_disabled_from_the_command_line
        the_sample_is_there_once
        a_desk_is_real_or_a_sample_and_stays_so
        two_processes_migrate_at_once
        a_database_that_is_not_ready_names_the_command;
}
