//! The store conformance suite.

mod harness;

relevo_conformance::store_suite!(harness::start);
