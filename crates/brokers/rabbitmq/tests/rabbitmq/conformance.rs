//! The suites that every broker passes.

relevo_conformance::broker_suite!(crate::harness::start);

mod failing {
    relevo_conformance::broker_fault_suite!(crate::fault_harness::start);
}
