//! The suite that every inbox runs.
//!
//! A store's tests have a harness and a line, in a module of their own:
//!
//! ```text
//! mod harness; // a database of its own for each case: impl inbox::Harness
//! relevo_conformance::inbox_suite!(harness::start);
//! ```

pub mod harness;
pub mod once;
mod stage;

pub use harness::{Capabilities, Handling, Harness, KEEPING};

/// Makes one test of every case. `$start` names an async function without arguments that gives an `inbox::Harness`. The
/// calling crate needs tokio with `macros` and `rt`.
#[macro_export]
macro_rules! inbox_suite {
    ($start:path) => {
        $crate::inbox_cases! { $start;
            once::a_new_message_is_handled_once,
            once::what_rolled_back_did_not_happen,
            once::a_dropped_transaction_did_not_happen,
            once::effect_emitted_message_and_entry_are_one,
            once::each_consumer_handles_a_message_once,
            once::each_replay_handles_a_message_once,
            once::a_skipped_message_counts_as_skipped,
            once::answers_come_in_the_order_asked,
            once::the_same_message_twice_in_a_batch_is_handled_once,
            once::an_empty_batch_is_a_transaction,
        }
    };
}

/// What [`inbox_suite`] expands to.
#[doc(hidden)]
#[macro_export]
macro_rules! inbox_cases {
    ($start:path; $($theme:ident::$case:ident,)+) => {
        $(
            #[tokio::test]
            async fn $case() {
                let mut harness = $start().await;
                $crate::inbox::$theme::$case(&mut harness).await;
            }
        )+
    };
}
