//! The inbox conformance suite.

mod inbox_harness;

relevo_conformance::inbox_suite!(inbox_harness::start);
