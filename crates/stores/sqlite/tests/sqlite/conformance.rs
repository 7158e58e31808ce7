//! Runs the store suite.

relevo_conformance::outbox_suite!(crate::harness::start);
