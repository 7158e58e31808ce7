//! The conformance suites of every broker.

relevo_conformance::broker_suite!(crate::harness::start);

mod faults {
    relevo_conformance::broker_fault_suite!(crate::fault_harness::start);
}
