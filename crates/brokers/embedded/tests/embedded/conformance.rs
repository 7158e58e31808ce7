//! The conformance suites of every broker.

use crate::harness;

relevo_conformance::broker_suite!(harness::start);
relevo_conformance::consumer_suite!(harness::start);
