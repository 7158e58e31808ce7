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
        a_ticket_is_opened_read_and_told_of
        a_ticket_walks_to_its_end
        a_requester_closes_or_reopens_what_was_resolved
        a_closed_ticket_is_neither_assigned_nor_written_under
        an_assignee_is_an_agent_or_nobody
        of_two_changes_at_once_one_is_stale
        events_of_a_ticket_are_in_the_order_of_its_versions;
    refusals:
        every_invalid_field_is_told_and_nothing_is_stored
        bodies_that_cannot_be_read_are_refused
        a_stale_or_missing_version_is_refused
        forbidden_transitions_name_the_allowed_ones
        nobody_comes_in_without_a_token
        unknown_paths_methods_and_ids_are_problems
        a_requester_sees_nothing_of_others
        markup_is_text;
    repeats:
        a_repeat_is_told_the_same_and_does_nothing
        a_key_is_one_persons_and_one_requests
        a_key_is_of_the_version_that_was_seen
        two_repeats_at_once_have_one_effect
        an_old_key_is_forgotten
        what_fails_late_leaves_nothing;
    reading:
        a_cursor_walks_all_while_others_open_more
        filters_hold_together
        the_description_names_every_route
        the_owners_views_answer
        dispatched_is_what_the_broker_has
        of_a_long_history_the_newest_is_told
        what_was_carried_is_kept_for_thirty_days
        emails_and_figures_are_told
        every_answer_has_the_headers_of_browsers;
    figures:
        a_redriven_event_adds_what_is_missing
        days_are_told_whole_and_in_one_order;
    pruning:
        what_is_old_is_deleted_a_little_at_a_time
        a_service_deletes_what_is_older_than_it_keeps;
    people:
        an_admin_adds_people_whose_token_is_told_once
        another_token_ends_the_one_before
        a_disabled_person_is_let_in_again_by_another_token
        only_admins_decide_who_is_let_in
        tokens_are_given_and_people_disabled_from_the_command_line
        the_sample_is_there_once
        a_desk_is_real_or_a_sample_and_stays_so
        two_processes_migrate_at_once
        a_database_that_is_not_ready_says_which_command;
}
