//! Runs the store suite.

relevo_conformance::store_suite!(crate::harness::start);
