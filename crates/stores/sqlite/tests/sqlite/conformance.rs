//! The suite that every store runs.

relevo_conformance::store_suite!(crate::harness::start);
