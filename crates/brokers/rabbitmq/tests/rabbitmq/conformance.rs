//! The suites that every broker passes.

relevo_conformance::broker_suite!(crate::harness::start);
