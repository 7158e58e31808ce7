//! Runs the inbox suite.

relevo_conformance::inbox_suite!(crate::inbox_harness::start);
