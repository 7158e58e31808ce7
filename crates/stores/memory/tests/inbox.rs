//! The suite that every inbox passes.

mod inbox_harness;

relevo_conformance::inbox_suite!(inbox_harness::start);
