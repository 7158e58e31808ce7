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
            reading::a_published_message_is_read_as_it_was_received,
            reading::reading_resumes_after_any_message,
            reading::an_empty_log_is_at_its_end,
            reading::large_payloads_limit_the_page,
            reading::a_later_read_sees_new_messages,
            reading::a_sample_is_the_first_matching_messages,
            filters::messages_are_filtered_by_content,
            filters::messages_are_filtered_by_number,
            filters::messages_are_filtered_by_time,
            filters::messages_after_the_end_are_not_read,
            filters::rare_messages_are_found_and_counted,
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
