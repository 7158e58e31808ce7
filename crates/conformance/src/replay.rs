//! The suite for every log from which messages are replayed.
//!
//! ```text
//! mod harness; // a log of its own for each case: impl replay::Harness
//! relevo_conformance::replay_suite!(harness::start);
//! ```

pub mod filters;
pub mod harness;
pub mod reading;

pub use harness::Harness;

/// Creates one test per case. `$start` names an async function without arguments that returns a `replay::Harness`. The
/// calling crate needs tokio with `macros` and `rt`.
#[macro_export]
macro_rules! replay_suite {
    ($start:path) => {
        $crate::replay_cases! { $start;
            reading::what_was_published_is_read_as_it_was_received,
            reading::reading_goes_on_behind_any_message,
            reading::an_empty_log_has_ended,
            reading::large_payloads_come_a_few_at_a_time,
            reading::a_second_look_sees_what_came_meanwhile,
            reading::a_sample_is_the_beginning,
            filters::messages_are_chosen_by_what_they_say,
            filters::messages_are_chosen_by_their_numbers,
            filters::messages_are_chosen_by_their_times,
            filters::what_comes_later_is_behind_the_end,
            filters::what_is_rare_is_found_and_counted,
        }
    };
}

/// Expansion of [`replay_suite`].
#[doc(hidden)]
#[macro_export]
macro_rules! replay_cases {
    ($start:path; $($theme:ident::$case:ident,)+) => {
        $(
            #[tokio::test]
            async fn $case() {
                let mut harness = $start().await;
                $crate::replay::$theme::$case(&mut harness).await;
            }
        )+
    };
}
