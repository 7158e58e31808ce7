//! The store conformance suite.

mod harness;

relevo_conformance::outbox_suite!(harness::start);
