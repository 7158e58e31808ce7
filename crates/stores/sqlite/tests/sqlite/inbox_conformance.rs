//! The suite that every inbox runs.

relevo_conformance::inbox_suite!(crate::inbox_harness::start);
