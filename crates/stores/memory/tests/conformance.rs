//! The suite that every store passes.

mod harness;

relevo_conformance::store_suite!(harness::start);
